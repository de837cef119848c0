package rest

import (
	"net/http"

	"agentd/server/fault"
	"agentd/server/openapi"
)

const linesType = "application/x-ndjson"

func (a *API) cassetteRoute() Route {
	return Route{Method: "GET", Path: "/runs/{runId}/cassette", Access: ScopeTo("traces", "read", "raw"),
		Summary:  "A recorded run that has ended, as a file for `agentd replay`: `svc-tool-cassette` 1.0. It holds everything that was said.",
		Errors:   []*fault.Kind{fault.RunNotFound, fault.RunNotEnded, fault.RunNotRecorded},
		Answers:  []openapi.Response{{Status: 200, ContentType: linesType, Description: "One JSON object a line; a footer ends it."}},
		Endpoint: streamed(a.runCassette)}
}

func (a *API) runCassette(w http.ResponseWriter, r *http.Request, _ Call, in runInputID) error {
	out := &lines{ResponseWriter: w}
	if err := a.Engine.Cassette(r.Context(), in.RunID, out); err != nil && !out.begun {
		return err
	}
	return nil // once it has begun, a reader knows by the missing footer
}

// lines is an answer of lines of JSON, from its first byte on.
type lines struct {
	http.ResponseWriter
	begun bool
}

func (l *lines) Write(b []byte) (int, error) {
	if !l.begun {
		l.begun = true
		l.Header().Set("Content-Type", linesType)
	}
	return l.ResponseWriter.Write(b)
}
