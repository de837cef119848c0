package recording

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"agentd/server/fault"
	"agentd/server/jsonlines"
)

// Limits of a file that is read, in bytes.
const (
	maxLine = 64 << 20
	maxFile = 256 << 20
)

// Versions that are read.
const (
	newestMajor = 1
	oldestMajor = newestMajor - 2
)

// Read reads a file whole and checks it. Errors: cassette-invalid, cassette-schema-too-new, cassette-schema-unsupported,
// cassette-cursor-violation, cassette-checksum-mismatch, and those of src. A file has at most 256 MiB, and its lines 64;
// memory is at most five hundred bytes for each byte, of which parts of messages that hold nothing need most.
func Read(src io.Reader) (*Recording, error) {
	r := &reader{sum: jsonlines.NewBody(), seen: map[string]bool{}}
	for line, err := range jsonlines.Read(src, maxLine, maxFile) {
		r.number++
		switch {
		case err == jsonlines.ErrLine:
			return nil, r.invalid("Line %d is longer than %d MiB.", r.number, maxLine>>20)
		case err == jsonlines.ErrFile:
			return nil, r.invalid("It is larger than %d MiB.", maxFile>>20)
		case err != nil:
			return nil, err
		case len(bytes.TrimSpace(line)) == 0:
			continue
		}
		if err := r.take(line); err != nil {
			return nil, err
		}
	}
	switch {
	case r.rec.Meta.Kind == "":
		return nil, r.invalid("It is empty.")
	case r.footer.Kind == "":
		return nil, r.invalid("It is cut off: its last line is missing.")
	}
	return &r.rec, nil
}

type reader struct {
	number int // of the line
	rec    Recording
	footer Footer
	sum    *jsonlines.Body
	step   int
	seen   map[string]bool // calls of that step
	kept   int             // messages of the model call before
}

func (r *reader) invalid(format string, args ...any) error {
	return fault.New(fault.CassetteInvalid, "The recording is not usable. "+format, args...)
}

// take reads a line by its kind.
func (r *reader) take(line []byte) error {
	var head struct{ Kind string }
	if err := json.Unmarshal(line, &head); err != nil || head.Kind == "" {
		return r.invalid("Line %d is no JSON object with a kind.", r.number)
	}
	switch {
	case r.footer.Kind != "":
		return r.invalid("Line %d comes after the footer.", r.number)
	case r.rec.Meta.Kind == "" && head.Kind != "meta":
		return r.invalid("Its first line is a %.40q, want meta.", head.Kind)
	case r.rec.Meta.Kind == "":
		if err := r.decode(line, &r.rec.Meta); err != nil {
			return err
		}
		return r.rec.Meta.check(r)
	case head.Kind == "footer":
		if err := r.decode(line, &r.footer); err != nil {
			return err
		}
		return r.close()
	}
	r.sum.Add(line)
	return r.body(head.Kind, line)
}

func (r *reader) body(kind string, line []byte) error {
	rec := &r.rec
	switch kind {
	case "meta":
		return r.invalid("Line %d is a second meta line.", r.number)
	case "input":
		return once(r, kind, line, &rec.Input)
	case "result":
		return once(r, kind, line, &rec.Result)
	case "model-call":
		c, err := add(r, line, &rec.ModelCalls)
		switch {
		case err != nil:
			return err
		case c.Kept < 0 || c.Kept > r.kept:
			return r.invalid("Line %d keeps %d messages of the %d before.", r.number, c.Kept, r.kept)
		}
		r.kept = c.Kept + len(c.Messages)
		return r.cursor(c.StepNumber, "the model call")
	case "tool-call":
		c, err := add(r, line, &rec.ToolCalls)
		switch {
		case err != nil:
			return err
		case c.ToolCallID == "" || c.ToolName == "":
			return r.invalid("Line %d names no tool call.", r.number)
		}
		return r.cursor(c.StepNumber, fmt.Sprintf("the call %.130q", c.ToolCallID))
	case "approval":
		a, err := add(r, line, &rec.Approvals)
		if err != nil {
			return err
		}
		return r.cursor(a.StepNumber, "")
	case "tool-search-resolved", "model-fallback", "compaction", "progress-artifact-ref", "audit":
		return nil // known, and of no use to us
	}
	const most = 20
	if len(rec.Warnings) < most {
		rec.Warnings = append(rec.Warnings, fmt.Sprintf("line %d is of the kind %.40q, which this version does not know, and is skipped", r.number, kind))
	}
	return nil
}

// once decodes a line of which a file has one.
func once[T any](r *reader, kind string, line []byte, to **T) error {
	if *to != nil {
		return r.invalid("Line %d is a second %s line.", r.number, kind)
	}
	*to = new(T)
	return r.decode(line, *to)
}

// add decodes a line of which a file has many.
func add[T any](r *reader, line []byte, list *[]T) (v T, err error) {
	err = r.decode(line, &v)
	*list = append(*list, v)
	return v, err
}

func (r *reader) decode(line []byte, to any) error {
	if err := json.Unmarshal(line, to); err != nil {
		why := "is not what its kind needs"
		if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			why = fmt.Sprintf("has a %.60q that cannot be a %s", t.Field, t.Value)
		}
		return r.invalid("Line %d %s.", r.number, why)
	}
	return nil
}

// check refuses other formats and versions.
func (m *Meta) check(r *reader) error {
	if m.Format != Format {
		return r.invalid("Its format is %.60q, want %q.", m.Format, Format)
	}
	major, _, _ := strings.Cut(m.Version, ".")
	n, err := strconv.Atoi(major)
	switch {
	case err != nil || n < 0:
		return r.invalid("Its version is %.40q.", m.Version)
	case n > newestMajor:
		return fault.New(fault.CassetteTooNew, "The recording has version %.40q; agentd reads versions up to %d.", m.Version, newestMajor)
	case n < oldestMajor:
		return fault.New(fault.CassetteUnsupported, "The recording has version %.40q; agentd reads versions from %d on.", m.Version, oldestMajor)
	}
	return nil
}

// cursor checks that steps do not go backwards and that a call occurs once in a step.
func (r *reader) cursor(step int, call string) error {
	switch {
	case step < r.step:
		return fault.New(fault.CassetteCursorViolation, "Line %d of the recording goes back from step %d to step %d.", r.number, r.step, step)
	case step > r.step:
		r.step = step
		clear(r.seen)
	}
	if call != "" && r.seen[call] {
		return fault.New(fault.CassetteCursorViolation, "Line %d of the recording repeats %s of step %d.", r.number, call, step)
	}
	r.seen[call] = true
	return nil
}

// close compares the footer with the lines. Some writers count the lines between the first and the last only.
func (r *reader) close() error {
	f := r.footer
	if n := r.sum.Lines; f.RecordCount != n+2 && f.RecordCount != n {
		return r.invalid("It has %d lines, and its footer counts %d.", n+2, f.RecordCount)
	}
	if f.ToolCallCount != len(r.rec.ToolCalls) {
		return r.invalid("It has %d tool calls, and its footer counts %d.", len(r.rec.ToolCalls), f.ToolCallCount)
	}
	if sum := r.sum.Checksum(); cmp.Or(f.Checksum, sum) != sum {
		return fault.New(fault.CassetteChecksum, "Somebody changed the recording: its checksum does not match.")
	}
	return nil
}
