package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"agentd/server/fault"
)

// maxProblems bounds what one error lists; the rest is counted.
const maxProblems = 100

// A problem is one thing that is wrong, and where.
type problem struct {
	pos     pos    // in the file; zero where it did not come from one
	origin  string // file:line:column, variable or flag; empty where there is none
	path    []any
	message string
}

type problems struct {
	list []problem
	more int
}

// full reports whether further problems are only counted, so that nobody has to find words for them.
func (p *problems) full() bool { return len(p.list) == maxProblems }

func (p *problems) add(x problem) {
	if p.full() {
		p.more++
		return
	}
	x.path = slices.Clone(x.path)
	p.list = append(p.list, x)
}

// err is nil when there is no problem. Problems of the file come first, in its order.
func (p *problems) err(subject string) error {
	if len(p.list) == 0 {
		return nil
	}
	slices.SortStableFunc(p.list, func(a, b problem) int {
		inFile := func(x problem) int { return min(x.pos.line, 1) }
		return cmp.Or(inFile(b)-inFile(a), cmp.Compare(a.pos.line, b.pos.line), cmp.Compare(a.pos.col, b.pos.col))
	})
	issues := make([]fault.Issue, 0, len(p.list)+1)
	for _, x := range p.list {
		if x.origin != "" {
			x.message = x.origin + ": " + x.message
		}
		issues = append(issues, fault.At(x.message, x.path...))
	}
	if p.more > 0 {
		issues = append(issues, fault.At(fmt.Sprintf("and %d more", p.more)))
	}
	if n := len(p.list) + p.more; n > 1 {
		return fault.Invalid(fmt.Sprintf("%s has %d problems.", subject, n), issues...)
	}
	return fault.Invalid(subject+" has a problem.", issues...)
}

// paths is the set of places that have a problem already.
func (p *problems) paths() pathSet {
	s := pathSet{}
	for _, x := range p.list {
		s[dotted(x.path)] = true
	}
	return s
}

type pathSet map[string]bool

// cover reports whether path or a place that holds it is in the set. The root is not counted: what is wrong with the
// document as a whole says nothing about one field.
func (s pathSet) cover(path []any) bool {
	for n := len(path); n > 0; n-- {
		if s[dotted(path[:n])] {
			return true
		}
	}
	return false
}

func appendElement(b *strings.Builder, e any) {
	switch e := e.(type) {
	case string:
		b.WriteString(e)
	case int:
		b.WriteString(strconv.Itoa(e))
	}
}

// under is path and more elements, in a slice of its own.
func under(path []any, more ...any) []any { return slices.Concat(path, more) }

// quoted shows a text of the configuration in a message, shortened.
func quoted(s string) string {
	if r := []rune(s); len(r) > 40 {
		s = string(r[:40]) + "…"
	}
	return strconv.Quote(s)
}

// didYouMean completes a message with what [fault.Nearest] found, if anything.
func didYouMean(best string) string {
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}
