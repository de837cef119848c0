package runstate

import (
	"encoding/json"
	"iter"
	"slices"
	"strconv"
	"strings"

	"agentd/server/message"
)

// A value is the text of one valid JSON value without white space around it. Members and elements are parts of it, so
// that a large value costs nothing before somebody looks into it.
type value string

func (v value) isObject() bool { return v[0] == '{' }
func (v value) isArray() bool  { return v[0] == '[' }
func (v value) isString() bool { return v[0] == '"' }

// absent reports whether the value of an optional member is as good as none.
func (v value) absent() bool { return v == "" || v == "null" }

// text is the string that v stands for. It does not keep the rest of the document alive.
func (v value) text() string {
	if !strings.Contains(string(v), `\`) {
		return strings.Clone(string(v[1 : len(v)-1]))
	}
	var s string
	json.Unmarshal([]byte(v), &s) //nolint:errcheck // a valid string
	return s
}

// raw is v in compact form, as a copy.
func (v value) raw() json.RawMessage {
	b, _ := message.Encode(json.RawMessage(v)) // valid
	return b
}

// members yields the members of an object.
func (v value) members() iter.Seq2[string, value] {
	return func(yield func(string, value) bool) {
		for i := v.next(1); v[i] != '}'; i = v.next(i) {
			end := v.stringEnd(i)
			key := v[i:end].key()
			i = v.next(end)
			end = v.end(i)
			if !yield(key, v[i:end]) {
				return
			}
			i = end
		}
	}
}

// key is text for a name that is looked at and not kept.
func (v value) key() string {
	if inner := string(v[1 : len(v)-1]); !strings.Contains(inner, `\`) {
		return inner
	}
	return v.text()
}

// elements yields the elements of an array.
func (v value) elements() iter.Seq[value] {
	return func(yield func(value) bool) {
		for i := v.next(1); v[i] != ']'; i = v.next(i) {
			end := v.end(i)
			if !yield(v[i:end]) {
				return
			}
			i = end
		}
	}
}

// member returns a member of an object, "" when it has none of that name.
func (v value) member(name string) value {
	for key, m := range v.members() {
		if key == name {
			return m
		}
	}
	return ""
}

// next is the place of the next token at or after i that is not punctuation between members.
func (v value) next(i int) int {
	for i < len(v) && strings.IndexByte(" \t\r\n,:", v[i]) >= 0 {
		i++
	}
	return i
}

// stringEnd is the place after the string that begins at i.
func (v value) stringEnd(i int) int {
	for i++; v[i] != '"'; i++ {
		if v[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// end is the place after the value that begins at i.
func (v value) end(i int) int {
	depth := 0
	for ; i < len(v); i++ {
		switch v[i] {
		case '"':
			i = v.stringEnd(i) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			if depth > 0 {
				continue
			}
			for i+1 < len(v) && strings.IndexByte(" \t\r\n,]}", v[i+1]) < 0 {
				i++
			}
		}
		if depth == 0 {
			return i + 1
		}
	}
	return i
}

// A survey walks a whole document once, before anybody reads it, and reports what makes it ambiguous or too deep.
type survey struct {
	doc    value
	path   []any
	report func(problem string, path []any)
}

// value walks the value that begins at i and returns the place after it.
func (s *survey) value(i int) int {
	if len(s.path) > maxNesting {
		s.report("is nested too deeply", s.path)
		return s.doc.end(i)
	}
	switch s.doc[i] {
	case '{':
		return s.object(i)
	case '[':
		i = s.doc.next(i + 1)
		for n := 0; s.doc[i] != ']'; n++ {
			s.path = append(s.path, n)
			i = s.doc.next(s.value(i))
			s.path = s.path[:len(s.path)-1]
		}
		return i + 1
	}
	return s.doc.end(i)
}

func (s *survey) object(i int) int {
	var seen names
	for i = s.doc.next(i + 1); s.doc[i] != '}'; {
		end := s.doc.stringEnd(i)
		key := s.doc[i:end].key()
		s.path = append(s.path, key)
		if !seen.add(key) {
			s.report("is there twice", s.path)
		}
		i = s.doc.next(s.value(s.doc.next(end)))
		s.path = s.path[:len(s.path)-1]
	}
	return i + 1
}

// names is a set of member names. Names that count up from "0", which a byte array of an old writer has by the
// million, take no space.
type names struct {
	count int // "0" to count-1 are in the set
	few   []string
	many  map[string]bool
}

// add reports whether name was not in the set yet.
func (n *names) add(name string) bool {
	var buf [20]byte
	counting := name == string(strconv.AppendInt(buf[:0], int64(n.count), 10))
	if i, ok := index(name); ok && i < n.count || n.many[name] || slices.Contains(n.few, name) {
		return false
	}
	switch {
	case counting:
		n.count++
	case len(n.few) < 16:
		n.few = append(n.few, name)
	default:
		if n.many == nil {
			n.many = map[string]bool{}
		}
		n.many[name] = true
	}
	return true
}

// index is the number that s is the canonical decimal form of.
func index(s string) (int, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	i, err := strconv.Atoi(s)
	return i, err == nil
}
