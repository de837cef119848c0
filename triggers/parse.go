package triggers

import (
	"fmt"
	"strconv"
	"strings"
)

// A SyntaxError reports the first fault of a cron text.
type SyntaxError struct {
	Field   string // "minute", "hour", "day of month", "month" or "day of week"; empty if the fault is in no single field
	Offset  int    // of the byte at which the faulty part begins
	Problem string
}

func (e *SyntaxError) Error() string {
	if e.Field == "" {
		return "cron text: " + e.Problem
	}
	return fmt.Sprintf("%s, at character %d: %s", e.Field, e.Offset+1, e.Problem)
}

// maxText is the greatest length of a cron text. All values of all fields as lists have about 400 bytes.
const maxText = 1000

// A field is one of the five fields of a cron text.
type field struct {
	name        string
	first, last int
	most        int    // greatest value that may be written
	names       string // three letters each, for the values from first on
	wrap        string // what to write instead of a range that descends
}

var fields = [5]field{
	{name: "minute", last: 59, most: 59},
	{name: "hour", last: 23, most: 23},
	{name: "day of month", first: 1, last: 31, most: 31},
	{name: "month", first: 1, last: 12, most: 12, names: "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC"},
	{name: "day of week", last: 6, most: 7, names: "SUNMONTUEWEDTHUFRISAT", wrap: "; write 7 for a Sunday at the end"},
}

// shorthands are the texts with a name.
var shorthands = map[string]string{
	"@hourly":  "0 * * * *",
	"@daily":   "0 0 * * *",
	"@weekly":  "0 0 * * 0",
	"@monthly": "0 0 1 * *",
	"@yearly":  "0 0 1 1 *",
}

// Parse reads a cron text. An error is a [*SyntaxError].
func Parse(text string) (Cron, error) {
	if len(text) > maxText {
		return Cron{}, &SyntaxError{Problem: fmt.Sprintf("it has %d bytes, and at most %d are allowed", len(text), maxText)}
	}
	if trimmed := strings.Trim(text, " \t"); strings.HasPrefix(trimmed, "@") {
		full, ok := shorthands[trimmed]
		if !ok {
			return Cron{}, &SyntaxError{Offset: strings.IndexByte(text, '@'),
				Problem: strconv.Quote(trimmed) + " is not one of @hourly, @daily, @weekly, @monthly and @yearly"}
		}
		text = full
	}
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(parts) != len(fields) {
		return Cron{}, &SyntaxError{Problem: fmt.Sprintf("it has %d fields, not the five minute, hour, day of month, month and day of week", len(parts))}
	}
	var sets [len(fields)]uint64
	at := 0
	for i, part := range parts {
		at += strings.Index(text[at:], part)
		set, err := fields[i].parse(part, at)
		if err != nil {
			return Cron{}, err
		}
		sets[i] = set
		at += len(part)
	}
	fixed := parts[0][0] != '*' && parts[1][0] != '*'
	return Cron{minutes: sets[0], hours: uint32(sets[1]), days: uint32(sets[2]), months: uint16(sets[3]), weekdays: uint8(sets[4]), fixed: fixed}, nil
}

// parse returns the values of a field, bit n for n. The text begins at an offset of the whole.
func (f *field) parse(text string, offset int) (set uint64, err error) {
	for element := range strings.SplitSeq(text, ",") {
		s, problem := f.element(element)
		if problem != "" {
			return 0, &SyntaxError{Field: f.name, Offset: offset, Problem: problem}
		}
		set |= s
		offset += len(element) + 1
	}
	return set, nil
}

// element returns the values of an element of a list, or what is wrong with it.
func (f *field) element(text string) (set uint64, problem string) {
	values, stepText, stepped := strings.Cut(text, "/")
	firstText, lastText, ranged := strings.Cut(values, "-")
	first, last, step := f.first, f.last, 1
	if values != "*" {
		if first, problem = f.value(firstText); problem != "" {
			return 0, problem
		}
		switch {
		case ranged:
			if last, problem = f.value(lastText); problem != "" {
				return 0, problem
			}
			if first > last {
				return 0, fmt.Sprintf("%q descends%s", values, f.wrap)
			}
		case stepped && first > last:
			return 0, fmt.Sprintf("%q begins after the last day; write 0 for a Sunday from which steps begin", text)
		case !stepped:
			last = first
		}
	}
	if stepped {
		n, ok := number(stepText)
		if span := f.last - f.first + 1; !ok || n < 1 || n > span {
			return 0, fmt.Sprintf("the step %q is not a number from 1 to %d", stepText, span)
		}
		step = n
	}
	for v := first; v <= last; v += step {
		if v > f.last {
			set |= 1 << f.first // 7 is Sunday
		} else {
			set |= 1 << v
		}
	}
	return set, ""
}

// value reads a number or a name.
func (f *field) value(text string) (v int, problem string) {
	if n, ok := number(text); ok && n >= f.first && n <= f.most {
		return n, ""
	}
	if i := strings.Index(f.names, strings.ToUpper(text)); len(text) == 3 && i >= 0 && i%3 == 0 {
		return f.first + i/3, ""
	}
	names := ""
	if f.names != "" {
		names = fmt.Sprintf(" or a name from %s to %s", f.names[:3], f.names[len(f.names)-3:])
	}
	return 0, fmt.Sprintf("%q is not a number from %d to %d%s", text, f.first, f.most, names)
}

// number reads one or two decimal digits.
func number(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 8)
	return int(n), err == nil && len(text) <= 2
}
