package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"agentd/server/canonical"
	"agentd/server/fault"
	"agentd/server/jsonlines"
	"agentd/server/message"
	"agentd/store"
)

const (
	// MaxImport is how many bytes an imported file may have. An import holds all of it in memory and stores it in one
	// transaction, for which other writers wait.
	MaxImport = 64 << 20

	maxLine     = 16 << 20
	maxProblems = 20
	maxSequence = 1 << 53 // JSON numbers are exact up to there

	// Arguments and results may be so deep; the record adds a few levels.
	maxNesting = message.MaxDepth + 10
)

// An archive is a whole and sound export.
type archive struct {
	session  store.Session
	messages []store.Message
	handoffs []store.Handoff
	warnings []string
}

// An archiveReader takes an export line by line.
type archiveReader struct {
	archive
	line     int
	body     *jsonlines.Body
	found    counts
	footer   *footerLine
	problems []fault.Issue
	notes    map[string]int // warnings, and how often each is due

	sequence int64              // of the latest message
	at       int64              // its time
	leftOut  store.Status       // and how its run ended, if later runs leave it out
	calls    []message.ToolCall // of the latest assistant message
	open     map[string][]int   // indices of the unanswered ones in calls, by id
	left     int                // how many those are
}

func readArchive(r io.Reader) (*archive, error) {
	a := &archiveReader{body: jsonlines.NewBody(), notes: map[string]int{}}
	for line, err := range jsonlines.Read(r, maxLine, MaxImport) {
		a.line++
		if err == nil {
			err = a.take(line)
		}
		switch {
		case err == jsonlines.ErrFile:
			return nil, tooLarge("The session export has more than %d MiB.", MaxImport>>20)
		case err == jsonlines.ErrLine:
			return nil, tooLarge("A line of the session export has more than %d MiB.", maxLine>>20)
		case err != nil:
			return nil, err
		case len(a.problems) >= maxProblems:
			return nil, a.invalid()
		}
	}
	if err := a.finish(); err != nil {
		return nil, err
	}
	return &a.archive, nil
}

func tooLarge(format string, args ...any) error {
	return fault.New(fault.BodyTooLarge, format, args...).Advise("Keep the file; agentd cannot import a session of this size.")
}

// problem notes what is wrong with the current line.
func (a *archiveReader) problem(format string, args ...any) {
	if len(a.problems) >= maxProblems {
		return
	}
	a.problems = append(a.problems, fault.At(fmt.Sprintf(format, args...), "line", a.line))
}

func (a *archiveReader) invalid() error {
	e := fault.New(fault.ExportFormat, "The file is not a session export that can be imported.")
	e.Issues = a.problems
	return e
}

// take takes one line with its end. It returns an error that makes the other lines irrelevant, and notes what else is
// wrong with the line.
func (a *archiveReader) take(line []byte) error {
	if a.footer != nil {
		if len(bytes.TrimSpace(line)) > 0 {
			a.problem("comes after the footer")
		}
		return nil
	}
	var head struct {
		Kind string
		Enc  *string
	}
	broken := ""
	if err := json.Unmarshal(line, &head); err != nil {
		broken = misread(err)
	} else if !utf8.Valid(line) {
		broken = "is not UTF-8 text"
	} else if canonical.Deeper(line, maxNesting) >= 0 {
		broken = fmt.Sprintf("is nested more than %d levels deep", maxNesting)
	}
	switch {
	case head.Enc != nil && head.Kind == "":
		return fault.New(fault.ExportEncrypted, "Line %d of the session export is encrypted.", a.line)
	case a.line == 1:
		return a.meta(line, head.Kind)
	case head.Kind == "footer":
		return a.end(line)
	}
	a.body.Add(line)
	if broken != "" {
		a.problem("%s", broken)
		return nil
	}
	switch head.Kind {
	case "session":
		record(a, line, a.takeSession)
	case "agent":
		a.found.Agents++
		record(a, line, a.takeAgent)
	case "message":
		a.found.Messages++
		record(a, line, a.takeMessage)
	case "handoff":
		a.found.Handoffs++
		record(a, line, a.takeHandoff)
	case "audit":
		a.notes["Audit entries left out, which this version does not keep in a session"]++
	case "":
		a.problem("has no kind")
	default:
		reason := fmt.Sprintf("Records of the unknown kind %.40q left out", head.Kind)
		if len(a.notes) >= maxProblems && a.notes[reason] == 0 {
			reason = "Records of more unknown kinds left out"
		}
		a.notes[reason]++
	}
	return nil
}

// record decodes a line for take, or notes what is wrong with it.
func record[T any](a *archiveReader, line []byte, take func(T)) {
	var v T
	if err := json.Unmarshal(line, &v); err != nil {
		a.problem("%s", misread(err))
		return
	}
	take(v)
}

// misread describes the error of decoding a line.
func misread(err error) string {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case ok && wrong.Field == "":
		return "is not a JSON object"
	case ok:
		return fmt.Sprintf("has a wrong type in %q: %s", wrong.Field, wrong.Value)
	}
	return "is not a record of its kind: " + err.Error()
}

// meta takes the first line. No other line counts if it is wrong.
func (a *archiveReader) meta(line []byte, kind string) error {
	var m metaLine
	if err := json.Unmarshal(line, &m); err != nil {
		a.problem("%s", misread(err))
		return a.invalid()
	}
	switch {
	case kind != "meta":
		a.problem("is not the meta record of a session export")
	case m.Format != exportFormat:
		a.problem("names the format %.60q, want %s", m.Format, exportFormat)
	}
	if a.problems != nil {
		return a.invalid()
	}
	text, minor, _ := strings.Cut(m.Version, ".")
	major, err := strconv.ParseUint(text, 10, 32)
	if _, minorErr := strconv.ParseUint(minor, 10, 32); err != nil || minorErr != nil || major < oldestMajor {
		return fault.New(fault.ExportUnsupported, "The session export has the version %.40q, want %d to %d.x.", m.Version, oldestMajor, exportMajor)
	}
	if major > exportMajor {
		return fault.New(fault.ExportTooNew, "The session export has the version %.40q; agentd reads versions up to %d.x.", m.Version, exportMajor)
	}
	return nil
}

func (a *archiveReader) end(line []byte) error {
	a.footer = &footerLine{}
	record(a, line, func(f footerLine) { a.footer = &f })
	if c := a.footer.Cipher; c != nil && string(c) != "null" {
		return fault.New(fault.ExportEncrypted, "The session export is encrypted.")
	}
	return nil
}

// finish checks what only the whole file shows.
func (a *archiveReader) finish() error {
	if a.footer == nil {
		a.line++
		a.problem("is missing: a session export ends with a footer, and this one was cut off")
		return a.invalid()
	}
	if a.session.ID == "" {
		a.problem("ends a file without a session")
	}
	if a.problems != nil { // counts differ then, too
		return a.invalid()
	}
	f := a.footer
	for _, n := range []struct {
		name  string
		given *int
		want  []int
	}{
		{"recordCount", f.RecordCount, []int{a.body.Lines + 2, a.body.Lines}}, // some writers count the body only
		{"messageCount", f.MessageCount, []int{a.found.Messages}},
		{"handoffCount", f.HandoffCount, []int{a.found.Handoffs}},
		{"agentCount", f.AgentCount, []int{a.found.Agents}},
	} {
		switch {
		case n.given == nil:
			a.problem("has no %s", n.name)
		case !slices.Contains(n.want, *n.given):
			a.problem("has the %s %d, but the file holds %d", n.name, *n.given, n.want[0])
		}
	}
	if a.problems != nil {
		return a.invalid()
	}
	if f.Checksum != "" && f.Checksum != a.body.Checksum() {
		return fault.New(fault.ExportChecksum, "The records of the session export do not have the checksum in its footer.")
	}
	a.settle()
	a.warnings = []string{}
	for _, reason := range slices.Sorted(maps.Keys(a.notes)) {
		a.warnings = append(a.warnings, fmt.Sprintf("%s: %d.", reason, a.notes[reason]))
	}
	return nil
}
