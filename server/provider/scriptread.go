package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"agentd/server/fault"
)

// A scriptReader collects everything that is wrong with a script while it is read.
type scriptReader struct{ issues []fault.Issue }

// A member reads the value of a key; path leads to the value, which is valid JSON.
type member func(raw json.RawMessage, path []any)

func (r *scriptReader) problem(path []any, format string, args ...any) {
	r.issues = append(r.issues, fault.At(fmt.Sprintf(format, args...), path...))
}

// object reads an object, each key at most once and none but the members', and tells which it found.
func (r *scriptReader) object(raw json.RawMessage, path []any, members map[string]member, required ...string) map[string]bool {
	found := map[string]bool{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		r.problem(path, "must be an object")
		return found
	}
	for dec.More() {
		token, _ := dec.Token() // no error is possible in valid JSON
		key, _ := token.(string)
		var value json.RawMessage
		_ = dec.Decode(&value)
		switch read, ok := members[key]; {
		case !ok:
			r.problem(below(path, key), "is not known here; known are %s", strings.Join(slices.Sorted(maps.Keys(members)), ", "))
		case found[key]:
			r.problem(below(path, key), "is given twice")
		default:
			read(value, below(path, key))
		}
		found[key] = true
	}
	for _, key := range required {
		if !found[key] {
			r.problem(below(path, key), "is missing")
		}
	}
	return found
}

func (r *scriptReader) list(each member) member {
	return func(raw json.RawMessage, path []any) {
		var elements []json.RawMessage
		if raw[0] != '[' || json.Unmarshal(raw, &elements) != nil {
			r.problem(path, "must be a list")
		}
		for i, e := range elements {
			each(e, below(path, i))
		}
	}
}

func (r *scriptReader) text(to *string) member {
	return func(raw json.RawMessage, path []any) {
		if raw[0] != '"' || json.Unmarshal(raw, to) != nil {
			r.problem(path, "must be a string")
		}
	}
}

func (r *scriptReader) pattern(to **regexp.Regexp) member {
	return func(raw json.RawMessage, path []any) {
		var expr string
		r.text(&expr)(raw, path)
		var err error
		if *to, err = regexp.Compile(expr); err != nil {
			r.problem(path, "is no regular expression: %v", err)
		}
	}
}

func (r *scriptReader) whole(to *int64, lowest int64) member {
	return func(raw json.RawMessage, path []any) {
		if json.Unmarshal(raw, to) != nil || string(raw) == "null" || *to < lowest {
			r.problem(path, "must be a whole number, %d or more", lowest)
		}
	}
}

// maxDelay bounds the delays of a script.
const maxDelay = 10 * time.Minute

func (r *scriptReader) millis(to *time.Duration) member {
	return func(raw json.RawMessage, path []any) {
		var ms int64
		if json.Unmarshal(raw, &ms) != nil || string(raw) == "null" || ms < 0 || ms > maxDelay.Milliseconds() {
			r.problem(path, "must be a whole number from 0 to %d", maxDelay.Milliseconds())
		}
		*to = time.Duration(ms) * time.Millisecond
	}
}

func oneOf[T ~string](r *scriptReader, to *T, allowed ...T) member {
	return func(raw json.RawMessage, path []any) {
		if json.Unmarshal(raw, to) != nil || !slices.Contains(allowed, *to) {
			r.problem(path, "must be one of %q", allowed)
		}
	}
}

// below is the path of a key or an index inside path.
func below(path []any, step any) []any { return append(slices.Clip(path), step) }

// position says where a text stops to be JSON.
func position(text []byte, err error) string {
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	if !ok {
		return ""
	}
	before := text[:min(max(0, int(syntax.Offset)-1), len(text))]
	line := bytes.Count(before, []byte("\n"))
	return fmt.Sprintf(" at line %d, column %d", line+1, len(before)-bytes.LastIndexByte(before, '\n'))
}
