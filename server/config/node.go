package config

import (
	"encoding/json"
	"fmt"
	"strings"
)

// A node is one JSON value and where it stands. Members keep their order; of duplicate keys the first is kept.
type node struct {
	kind    nodeKind
	pos     pos
	text    string // a string's value, a number's literal, true or false
	items   []*node
	members []member
}

type member struct {
	key   string
	pos   pos // of the key
	value *node
}

type nodeKind uint8

const (
	nullNode nodeKind = iota
	boolNode
	numberNode
	stringNode
	arrayNode
	objectNode
)

// String names the kind for people.
func (k nodeKind) String() string {
	return [...]string{"null", "true or false", "a number", "text", "a list", "an object"}[k]
}

// pos is a place in a file: line and column count from 1, columns in characters. The zero value is no place.
type pos struct{ line, col int }

func (p pos) String() string { return fmt.Sprintf("%d:%d", p.line, p.col) }

// member finds a member by its key; nil if there is none or n is no object.
func (n *node) member(key string) *node {
	for _, m := range n.members {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// appendJSON appends n as compact JSON.
func (n *node) appendJSON(b []byte) []byte {
	switch n.kind {
	case nullNode:
		return append(b, "null"...)
	case stringNode:
		return append(b, encode(n.text)...)
	case arrayNode:
		b = append(b, '[')
		for i, item := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.appendJSON(b)
		}
		return append(b, ']')
	case objectNode:
		b = append(b, '{')
		for i, m := range n.members {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, encode(m.key)...), ':')
			b = m.value.appendJSON(b)
		}
		return append(b, '}')
	}
	return append(b, n.text...)
}

// encode is v as JSON on one line, with <, > and & as they are. It panics on what cannot be encoded, which the types
// of this package are not.
func encode(v any) []byte {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("config: " + err.Error())
	}
	return []byte(strings.TrimSuffix(b.String(), "\n"))
}
