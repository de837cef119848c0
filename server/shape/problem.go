package shape

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentd/server/fault"
)

// Bounds of an answer that a document could make many times as large as itself; the problems beyond are counted.
const (
	maxProblems = 100
	maxNames    = 64 << 10 // bytes of the names in the paths: a long name can be above many problems
)

// A problem is one thing that is wrong, and where.
type problem struct {
	at      int    // in the file; -1: not in it
	origin  string // of what is not from the file: a variable or a flag
	path    []any
	message string
}

// Full reports whether further problems are only counted, so that nobody has to find words for them.
func (r *Reader) Full() bool { return len(r.problems) == maxProblems || r.names > maxNames }

func (r *Reader) add(p problem) {
	if r.Full() {
		r.more++
		return
	}
	for _, part := range p.path {
		if name, ok := part.(string); ok {
			r.names += len(name)
		}
	}
	if r.names > maxNames && r.problems != nil {
		r.more++
		return
	}
	p.path = slices.Clone(p.path)
	r.problems = append(r.problems, p)
}

// Problem reports what is wrong with the value at a path, unless something has been found wrong there or above it. It is
// placed where the nearest part of the path is that was given.
func (r *Reader) Problem(message string, path ...any) { r.ProblemWithin(message, -1, path...) }

// ProblemWithin is Problem about a place within the text at the path: offset counts the bytes of the text before it. If it
// is negative, the problem is about the whole value.
func (r *Reader) ProblemWithin(message string, offset int, path ...any) {
	if r.hidden == nil {
		r.hidden = map[string]bool{}
		for _, p := range r.problems {
			r.hidden[Dotted(p.path)] = true
		}
	}
	at, origin := -1, ""
	for n := len(path); n > 0; n-- {
		key := Dotted(path[:n])
		if r.hidden[key] {
			return
		}
		origin = cmp.Or(origin, r.set[key])
	}
	if origin == "" && r.data != nil && !r.Full() {
		at = within(r.data, find(r.data, path), offset)
	}
	r.add(problem{at, origin, path, message})
}

// Wrong reports whether something has been found wrong with the value at a path, or with a part of it.
func (r *Reader) Wrong(path ...any) bool {
	return slices.ContainsFunc(r.problems, func(p problem) bool {
		return len(p.path) >= len(path) && slices.Equal(p.path[:len(path)], path)
	})
}

// Report reports a problem of what is not from the document: origin names the variable or flag.
func (r *Reader) Report(origin, message string, path ...any) {
	r.add(problem{-1, origin, path, message})
}

// Issues returns what was found: the problems of a file in its order, and then those of variables and flags.
func (r *Reader) Issues() []fault.Issue {
	if len(r.problems) == 0 {
		return nil
	}
	if r.Name != "" {
		slices.SortStableFunc(r.problems, func(a, b problem) int {
			return cmp.Or(cmp.Compare(min(b.at, 0), min(a.at, 0)), cmp.Compare(a.at, b.at))
		})
	}
	issues := make([]fault.Issue, 0, len(r.problems)+1)
	for _, p := range r.problems {
		if r.Name != "" && p.at >= 0 {
			p.origin = r.Name + ":" + r.place(p.at)
		}
		if p.origin != "" {
			p.message = p.origin + ": " + p.message
		}
		issues = append(issues, fault.At(p.message, p.path...))
	}
	if r.more > 0 {
		issues = append(issues, fault.At(fmt.Sprintf("and %d more", r.more)))
	}
	return issues
}

// Count is how many problems there are.
func (r *Reader) Count() int { return len(r.problems) + r.more }

// place is line:column of an offset, both from 1 and columns in characters.
func (r *Reader) place(at int) string {
	before := r.source[:at]
	line := bytes.LastIndexByte(before, '\n') + 1
	return fmt.Sprintf("%d:%d", bytes.Count(before, []byte("\n"))+1, utf8.RuneCount(before[line:])+1)
}

// Dotted writes a path for people: server.cors.allowOrigins.0.
func Dotted(path []any) string {
	var b strings.Builder
	for i, part := range path {
		if i > 0 {
			b.WriteByte('.')
		}
		switch part := part.(type) {
		case string:
			b.WriteString(part)
		case int:
			b.WriteString(strconv.Itoa(part))
		}
	}
	return b.String()
}
