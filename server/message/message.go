// Package message has the types of transcripts, run states and providers: messages, their parts, tool calls, results and
// usage.
//
// The JSON forms are those of the run state `svc-run-state/1.2`. Times in this vocabulary are ISO-8601 UTC with
// milliseconds; see [Time].
package message

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"agentd/server/canonical"
)

// A Role says who speaks.
type Role string

const (
	System    Role = "system"
	User      Role = "user"
	Assistant Role = "assistant"
	Tool      Role = "tool"
	Developer Role = "developer" // in inputs, for System
)

// A Message is one entry of a transcript. A part of its content is a struct, also one that holds nothing: reading a
// message takes up to five hundred bytes of memory for each byte.
type Message struct {
	Role       Role       `json:"role" check:"given" enum:"system|user|assistant|tool"`
	Content    Content    `json:"content"`
	UserID     string     `json:"userId,omitempty"`     // user messages
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`  // assistant messages
	AgentID    string     `json:"agentId,omitempty"`    // assistant messages
	ToolCallID string     `json:"toolCallId,omitempty"` // tool messages: the call that is answered
	Caller     bool       `json:"caller,omitempty"`     // system messages: they are the caller's, not the operator's
	Withheld   bool       `json:"withheld,omitempty"`   // the content is not for the reader, who gets an empty one
}

// Content is a text or a list of parts. In JSON it is a string or an array; the zero value is the empty string.
type Content struct {
	Text  string `json:"-" bare:"text or a list of parts"`
	Parts []Part `json:"-" bare:"text or a list of parts"` // when not nil, Text is unused
}

// Text makes a content of plain text.
func Text(s string) Content { return Content{Text: s} }

// String is the text of the content: the texts of its parts, each on its own line, where it has parts.
// Reasoning and media are left out.
func (c Content) String() string {
	if c.Parts == nil {
		return c.Text
	}
	var b strings.Builder
	for _, p := range c.Parts {
		if p.Type != "text" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(p.Text)
	}
	return b.String()
}

// OpenAPISchema is the schema of what MarshalJSON writes.
func (Content) OpenAPISchema() json.RawMessage {
	return json.RawMessage(`{"anyOf":[{"type":"string"},{"type":"array","items":{"$ref":"#/components/schemas/Part"}}]}`)
}

// MarshalJSON writes a string or an array of parts.
func (c Content) MarshalJSON() ([]byte, error) {
	if c.Parts != nil {
		return Encode(c.Parts)
	}
	return Encode(c.Text)
}

// UnmarshalJSON reads a string, an array of parts or null (as empty).
func (c *Content) UnmarshalJSON(b []byte) error {
	*c = Content{}
	switch b = bytes.TrimSpace(b); {
	case len(b) == 0 || string(b) == "null":
		return nil
	case b[0] == '"':
		return json.Unmarshal(b, &c.Text)
	case b[0] == '[':
		c.Parts = []Part{}
		return json.Unmarshal(b, &c.Parts)
	}
	return errors.New("content is neither a string nor a list of parts")
}

// A Part is a piece of a content: text, image, audio, file or reasoning. Media is held in the field that the type
// names.
type Part struct {
	Type     string          `json:"type" check:"given"`
	Text     string          `json:"text,omitempty"` // text, reasoning
	Image    *Bytes          `json:"image,omitempty"`
	Audio    *Bytes          `json:"audio,omitempty"`
	File     *Bytes          `json:"file,omitempty"`
	MimeType string          `json:"mimeType,omitempty"`
	Filename string          `json:"filename,omitempty"`
	Meta     json.RawMessage `json:"meta,omitempty"` // reasoning: opaque, goes back to the provider as it came
}

// UnmarshalJSON also reads the forms in which the chat completions protocol has images and files: image_url with a URL, which
// may be a data URL (RFC 2397), and file with file_data. They become an image and a file.
func (p *Part) UnmarshalJSON(b []byte) error {
	type plain Part
	*p = Part{}
	if err := json.Unmarshal(b, (*plain)(p)); err != nil {
		return err
	}
	var foreign struct {
		ImageURL struct {
			URL string `json:"url"`
		} `json:"image_url"`
		File struct {
			FileData string `json:"file_data"`
			Filename string `json:"filename"`
		} `json:"file"`
	}
	switch {
	case p.Type == "image_url":
		if json.Unmarshal(b, &foreign) == nil && foreign.ImageURL.URL != "" {
			p.Type = "image"
			p.Image, p.MimeType = fromURL(foreign.ImageURL.URL, p.MimeType)
		}
	case p.Type == "file" && p.File != nil && p.File.Enc == "":
		if json.Unmarshal(b, &foreign) == nil && foreign.File.FileData != "" {
			p.File, p.MimeType = fromURL(foreign.File.FileData, p.MimeType)
			p.Filename = cmp.Or(p.Filename, foreign.File.Filename)
		}
	}
	return nil
}

// fromURL is what a URL holds, or the URL itself where that is not a data URL in base64.
func fromURL(url, mimeType string) (*Bytes, string) {
	head, data, ok := strings.Cut(url, ",")
	kind, isData := strings.CutPrefix(head, "data:")
	kind, is64 := strings.CutSuffix(kind, ";base64")
	if !ok || !isData || !is64 {
		return &Bytes{Enc: "url", Href: url}, mimeType
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return nil, mimeType
	}
	return &Bytes{Enc: "base64", Data: raw}, cmp.Or(mimeType, kind)
}

// Media is what a part of a media type holds, nil where that is missing. ok reports whether the type is a media type.
func (p *Part) Media() (b *Bytes, ok bool) {
	switch p.Type {
	case "image":
		return p.Image, true
	case "audio":
		return p.Audio, true
	case "file":
		return p.File, true
	}
	return nil, false
}

// Bytes is a binary value in its JSON-safe envelope: {"enc":"base64","data":...} for bytes (standard alphabet,
// padded), {"enc":"url","href":...} for a reference. Where Enc is empty, Href decides which of the two it is.
type Bytes struct {
	Enc  string `json:"enc" check:"given"`
	Data []byte `json:"data,omitempty"`
	Href string `json:"href,omitempty"`
}

// MarshalJSON writes an envelope that is whole: no bytes are "data" too.
func (b Bytes) MarshalJSON() ([]byte, error) {
	if b.Enc == "url" || b.Enc == "" && b.Href != "" {
		return Encode(struct {
			Enc  string `json:"enc"`
			Href string `json:"href"`
		}{"url", b.Href})
	}
	if b.Data == nil {
		b.Data = []byte{} // nil would be null
	}
	return Encode(struct {
		Enc  string `json:"enc"`
		Data []byte `json:"data"`
	}{cmp.Or(b.Enc, "base64"), b.Data})
}

// A ToolCall is a model's wish to call a tool. Args is the JSON that the model wrote; where it wrote none or broken
// JSON, or JSON deeper than [MaxDepth], Args is {} or that text as a JSON string, so that argument validation refuses it
// with a clear message.
type ToolCall struct {
	ID   string          `json:"toolCallId" check:"given"`
	Name string          `json:"toolName" check:"given"`
	Args json.RawMessage `json:"args" default:"{}"`
}

// MaxDepth is how many arrays and objects in the JSON of a model or a tool may lie inside each other. Transcripts hold that
// JSON inside more of them, and the readers of transcripts have limits: SQLite 1000 levels, encoding/json 10000. Deeper
// JSON would make its run unreadable for ever.
const MaxDepth = 500

// Args makes arguments of a model's raw text: empty text is {}, JSON that is broken or too deep is kept as a JSON string.
func Args(raw string) json.RawMessage {
	raw = strings.TrimSpace(raw)
	if raw == "" {
		return json.RawMessage("{}")
	}
	if b := []byte(raw); json.Valid(b) && canonical.Deeper(b, MaxDepth) < 0 {
		return b
	}
	b, _ := Encode(raw)
	return b
}

// An Outcome is how a tool call ended: with a result, or with an error when Kind is not empty.
type Outcome struct {
	ToolCallID   string          `json:"toolCallId" check:"given"`
	ToolName     string          `json:"toolName" check:"given"`
	Output       json.RawMessage `json:"output,omitempty"` // absent for errors
	ContentParts []Part          `json:"contentParts,omitempty"`
	DurationMS   int64           `json:"durationMs" check:"lenient"`
	ResultHandle *Handle         `json:"resultHandle,omitempty"`
	Truncated    bool            `json:"bufferTruncated,omitempty"` // a stream of output was cut at its limit

	Kind         ErrorKind    `json:"kind,omitempty" check:"1.."`
	Message      string       `json:"message,omitempty"`
	Hint         string       `json:"hint,omitempty"`
	Recoverable  bool         `json:"recoverable,omitempty"`
	RecoveryHint RecoveryHint `json:"recoveryHint,omitempty"`
}

// Failed reports whether the outcome is an error.
func (o *Outcome) Failed() bool { return o.Kind != "" }

// A Handle names a result that was too large for the transcript and is kept beside it.
type Handle struct {
	URI       string `json:"uri" check:"given"`  // svc-spill:<runId>/<file>
	Kind      string `json:"kind" check:"given"` // "spill-file"
	Preview   string `json:"preview"`
	Bytes     int64  `json:"bytes,omitempty" check:"lenient"`
	MediaType string `json:"mediaType,omitempty"`
}

// An ErrorKind says why a tool call failed.
type ErrorKind string

const (
	ApprovalDenied    ErrorKind = "approval_denied"
	Timeout           ErrorKind = "timeout"
	InvalidInput      ErrorKind = "invalid_input"
	InvalidOutput     ErrorKind = "invalid_output"
	ExecutionFailed   ErrorKind = "execution_failed"
	UnknownTool       ErrorKind = "unknown_tool"
	AbortedCall       ErrorKind = "aborted"
	CapabilityBlocked ErrorKind = "capability_blocked"
	RateLimited       ErrorKind = "rate_limited"
)

// A RecoveryHint is what a model should try after a failed call.
type RecoveryHint string

const (
	RetryLater     RecoveryHint = "retry_later"
	CheckInput     RecoveryHint = "check_input"
	TryAlternative RecoveryHint = "try_alternative"
	ReportToUser   RecoveryHint = "report_to_user"
)

// Time formats t as transcripts and run states do: ISO-8601, UTC, milliseconds.
func Time(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Millis is Time for milliseconds since 1970.
func Millis(ms int64) string { return Time(time.UnixMilli(ms)) }
