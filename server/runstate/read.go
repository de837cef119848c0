package runstate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentd/server/canonical"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/shape"
)

// Limits of what is read.
const (
	maxDepth   = 32   // child runs within child runs
	maxNesting = 1000 // arrays and objects, so that what is read can be encoded inside something else
)

// Read reads a run's state of any version that the package comment lists and brings it to 1.2.
//
// Errors are [fault.RunStateMalformed], and [fault.RunStateVersionUnsupported] when the state or a pending child run
// of it has a major version above 1. Their issues name the place of every problem; of more than 100 they name the
// first 100 and count the others. Child runs nest at most 32 deep, lists and objects 1000.
//
// The caller bounds the size of data. Time is linear in it, but for a factor of the depth of child runs; memory is at
// worst a hundred bytes per byte, and a dozen for a real state. The result shares nothing with data.
func Read(data []byte) (*State, error) {
	r := &reader{}
	r.Reader = shape.Reader{MaxDepth: maxNesting, Kept: r.keep, After: r.finish, Before: map[reflect.Type]func([]any, []byte) []byte{
		reflect.TypeFor[State]():         r.begin,
		reflect.TypeFor[message.Bytes](): envelope,
	}}
	s, form := &State{}, shape.Of(reflect.TypeFor[State]())
	var compact bytes.Buffer
	switch err := json.Compact(&compact, data); {
	case !utf8.Valid(data):
		r.Report("", "is not UTF-8")
	case len(bytes.TrimSpace(data)) == 0:
		r.Report("", "is not valid JSON: "+err.Error())
	case err != nil:
		r.Reader.Read(data, form, s) // reports where
	default:
		if doc := r.begin(nil, compact.Bytes()); doc != nil {
			r.Reader.Read(doc, form, s)
		}
	}
	issues := r.Issues()
	if issues == nil {
		return s, nil
	}
	e := fault.New(fault.RunStateMalformed, "The run state cannot be read.")
	if r.unsupported {
		e = fault.New(fault.RunStateVersionUnsupported, "The run state, or a child run in it, has a major version above 1.")
	}
	e.Issues = issues
	return nil, e
}

// A reader reads one document.
type reader struct {
	shape.Reader
	states      [][]unknown // of the state that is being read and of those around it, outermost first
	unsupported bool
}

// unknown members are those of one object. The path begins at its state.
type unknown struct {
	path    []any
	members json.RawMessage
}

// depthOf returns how many child runs a path leads into.
func depthOf(path []any) (depth int) {
	for len(path) >= 3 && path[0] == "pendingSubRuns" && path[2] == "state" {
		depth, path = depth+1, path[3:]
	}
	return depth
}

// begin checks the version of a state, and adds to a state of version 1.0 the lists that it did not have.
func (r *reader) begin(path []any, state []byte) []byte {
	label, absent := "", []string{"pendingApprovals", "handoffs"}
	for name, v := range canonical.Members(state) {
		if name == "version" {
			label = canonical.Text(v)
		}
		if string(v) != "null" {
			absent = slices.DeleteFunc(absent, func(n string) bool { return n == name })
		}
	}
	depth := depthOf(path)
	if depth > maxDepth {
		r.Report("", "want at most 32 child runs in each other", path...)
		return nil
	}
	r.states = append(r.states[:depth], nil)
	if state[0] != '{' {
		return state
	}
	major, minor, ok := version(label)
	switch {
	case !ok:
		r.Report("", "want svc-run-state/ and a version such as 1.2", append(path, "version")...)
		return nil
	case major != "" && major != "1":
		r.unsupported = true
		r.Report("", "this version of agentd does not read it", append(path, "version")...)
		return nil
	case absent == nil || major == "1" && minor != "":
		return state
	}
	whole := []byte{'{'}
	for name, v := range canonical.Members(state) {
		if !slices.Contains(absent, name) {
			whole = append(append(append(canonical.AppendText(whole, name), ':'), v...), ',')
		}
	}
	for _, name := range absent {
		whole = fmt.Appendf(whole, "%q:[],", name)
	}
	whole[len(whole)-1] = '}'
	return whole
}

// version reads a label. The numbers have no zeros at their beginning.
func version(label string) (major, minor string, ok bool) {
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	numbers, labelled := strings.CutPrefix(label, "svc-run-state/")
	major, minor, _ = strings.Cut(numbers, ".")
	ok = labelled && digits(major) && digits(minor)
	return strings.TrimLeft(major, "0"), strings.TrimLeft(minor, "0"), ok
}

// keep keeps the unknown members of an object.
func (r *reader) keep(path []any, members []byte) {
	depth := depthOf(path)
	r.states[depth] = append(r.states[depth], unknown{slices.Clone(path[3*depth:]), members})
}

// finish fills in what the object at a path leaves to others, and checks what tags cannot say.
func (r *reader) finish(path []any, v any) (member, problem string) {
	switch v := v.(type) {
	case *State:
		v.Version, v.CurrentAgentID = Version, cmp.Or(v.CurrentAgentID, v.AgentID)
		for i := range v.Steps {
			v.Steps[i].AgentID = cmp.Or(v.Steps[i].AgentID, v.AgentID)
		}
		if v.UsageByModel == nil {
			v.UsageByModel = map[string]message.ModelUsage{v.AgentID: {Usage: v.Usage, AttemptCount: 1}}
		}
		v.Extra = pointers(r.states[depthOf(path)])
	case *SubRun:
		v.TargetAgentName = cmp.Or(v.TargetAgentName, v.ToolName)
		if v.State.Version == "" {
			return "state", `"state" is missing`
		}
		r.name(path, v.ToolCallID)
	case *message.Approval:
		r.name(path, identity(v.SubRunToolCallID, v.ToolCallID))
	case *Todo:
		r.name(path, v.ID)
	case *Taint:
		if v.UntrustedSourceKinds == nil {
			v.UntrustedSourceKinds = []string{}
		}
	case *message.Bytes:
		if v.Enc == "url" && v.Href == "" {
			return "href", `"href" is missing`
		}
	}
	return "", ""
}

// name replaces the index of an element of a list by its identity, for the unknown members in it. Those are the latest of
// the state.
func (r *reader) name(path []any, identity string) {
	depth := depthOf(path)
	list, index := path[3*depth], path[3*depth+1]
	for _, u := range slices.Backward(r.states[depth]) {
		if len(u.path) < 2 || u.path[0] != list || u.path[1] != index {
			return
		}
		u.path[1] = identity
	}
}

// pointers makes [State.Extra].
func pointers(all []unknown) map[string]json.RawMessage {
	if all == nil {
		return nil
	}
	extra := make(map[string]json.RawMessage, len(all))
	for _, u := range all {
		var pointer strings.Builder
		for _, part := range u.path {
			pointer.WriteByte('/')
			escape.WriteString(&pointer, fmt.Sprint(part)) //nolint:errcheck // a Builder takes all
		}
		extra[pointer.String()] = u.members
	}
	return extra
}

// envelope returns binary data in its envelope, which writers before 1.2 left as a byte array. Anything else, such as
// the {} of a URL that was lost, and an envelope of an unknown kind, stays as it is, like an unknown member.
func envelope(_ []any, value []byte) []byte {
	var enc []byte
	for name, v := range canonical.Members(value) {
		if name == "enc" {
			enc = v
		}
	}
	switch string(enc) {
	case `"base64"`, `"url"`:
		return value
	case "":
		if data := byteArray(value); data != nil {
			return shape.Encode(message.Bytes{Enc: "base64", Data: data})
		}
	}
	return nil
}

// byteArray returns the bytes of an object that has the keys 0 to n-1, n above 0, and values from 0 to 255. For
// other values it returns nil.
func byteArray(value []byte) []byte {
	n := 0
	for range canonical.Members(value) {
		n++
	}
	if n == 0 {
		return nil
	}
	data, found := make([]byte, n), make([]bool, n)
	for key, v := range canonical.Members(value) {
		i, ok := index(key)
		octet, isNumber := index(string(v))
		if !ok || !isNumber || i >= n || found[i] || octet > 255 {
			return nil
		}
		data[i], found[i] = byte(octet), true
	}
	return data
}

// index is the number that s is the canonical decimal form of.
func index(s string) (int, bool) {
	i, err := strconv.Atoi(s)
	return i, err == nil && i >= 0 && strconv.Itoa(i) == s
}
