package provider

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/shape"
)

// A turn is one answer of a script.
type turn struct {
	When       when         `json:"when"`
	Text       string       `json:"text"`
	Reasoning  string       `json:"reasoning"`
	ToolCalls  []scriptCall `json:"toolCalls"`
	Delay      shape.Millis `json:"delayMs" check:"0..600000"`
	ChunkDelay shape.Millis `json:"chunkDelayMs" check:"0..600000"`
	ChunkSize  int          `json:"chunkSize" default:"8" check:"1.."` // characters
	Usage      *scriptUsage `json:"usage"`
	Finish     FinishReason `json:"finishReason" enum:"stop|length|tool-calls|content-filter"`
	Error      *failure     `json:"error"`
}

// when is the condition under which a turn is played. Members that are absent hold always.
type when struct {
	LastUser string `json:"lastUser"` // a pattern
	LastTool string `json:"lastTool"` // a pattern
	ToolName string `json:"toolName"`
	Step     *int64 `json:"step" check:"0.."`
	Model    string `json:"model"`

	lastUser, lastTool *regexp.Regexp
}

// Settle compiles the patterns.
func (w *when) Settle(func(string, int64) ([]byte, error)) (member, message string) {
	var err error
	if w.lastUser, err = regexp.Compile(w.LastUser); err != nil {
		return "lastUser", "want a regular expression: " + err.Error()
	}
	if w.lastTool, err = regexp.Compile(w.LastTool); err != nil {
		return "lastTool", "want a regular expression: " + err.Error()
	}
	return "", ""
}

type scriptCall struct {
	Name string          `json:"name" check:"required"`
	Args json.RawMessage `json:"args"`
}

type scriptUsage struct {
	Prompt     int64  `json:"promptTokens" check:"0.."`
	Completion int64  `json:"completionTokens" check:"0.."`
	Total      *int64 `json:"totalTokens" check:"0.."`
	Reasoning  *int64 `json:"reasoningTokens" check:"0.."`
	CachedRead int64  `json:"cachedReadTokens" check:"0.."`
	CacheWrite int64  `json:"cacheWriteTokens" check:"0.."`
	Cost       *struct {
		Amount   float64 `json:"amount" check:"required 0.."`
		Currency string  `json:"currency"` // absent: USD
	} `json:"cost"`
}

func (s *scriptUsage) usage() message.Usage {
	u := message.Usage{PromptTokens: s.Prompt, CompletionTokens: s.Completion, ReasoningTokens: s.Reasoning,
		CachedReadTokens: s.CachedRead, CacheWriteTokens: s.CacheWrite}
	u.TotalTokens = *cmp.Or(s.Total, new(s.Prompt+s.Completion+message.Value(s.Reasoning)))
	if c := s.Cost; c != nil {
		u.Cost = &message.Cost{Amount: c.Amount, Currency: cmp.Or(c.Currency, "USD")}
	}
	return u
}

type failure struct {
	Kind    string `json:"kind" check:"required" enum:"rate-limit|capacity|context-length|transient|invalid-request|unauthorized|content-filter|unknown"`
	Message string `json:"message" check:"required"`
	After   int64  `json:"afterChunks" check:"0.."` // deltas of text, reasoning and arguments
}

// NewScripted reads a script: {"turns": [...]}, which may have comments. The error is a *fault.Error of kind config-invalid
// that lists every problem of the script with its path and place.
func NewScripted(name string, text []byte) (*Scripted, error) {
	var script struct {
		Turns []turn `json:"turns" check:"required 1.."`
	}
	r := shape.Reader{Name: "script", File: true, MaxDepth: message.MaxDepth}
	r.Read(text, shape.Of(reflect.TypeOf(script)), &script)
	if issues := r.Issues(); issues != nil {
		return nil, fault.Invalid(fmt.Sprintf("The script of provider %q is not valid.", name), issues...)
	}
	return &Scripted{name, script.Turns}, nil
}
