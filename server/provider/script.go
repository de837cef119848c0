package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
)

// A turn is one answer of a script.
type turn struct {
	when              when
	text, reasoning   string
	calls             []scriptCall
	delay, chunkDelay time.Duration
	chunkSize         int64 // characters
	usage             *message.Usage
	finish            FinishReason
	fails             *fault.Kind // nil: it succeeds
	failure           string      // the message of the error
	failsAfter        int64       // deltas of text, reasoning and arguments
}

// when is the condition under which a turn is played. Zero members hold always, and so does a step below 0.
type when struct {
	lastUser, lastTool *regexp.Regexp
	toolName, model    string
	step               int64
}

type scriptCall struct {
	name, args string // args is JSON
}

// NewScripted reads a script: {"turns": [...]}. The error is a *fault.Error of kind config-invalid that lists every
// problem of the script with its path.
func NewScripted(name string, script []byte) (*Scripted, error) {
	r := &scriptReader{}
	s := &Scripted{name: name}
	var raw json.RawMessage
	if err := json.Unmarshal(script, &raw); err != nil {
		r.problem(nil, "is not valid JSON%s: %v", position(script, err), err)
	} else {
		r.object(raw, nil, map[string]member{
			"turns": r.list(func(raw json.RawMessage, path []any) { s.turns = append(s.turns, r.turn(raw, path)) }),
		}, "turns")
	}
	if r.issues == nil && s.turns == nil {
		r.problem([]any{"turns"}, "must hold at least one turn")
	}
	if r.issues != nil {
		return nil, fault.Invalid(fmt.Sprintf("The script of provider %q is not valid.", name), r.issues...)
	}
	return s, nil
}

func (r *scriptReader) turn(raw json.RawMessage, path []any) turn {
	t := turn{chunkSize: 8, when: when{step: -1}}
	r.object(raw, path, map[string]member{
		"when": func(raw json.RawMessage, path []any) {
			r.object(raw, path, map[string]member{
				"lastUser": r.pattern(&t.when.lastUser),
				"lastTool": r.pattern(&t.when.lastTool),
				"toolName": r.text(&t.when.toolName),
				"step":     r.whole(&t.when.step, 0),
				"model":    r.text(&t.when.model),
			})
		},
		"text":         r.text(&t.text),
		"reasoning":    r.text(&t.reasoning),
		"toolCalls":    r.list(func(raw json.RawMessage, path []any) { t.calls = append(t.calls, r.call(raw, path)) }),
		"delayMs":      r.millis(&t.delay),
		"chunkDelayMs": r.millis(&t.chunkDelay),
		"chunkSize":    r.whole(&t.chunkSize, 1),
		"usage":        func(raw json.RawMessage, path []any) { t.usage = r.usage(raw, path) },
		"finishReason": oneOf(r, &t.finish, FinishStop, FinishLength, FinishToolCalls, FinishContentFilter),
		"error":        func(raw json.RawMessage, path []any) { r.failure(raw, path, &t) },
	})
	if t.finish == "" {
		t.finish = FinishStop
		if t.calls != nil {
			t.finish = FinishToolCalls
		}
	}
	return t
}

func (r *scriptReader) call(raw json.RawMessage, path []any) scriptCall {
	c := scriptCall{args: "{}"}
	r.object(raw, path, map[string]member{
		"name": r.text(&c.name),
		"args": func(raw json.RawMessage, _ []any) {
			var b bytes.Buffer
			_ = json.Compact(&b, raw) // members are given valid JSON
			c.args = b.String()
		},
	})
	if c.name == "" {
		r.problem(below(path, "name"), "must be the name of a tool")
	}
	return c
}

func (r *scriptReader) usage(raw json.RawMessage, path []any) *message.Usage {
	var u message.Usage
	var reasoning int64
	found := r.object(raw, path, map[string]member{
		"promptTokens":     r.whole(&u.PromptTokens, 0),
		"completionTokens": r.whole(&u.CompletionTokens, 0),
		"totalTokens":      r.whole(&u.TotalTokens, 0),
		"reasoningTokens":  r.whole(&reasoning, 0),
		"cachedReadTokens": r.whole(&u.CachedReadTokens, 0),
		"cacheWriteTokens": r.whole(&u.CacheWriteTokens, 0),
		"cost":             func(raw json.RawMessage, path []any) { u.Cost = r.cost(raw, path) },
	})
	if found["reasoningTokens"] {
		u.ReasoningTokens = &reasoning
	}
	if !found["totalTokens"] {
		u.TotalTokens = u.PromptTokens + u.CompletionTokens + reasoning
	}
	return &u
}

func (r *scriptReader) cost(raw json.RawMessage, path []any) *message.Cost {
	c := &message.Cost{Currency: "USD"}
	r.object(raw, path, map[string]member{
		"amount": func(raw json.RawMessage, path []any) {
			if json.Unmarshal(raw, &c.Amount) != nil || string(raw) == "null" || c.Amount < 0 {
				r.problem(path, "must be a number, 0 or more")
			}
		},
		"currency": r.text(&c.Currency),
	}, "amount")
	return c
}

// failures are the codes with which a turn of a script can fail.
func failures() (codes []string) {
	for _, k := range []*fault.Kind{fault.RateLimit, fault.Capacity, fault.ContextLength, fault.Transient, fault.InvalidRequest, fault.Unauthorized,
		fault.ContentFilter, fault.Unknown} {
		codes = append(codes, k.Code)
	}
	return codes
}

func (r *scriptReader) failure(raw json.RawMessage, path []any, t *turn) {
	var code string
	r.object(raw, path, map[string]member{
		"kind":        oneOf(r, &code, failures()...),
		"message":     r.text(&t.failure),
		"afterChunks": r.whole(&t.failsAfter, 0),
	}, "kind", "message")
	t.fails = fault.ByCode(code)
}
