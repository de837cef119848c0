// Package schema validates JSON against the subset of JSON Schema 2020-12 that models and MCP servers use.
//
// Asserted: boolean schemas; $ref to any place of the same document ("#", "#/$defs/x", "#/definitions/x",
// "#/properties/x", ...), also recursively; type (a name or a list), enum, const; properties, required,
// additionalProperties, patternProperties, propertyNames, minProperties, maxProperties, dependentRequired,
// dependentSchemas; items, prefixItems, contains, minContains, maxContains, minItems, maxItems, uniqueItems; minLength
// and maxLength (code points), pattern (RE2, not anchored); minimum, maximum, exclusiveMinimum, exclusiveMaximum,
// multipleOf; anyOf, oneOf, allOf, not, if, then, else.
//
// Accepted habits of other dialects: nullable (OpenAPI 3.0) admits null whatever else the schema says; a list as items
// with additionalItems (draft 7) means prefixItems with items.
//
// Refused by name, because ignoring them would change what a schema admits: unevaluatedProperties, unevaluatedItems,
// $dynamicRef, $recursiveRef, dependencies, extends, disallow, divisibleBy, references to other documents and to
// anchors, and patterns that RE2 does not know (look-around, back-references).
//
// Everything else is an annotation and ignored, format in every one of its values included.
//
// Numbers are compared exactly, as decimals of any size; 1.0 is an integer.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
)

// Limits of a schema and of one validation. Within them the work is bounded whatever the schema and the value are.
const (
	maxNodes   = 10_000    // sub-schemas of a document
	maxIssues  = 20        // reported by one Validate
	maxDepth   = 128       // levels of a value that are looked into
	maxNesting = 2_000     // sub-schemas applied inside each other, references included
	maxSteps   = 2_000_000 // sub-schemas applied, and the like, by one Validate
)

// A Schema is a compiled schema. It is immutable and safe for concurrent use.
type Schema struct{ root *node }

// An Issue is one problem at one place. Path is a JSON Pointer (RFC 6901), empty for the whole document; Message is
// short and in words that a model can act on.
type Issue struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// String is "path: message", or the message alone for the whole document.
func (i Issue) String() string {
	if i.Path == "" {
		return i.Message
	}
	return i.Path + ": " + i.Message
}

// Join is the issues in one line.
func Join(issues []Issue) string {
	lines := make([]string, len(issues))
	for i, is := range issues {
		lines[i] = is.String()
	}
	return strings.Join(lines, "; ")
}

// An Error says why a schema cannot be used: every problem, with its place in the schema.
type Error struct{ Issues []Issue }

func (e *Error) Error() string { return "schema: " + Join(e.Issues) }

// Compile reads a schema. The error is an [*Error]. The caller bounds the size of what may come from others: a schema of
// two bytes becomes a node, so memory is up to six hundred bytes for each byte.
func Compile(raw json.RawMessage) (*Schema, error) {
	doc, err := decode(raw)
	if err != nil {
		return nil, &Error{Issues: []Issue{{Message: "not JSON: " + err.Error()}}}
	}
	c := compiler{doc: doc, nodes: map[string]*node{}}
	root := c.compile("", doc)
	c.checkLoops()
	if c.refs && c.nestedID != "" {
		c.problem(c.nestedID, "$id below the root is not supported beside $ref: it changes what references mean")
	}
	if len(c.issues) > 0 {
		slices.SortStableFunc(c.issues, func(a, b Issue) int { return strings.Compare(a.Path, b.Path) })
		return nil, &Error{Issues: c.issues}
	}
	return &Schema{root: root}, nil
}

// Validate returns what is wrong with value: nothing when it matches, at most 20 issues when it does not. A value that
// is nested deeper than 128 levels where the schema looks, or that takes more than two million steps to check, does
// not match.
func (s *Schema) Validate(value json.RawMessage) []Issue {
	v, err := decode(value)
	if err != nil {
		return []Issue{{Message: "not JSON: " + err.Error()}}
	}
	b := budget{steps: maxSteps}
	c := check{budget: &b, limit: maxIssues}
	c.value(s.root, v)
	if b.exceeded != nil {
		return []Issue{*b.exceeded}
	}
	return c.issues
}

// decode keeps numbers as they are written. Of members with the same name the last one counts, as everywhere in Go.
func decode(raw []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("empty")
		}
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("text after the value")
	}
	return v, nil
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// pointer appends a reference token to a JSON Pointer.
func pointer(base, token string) string { return base + "/" + pointerEscapes.Replace(token) }
