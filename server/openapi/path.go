package openapi

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"agentd/server/shape"
)

func method(op Operation) string {
	switch op.Method {
	case http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodOptions, http.MethodHead,
		http.MethodPatch:
		return strings.ToLower(op.Method)
	}
	panic(fmt.Sprintf("openapi: %q is no method", op.Method))
}

var pathShape = regexp.MustCompile(`^(/|(/([A-Za-z0-9._~-]+|\{[A-Za-z0-9_]+\}))+)$`)

// pathParams are the names between braces, from left to right.
func pathParams(path string) []string {
	if !pathShape.MatchString(path) {
		panic(fmt.Sprintf("openapi: %q is no path", path))
	}
	var names []string
	for segment := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			names = append(names, strings.TrimSuffix(name, "}"))
		}
	}
	return names
}

// operationID is the method and the words of the path, a parameter as By and its name: GET /runs/{runId}/state is
// getRunsByRunIdState.
func operationID(op Operation) string {
	var b strings.Builder
	b.WriteString(method(op))
	for segment := range strings.SplitSeq(op.Path, "/") {
		if strings.HasPrefix(segment, "{") {
			b.WriteString("By")
		}
		b.WriteString(shape.Camel(segment))
	}
	return b.String()
}
