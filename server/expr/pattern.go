package expr

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

// A pattern is a regular expression.
type pattern struct {
	source string
	re     *regexp.Regexp
	states int // about
}

// compilePattern returns what is wrong with a pattern. It refuses a large one before it compiles it.
func compilePattern(source string) (_ *pattern, problem string) {
	if len(source) > MaxPattern {
		return nil, fmt.Sprintf("A pattern has at most %d bytes.", MaxPattern)
	}
	tree, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return nil, fmt.Sprintf("The pattern is no regular expression: %v.", err)
	}
	states := count(tree)
	if states > MaxProgram {
		return nil, fmt.Sprintf("A pattern has at most %d states.", MaxProgram)
	}
	return &pattern{source, regexp.MustCompile(source), states}, "" // it has been parsed
}

// count is how many states a part of a pattern has, about. The parser bounds how deep and how often parts are repeated.
func count(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/4
	for _, sub := range re.Sub {
		n += count(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, MaxProgram+1)
}

func matches(c *frame, n *call, a []any) (any, *Error) {
	re, s := n.pattern, a[0].(string)
	if re == nil {
		source := a[1].(string)
		if c.last == nil || c.last.source != source {
			if err := c.makePattern(n.at, source); err != nil {
				return nil, err
			}
		}
		re = c.last
	}
	// To begin costs as much as two bytes.
	if err := c.step(n.at, (len(s)+2)*re.states>>5); err != nil {
		return nil, err
	}
	return re.re.MatchString(s), nil
}

// makePattern compiles a pattern that an evaluation has made, and keeps it until the next.
func (c *frame) makePattern(at int, source string) *Error {
	// What a pattern takes is known when it is compiled, and bounded before.
	if err := c.step(at, 4*(10+len(source))); err != nil {
		return err
	}
	re, problem := compilePattern(source)
	if problem != "" {
		return c.fail(at, "%s", problem)
	}
	c.last = re
	if err := c.make(at, 200*re.states); err != nil {
		return err
	}
	return c.step(at, 4*re.states)
}
