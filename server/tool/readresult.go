package tool

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"unicode/utf8"

	"agentd/server/message"
)

// A SpillReader finds what was kept beside the transcript of a run.
type SpillReader interface {
	ReadSpill(ctx context.Context, runID, name string) (mediaType string, data []byte, err error)
}

const (
	defaultRead = 64 << 10
	maxRead     = 1 << 20
)

// NewReadResult makes a tool that reads results which were too long for the transcript, of the same run only:
// {handle, offset?, length?, startLine?, endLine?, maxBytes?} gives {content, offset, bytes, totalBytes, eof}. Offsets
// and lengths are bytes, moved to the nearest earlier boundary of a character; lines count from 1, both ends included.
// One call reads at most maxBytes, which is 64 KiB by default and at most 1 MiB. The next call continues at offset + bytes.
func NewReadResult(spills SpillReader) Tool {
	return builtin(Spec{
		Name: message.ReadResultName,
		Description: "Reads a part of an earlier result that was too long to show. Give the handle of that result, and either offset and " +
			"length in bytes, or startLine and endLine. To read on, call again with offset set to offset + bytes of the last answer.",
		Input: json.RawMessage(`{"type":"object","properties":{` +
			`"handle":{"type":"string","description":"svc-spill:... as the earlier result names it"},` +
			`"offset":{"type":"integer","minimum":0},"length":{"type":"integer","minimum":1},` +
			`"startLine":{"type":"integer","minimum":1},"endLine":{"type":"integer","minimum":1},` +
			`"maxBytes":{"type":"integer","minimum":1,"maximum":1048576,"description":"65536 when absent"}},` +
			`"required":["handle"],"additionalProperties":false}`),
		SideEffect:      ReadOnly,
		MaxResultTokens: -1, // bounded by maxBytes; spilling it again would be of no use
	}, func(ctx context.Context, call Call, args struct {
		Handle                                       string
		Offset, Length, StartLine, EndLine, MaxBytes *json.Number
	}) (any, error) {
		path, ours := strings.CutPrefix(args.Handle, spillScheme)
		runID, name, _ := strings.Cut(path, "/")
		if !ours || !spillName.MatchString(name) {
			return nil, invalidInput("This is not a handle of a result.", "Copy the handle from the earlier result; it begins with "+spillScheme+".")
		}
		if runID != call.RunID {
			return nil, invalidInput("The handle belongs to another run.", "Use a handle of this conversation's results.")
		}
		lines := args.StartLine != nil || args.EndLine != nil
		if lines && (args.Offset != nil || args.Length != nil) {
			return nil, invalidInput("Bytes and lines exclude each other.", "Give offset and length, or startLine and endLine.")
		}
		_, data, err := spills.ReadSpill(ctx, runID, name)
		if err != nil {
			return nil, err
		}
		text := strings.ToValidUTF8(string(data), "\uFFFD")
		var from, to int
		if lines {
			from, to = lineRange(text, int(count(args.StartLine, 1)), int(count(args.EndLine, int64(len(text))+1)))
		} else {
			from = boundary(text, count(args.Offset, 0))
			to = boundary(text, int64(from)+count(args.Length, int64(len(text))))
		}
		to = min(to, boundary(text, int64(from)+min(count(args.MaxBytes, defaultRead), maxRead)))
		if to == from { // not even one character fits, but the next call must get further
			_, size := utf8.DecodeRuneInString(text[from:])
			to += size
		}
		return struct {
			Content    string `json:"content"`
			Offset     int    `json:"offset"`
			Bytes      int    `json:"bytes"`
			TotalBytes int    `json:"totalBytes"`
			EOF        bool   `json:"eof"`
		}{text[from:to], from, to - from, len(text), to == len(text)}, nil
	})
}

var spillName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}\.(json|txt)$`)

// count is a whole number that the schema has checked, such as 1e3 or 5.0; it is at most 1<<40.
func count(n *json.Number, absent int64) int64 {
	const large = 1 << 40
	if n == nil {
		return absent
	}
	f, _ := n.Float64()
	return int64(min(max(f, 0), large))
}

// boundary is the start of the character that byte i of the text belongs to.
func boundary(text string, i int64) int {
	if i >= int64(len(text)) {
		return len(text)
	}
	for i > 0 && !utf8.RuneStart(text[i]) {
		i--
	}
	return int(i)
}

// lineRange is where the given lines lie, both included and counted from 1, with their line ends.
func lineRange(text string, first, last int) (from, to int) {
	from = len(text)
	line, at := 1, 0
	for at < len(text) && line <= last {
		if line == first {
			from = at
		}
		if i := strings.IndexByte(text[at:], '\n'); i >= 0 {
			at += i + 1
		} else {
			at = len(text)
		}
		line++
	}
	return from, max(from, at)
}
