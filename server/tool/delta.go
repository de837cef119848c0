package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"agentd/server/message"
)

const maxDeltaDepth = 100

// assemble applies deltas in order, to nothing at first, and encodes what they make.
func assemble(deltas []Chunk) (json.RawMessage, error) {
	var root any
	for i, d := range deltas {
		value, err := decodeJSON(d.Value)
		if err == nil {
			root, err = apply(root, d.Path, value)
		}
		if err != nil {
			return nil, &Error{Kind: message.InvalidOutput, Message: fmt.Sprintf("Delta %d of the tool's output cannot be applied: %v.", i+1, err)}
		}
	}
	return message.Encode(root)
}

// decodeJSON reads one value and keeps numbers as they are written.
func decodeJSON(raw json.RawMessage) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err = d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is more after the value")
	}
	return v, nil
}

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

func apply(root any, path string, value any) (any, error) {
	if path == "" {
		return value, nil
	}
	if path[0] != '/' {
		return nil, fmt.Errorf("%.80q is not a JSON Pointer", path)
	}
	tokens := strings.Split(strings.ToValidUTF8(path[1:], "\uFFFD"), "/") // what is written would have names twice
	if len(tokens) > maxDeltaDepth {
		return nil, fmt.Errorf("its path has more than %d levels", maxDeltaDepth)
	}
	for i := range tokens {
		tokens[i] = unescape.Replace(tokens[i])
	}
	return put(root, tokens, value)
}

// put sets the value at the path, makes what is missing on the way, and returns the new node.
func put(node any, path []string, value any) (any, error) {
	if len(path) == 0 {
		return value, nil
	}
	token := path[0]
	switch n := node.(type) {
	case nil:
		if token == "-" {
			return put([]any{}, path, value)
		}
		return put(map[string]any{}, path, value)
	case map[string]any:
		v, err := put(n[token], path[1:], value)
		n[token] = v
		return n, err
	case []any:
		i, err := strconv.Atoi(token)
		if token == "-" {
			i, err = len(n), nil
		}
		if err != nil || i < 0 || i > len(n) {
			return nil, fmt.Errorf("%.80q is no place in an array of %d", token, len(n))
		}
		if i == len(n) {
			n = append(n, nil)
		}
		v, err := put(n[i], path[1:], value)
		n[i] = v
		return n, err
	}
	return nil, fmt.Errorf("there is neither an object nor an array to hold %.80q", strings.Join(slices.Clone(path), "/"))
}
