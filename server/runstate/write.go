package runstate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"agentd/server/canonical"
	"agentd/server/message"
)

// plain is State without its methods.
type plain State

// MarshalJSON writes the state with what Extra holds. It fails when a key of Extra is no JSON
// Pointer or a value no JSON object.
//
// encoding/json checks and copies what a method returns, which takes as long again as writing it. Where states are
// written often, give it [State.Plain] instead.
func (s State) MarshalJSON() ([]byte, error) {
	b, err := message.Encode(plain(s))
	if err != nil || len(s.Extra) == 0 {
		return b, err
	}
	tree, err := grow(s.Extra)
	if err != nil {
		return nil, err
	}
	return tree.write(nil, b, true, nil), nil
}

// Plain is a value with the same JSON as s. It has no method that would slow the encoding, unless Extra holds
// something. Child runs in it are encoded as usual.
func (s State) Plain() any {
	if len(s.Extra) > 0 {
		return s
	}
	return plain(s)
}

// idsOf returns the members that identify the elements of a list in a state, nil where the index does.
func idsOf(list string) []string {
	switch list {
	case "pendingApprovals":
		return []string{"subRunToolCallId", "toolCallId"}
	case "pendingSubRuns":
		return []string{"toolCallId"}
	case "todos":
		return []string{"id"}
	}
	return nil
}

// nameOf is what Extra calls an element of a list: its identity, or its index where the list has no identities.
func nameOf(element []byte, i int, ids []string) string {
	if ids == nil {
		return strconv.Itoa(i)
	}
	parts := make([]string, len(ids))
	for name, v := range canonical.Members(element) {
		if at := slices.Index(ids, name); at >= 0 {
			parts[at] = canonical.Text(v)
		}
	}
	return identity(parts...)
}

// identity joins the parts that are not empty.
func identity(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "/")
}

var (
	escape   = strings.NewReplacer("~", "~0", "/", "~1")
	unescape = strings.NewReplacer("~1", "/", "~0", "~")
)

// A node stands for an object or a list on the way to unknown members. A nil node stands for one without any.
type node struct {
	kids map[string]*node
	own  []byte // an object: the unknown members of this one
}

// grow makes a tree of the pointers in extra.
func grow(extra map[string]json.RawMessage) (*node, error) {
	root := &node{}
	for pointer, members := range extra {
		if pointer != "" && pointer[0] != '/' {
			return nil, fmt.Errorf("Extra has %q, which is no JSON Pointer", pointer)
		}
		var own bytes.Buffer
		if json.Compact(&own, members) != nil || own.Bytes()[0] != '{' {
			return nil, fmt.Errorf("what Extra holds at %q is no JSON object", pointer)
		}
		n := root
		for i, name := range strings.Split(pointer, "/") {
			if i == 0 {
				continue // nothing stands before the first slash
			}
			name = unescape.Replace(name)
			kid := n.kids[name]
			if kid == nil {
				kid = &node{}
				if n.kids == nil {
					n.kids = map[string]*node{}
				}
				n.kids[name] = kid
			}
			n = kid
		}
		n.own = own.Bytes()
	}
	return root, nil
}

// write appends v with the unknown members of n. state says that v is the state itself, ids what identifies the
// elements of v.
func (n *node) write(dst, v []byte, state bool, ids []string) []byte {
	switch {
	case n == nil:
	case v[0] == '{':
		return n.writeObject(dst, v, state)
	case v[0] == '[':
		dst = append(dst, '[')
		i := 0
		for e := range canonical.Elements(v) {
			dst = append(n.kids[nameOf(e, i, ids)].write(dst, e, false, nil), ',')
			i++
		}
		return append(bytes.TrimSuffix(dst, []byte(",")), ']')
	}
	return append(dst, v...)
}

func (n *node) writeObject(dst, v []byte, state bool) []byte {
	dst = append(dst, '{')
	known := map[string]bool{}
	for name, m := range canonical.Members(v) {
		known[name] = true
		var ids []string
		if state {
			ids = idsOf(name)
		}
		dst = append(canonical.AppendText(dst, name), ':')
		dst = append(n.kids[name].write(dst, m, false, ids), ',')
	}
	for name, m := range canonical.Members(n.own) {
		if !known[name] {
			dst = append(append(append(canonical.AppendText(dst, name), ':'), m...), ',')
		}
	}
	return append(bytes.TrimSuffix(dst, []byte(",")), '}')
}
