package runstate

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

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
	return tree.write(nil, value(b), true, nil), nil
}

// Plain is a value with the same JSON as s. It has no method that would slow the encoding, unless Extra holds
// something. Child runs in it are encoded as usual.
func (s State) Plain() any {
	if len(s.Extra) > 0 {
		return s
	}
	return plain(s)
}

// What identifies the elements of lists that shrink.
var (
	approvalIDs = []string{"subRunToolCallId", "toolCallId"}
	subRunIDs   = []string{"toolCallId"}
	todoIDs     = []string{"id"}
)

// idsOf is what identifies the elements of a list in a state, nil where it is their index.
func idsOf(list string) []string {
	switch list {
	case "pendingApprovals":
		return approvalIDs
	case "pendingSubRuns":
		return subRunIDs
	case "todos":
		return todoIDs
	}
	return nil
}

// nameOf is what Extra calls an element of a list: its identity, or its index where the list has no identities.
func nameOf(element value, i int, ids []string) string {
	if ids == nil || !element.isObject() {
		return strconv.Itoa(i)
	}
	var parts []string
	for _, name := range ids {
		if v := element.member(name); v != "" && v.isString() && v != `""` {
			parts = append(parts, v.text())
		}
	}
	return strings.Join(parts, "/")
}

var (
	escape   = strings.NewReplacer("~", "~0", "/", "~1")
	unescape = strings.NewReplacer("~1", "/", "~0", "~")
)

// A node stands for an object or a list on the way to unknown members. A nil node stands for one without any.
type node struct {
	kids map[string]*node
	own  value // an object: the unknown members of this one
}

// grow makes a tree of the pointers in extra.
func grow(extra map[string]json.RawMessage) (*node, error) {
	root := &node{}
	for pointer, members := range extra {
		if pointer != "" && pointer[0] != '/' {
			return nil, fmt.Errorf("Extra has %q, which is no JSON Pointer", pointer)
		}
		own := value(strings.TrimSpace(string(members)))
		if !json.Valid(members) || !own.isObject() {
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
		n.own = own
	}
	return root, nil
}

// write appends v with the unknown members of n. state says that v is the state itself, ids what identifies the
// elements of v.
func (n *node) write(dst []byte, v value, state bool, ids []string) []byte {
	switch {
	case n == nil:
		return append(dst, v...)
	case v.isObject():
		return n.writeObject(dst, v, state)
	case v.isArray():
		dst = append(dst, '[')
		i := 0
		for e := range v.elements() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = n.kids[nameOf(e, i, ids)].write(dst, e, false, nil)
			i++
		}
		return append(dst, ']')
	}
	return append(dst, v...)
}

func (n *node) writeObject(dst []byte, v value, state bool) []byte {
	dst = append(dst, '{')
	known := map[string]bool{}
	for name, m := range v.members() {
		known[name] = true
		var ids []string
		if state {
			ids = idsOf(name)
		}
		dst = appendName(dst, name)
		dst = n.kids[name].write(dst, m, false, ids)
	}
	if n.own != "" {
		for name, m := range n.own.members() {
			if !known[name] {
				dst = appendMember(dst, name, m)
			}
		}
	}
	return append(dst, '}')
}

// appendMember appends a member to the beginning of an object.
func appendMember(dst []byte, name string, v value) []byte {
	return append(appendName(dst, name), v...)
}

func appendName(dst []byte, name string) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	quoted, _ := message.Encode(name)
	return append(append(dst, quoted...), ':')
}
