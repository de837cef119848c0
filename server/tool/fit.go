package tool

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"agentd/server/canonical"
	"agentd/server/message"
)

const (
	maxOutput    = 32 << 20 // bytes of a result, whatever its tool's limits
	previewRunes = 1000     // of a spilled result
	charsPerTok  = 4        // the estimate of a token's length

	spillScheme = "svc-spill:"
)

// Settle makes the outcome of a call that the set did not make. Like Execute, it cuts or spills a result that is too large to
// show. For a name that is not in the set, the defaults of a tool hold.
func (s *Set) Settle(name string, call Call, res Result) Settled {
	e := s.byName[name]
	if e == nil {
		e = &entry{spec: Spec{Name: name}}
		e.complete() // nothing of it can be wrong
	}
	settled := e.settle(call, res, &live{})
	o := &settled.Outcome
	o.ToolCallID, o.ToolName = call.ID, name
	return settled
}

// settle makes the outcome of a call that returned.
func (e *entry) settle(call Call, res Result, l *live) Settled {
	var s Settled
	s.Outcome.Truncated = res.Truncated
	if res.Output == nil && l.streamed {
		body := l.body()
		res = Result{Output: body.Output, Parts: slices.Concat(res.Parts, body.Parts)}
		s.Outcome.Truncated = l.truncated
	}
	if e.whole && s.Outcome.Truncated {
		return settleError(e.badOutput("The tool's result is longer than its limit, and would be cut."))
	}
	size := len(res.Output)
	for _, p := range res.Parts {
		size += partSize(p)
	}
	if size > maxOutput {
		return settleError(e.badOutput(fmt.Sprintf("The tool's result has more than %d MiB.", maxOutput>>20)))
	}
	output, err := normal(res.Output)
	if err != nil {
		return settleError(e.badOutput("The tool's result is not JSON."))
	}
	if canonical.Deeper(output, message.MaxDepth) >= 0 {
		return settleError(e.badOutput(fmt.Sprintf("The tool's result is nested more than %d levels deep.", message.MaxDepth)))
	}
	e.fit(call, output, &s)
	s.Outcome.ContentParts = slices.Clone(res.Parts)
	for i := range s.Outcome.ContentParts {
		if p := &s.Outcome.ContentParts[i]; p.Type == "text" {
			p.Text = e.shorten(strings.ToValidUTF8(p.Text, "\uFFFD"))
		}
	}
	return s
}

// badOutput is the error for a result that cannot be used. The call has had its effect.
func (e *entry) badOutput(text string) *Error {
	err := &Error{Kind: message.InvalidOutput, Message: text}
	if !e.spec.Repeatable() {
		err.Hint = "The call itself was made; do not repeat it only for its result."
	}
	return err
}

func partSize(p message.Part) int {
	n := len(p.Text) + len(p.Meta)
	for _, b := range []*message.Bytes{p.Image, p.Audio, p.File} {
		if b != nil {
			n += len(b.Data) + len(b.Href)
		}
	}
	return n
}

// normal is the output in the form of transcripts: compact JSON in valid UTF-8; null where there is none.
func normal(output json.RawMessage) (json.RawMessage, error) {
	if len(output) == 0 {
		return json.RawMessage("null"), nil
	}
	var b bytes.Buffer
	if err := json.Compact(&b, bytes.ToValidUTF8(output, []byte("\uFFFD"))); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// fit puts the output into the outcome, cut or spilled where it is over the tool's limit.
func (e *entry) fit(call Call, output json.RawMessage, s *Settled) {
	text, isText := string(output), false
	if output[0] == '"' {
		isText = json.Unmarshal(output, &text) == nil
	}
	s.Outcome.Output = output
	switch {
	case !e.over(text):
	case !isText:
		s.spill(call, text, "json", "application/json")
	case e.spec.Truncation == Spill:
		s.spill(call, text, "txt", "text/plain")
	default:
		s.Outcome.Output, _ = message.Encode(e.shorten(text))
	}
}

// over reports whether a text is longer than the tool's limit, by the estimate.
func (e *entry) over(text string) bool {
	limit := e.spec.MaxResultTokens
	return limit > 0 && limit < maxOutput && len(text) > limit*charsPerTok && utf8.RuneCountInString(text) > limit*charsPerTok
}

// shorten cuts a text to the tool's limit and puts a note of that where it cuts.
func (e *entry) shorten(text string) string {
	if !e.over(text) {
		return text
	}
	all, room := utf8.RuneCountInString(text), e.spec.MaxResultTokens*charsPerTok
	const words = "[... %d of %d characters are left out here ...]"
	if longest := len(fmt.Sprintf(words, all, all)) + 2; room > 4*longest {
		room -= longest
	}
	note := fmt.Sprintf(words, all-room, all)
	if e.spec.Truncation == Tail {
		return note + "\n" + lastRunes(text, room)
	}
	return firstRunes(text, room-room/2) + "\n" + note + "\n" + lastRunes(text, room/2)
}

func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}

func lastRunes(s string, n int) string {
	i := len(s)
	for ; n > 0 && i > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:i])
		i -= size
	}
	return s[i:]
}

// spill keeps the text beside the transcript, which gets its beginning and a handle.
func (s *Settled) spill(call Call, text, extension, mediaType string) {
	preview := strings.Clone(firstRunes(text, previewRunes)) // does not hold the whole text in memory
	s.Spill = &Blob{Name: fileName(call.ID) + "." + extension, MediaType: mediaType, Data: []byte(text)}
	s.Outcome.Output, _ = message.Encode(preview)
	s.Outcome.ResultHandle = &message.Handle{URI: spillScheme + call.RunID + "/" + s.Spill.Name, Kind: "spill-file",
		Preview: preview, Bytes: int64(len(text)), MediaType: mediaType}
}

var unsafeInName = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// fileName makes a name of a call id, which may hold anything. Different ids have different names.
func fileName(id string) string {
	const longest = 100
	name := unsafeInName.ReplaceAllString(id, "_")
	if name == id && id != "" && len(id) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(id))
	return name[:min(len(name), longest)] + "-" + hex.EncodeToString(sum[:8])
}
