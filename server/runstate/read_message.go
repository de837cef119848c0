package runstate

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"

	"agentd/server/message"
)

func (r *reader) messages(v value) []message.Message { return list(r, v, nil, r.message) }

func (r *reader) message(v value) (m message.Message) {
	r.object(v, func(f fields) {
		m.Role = message.Role(need(r, f, "role", r.text))
		m.Content = may(r, f, "content", r.content)
		m.UserID = may(r, f, "userId", r.text)
		m.ToolCalls = orNil(may(r, f, "toolCalls", r.calls))
		m.AgentID = may(r, f, "agentId", r.text)
		m.ToolCallID = may(r, f, "toolCallId", r.text)
		m.Caller = may(r, f, "caller", r.flag)
		m.Withheld = may(r, f, "withheld", r.flag)
	})
	return m
}

func (r *reader) content(v value) (c message.Content) {
	switch {
	case v.isString():
		c.Text = v.text()
	case v.isArray():
		c.Parts = r.parts(v)
	default:
		r.bad("is neither a string nor a list of parts")
	}
	return c
}

func (r *reader) parts(v value) []message.Part { return list(r, v, nil, r.part) }

func (r *reader) part(v value) (p message.Part) {
	r.object(v, func(f fields) {
		p.Type = need(r, f, "type", r.text)
		p.Text = may(r, f, "text", r.text)
		p.Image = r.media(f, "image")
		p.Audio = r.media(f, "audio")
		p.File = r.media(f, "file")
		p.MimeType = may(r, f, "mimeType", r.text)
		p.Filename = may(r, f, "filename", r.text)
		p.Meta = anything(f, "meta")
	})
	return p
}

// media reads binary data: an envelope, or a byte array as writers before 1.2 left it. Anything else, such as the {}
// of a URL that was lost, and an envelope of a kind that is not known, stays as it is, like an unknown member.
func (r *reader) media(f fields, name string) *message.Bytes {
	v := f[name]
	if v.absent() {
		delete(f, name)
		return nil
	}
	if !v.isObject() {
		return nil
	}
	switch v.member("enc") {
	case `"base64"`, `"url"`:
		return maybe(r, f, name, r.envelope)
	case "":
		if data := byteArray(v); data != nil {
			delete(f, name)
			return &message.Bytes{Enc: "base64", Data: data}
		}
	}
	return nil
}

func (r *reader) envelope(v value) (b message.Bytes) {
	r.object(v, func(f fields) {
		b.Enc = need(r, f, "enc", r.text)
		b.Data = orNil(may(r, f, "data", r.base64))
		b.Href = may(r, f, "href", r.text)
		if b.Enc == "url" && b.Href == "" {
			r.bad("is missing", "href")
		}
	})
	return b
}

func (r *reader) base64(v value) []byte {
	data, err := base64.StdEncoding.DecodeString(r.text(v))
	if err != nil {
		r.bad("is not base64 of the standard alphabet with padding")
	}
	return data
}

// byteArray returns the bytes of an object that has the keys 0 to n-1, n above 0, and values from 0 to 255. For
// other objects it returns nil.
func byteArray(v value) []byte {
	n := 0
	for key, b := range v.members() {
		if _, ok := index(key); !ok {
			return nil
		}
		if octet, ok := index(string(b)); !ok || octet > 255 {
			return nil
		}
		n++
	}
	if n == 0 {
		return nil
	}
	data := make([]byte, n)
	for key, b := range v.members() {
		i, _ := index(key)
		if i >= n { // the keys differ from each other: without one beyond the end none is missing
			return nil
		}
		octet, _ := index(string(b))
		data[i] = byte(octet)
	}
	return data
}

func (r *reader) calls(v value) []message.ToolCall { return list(r, v, nil, r.call) }

func (r *reader) call(v value) (c message.ToolCall) {
	r.object(v, func(f fields) {
		c.ID = need(r, f, "toolCallId", r.text)
		c.Name = need(r, f, "toolName", r.text)
		c.Args = r.args(f)
	})
	return c
}

// outcome reads a result, or an error where there is a kind.
func (r *reader) outcome(v value) (o message.Outcome) {
	r.object(v, func(f fields) {
		o.ToolCallID = need(r, f, "toolCallId", r.text)
		o.ToolName = need(r, f, "toolName", r.text)
		o.Output = anything(f, "output")
		o.ContentParts = orNil(may(r, f, "contentParts", r.parts))
		o.DurationMS = count(f.take("durationMs"))
		o.ResultHandle = maybe(r, f, "resultHandle", r.handle)
		o.Truncated = may(r, f, "bufferTruncated", r.flag)
		if _, failed := f["kind"]; failed {
			o.Kind = message.ErrorKind(need(r, f, "kind", r.kind))
		}
		o.Message = may(r, f, "message", r.text)
		o.Hint = may(r, f, "hint", r.text)
		o.Recoverable = may(r, f, "recoverable", r.flag)
		o.RecoveryHint = message.RecoveryHint(may(r, f, "recoveryHint", r.text))
	})
	return o
}

// kind reads the kind of an error. An empty one would make the error a result.
func (r *reader) kind(v value) string {
	s := r.text(v)
	if v == `""` {
		r.bad("is empty")
	}
	return s
}

func (r *reader) flag(v value) bool {
	if v != "true" && v != "false" {
		r.bad("is neither true nor false")
	}
	return v == "true"
}

func (r *reader) handle(v value) (h message.Handle) {
	r.object(v, func(f fields) {
		h.URI = need(r, f, "uri", r.text)
		h.Kind = need(r, f, "kind", r.text)
		h.Preview = may(r, f, "preview", r.text)
		h.Bytes = count(f.take("bytes"))
		h.MediaType = may(r, f, "mediaType", r.text)
	})
	return h
}

func (r *reader) usage(v value) (u message.Usage) {
	r.object(v, func(f fields) { u = r.usageOf(f) })
	return u
}

func (r *reader) usageOf(f fields) message.Usage {
	optional := func(name string) *int64 {
		return maybe(r, f, name, r.spent)
	}
	u := message.Usage{
		PromptTokens:     may(r, f, "promptTokens", r.spent),
		CompletionTokens: may(r, f, "completionTokens", r.spent),
		TotalTokens:      may(r, f, "totalTokens", r.spent),
		ReasoningTokens:  optional("reasoningTokens"),
		CachedReadTokens: may(r, f, "cachedReadTokens", r.spent),
		CacheWriteTokens: may(r, f, "cacheWriteTokens", r.spent),
		Estimated:        may(r, f, "estimated", r.flag),
	}
	if v := f["cost"]; v != "" && !v.isObject() {
		delete(f, "cost")
	}
	u.Cost = maybe(r, f, "cost", r.cost)
	return u
}

func (r *reader) cost(v value) (c message.Cost) {
	r.object(v, func(f fields) {
		c.Amount = may(r, f, "amount", func(v value) float64 { return r.positive(number(v)) })
		c.Currency = textOr(f, "currency", "USD")
	})
	return c
}

// usageByModel reads the usage of each model. Entries that are no objects are dropped.
func (r *reader) usageByModel(v value) map[string]message.ModelUsage {
	all := map[string]message.ModelUsage{}
	if !v.isObject() {
		r.bad("is not an object")
		return all
	}
	for model, entry := range v.members() {
		if !entry.isObject() {
			continue
		}
		model = strings.Clone(model)
		r.within(model, model, func() {
			r.object(entry, func(f fields) {
				u := message.ModelUsage{Usage: r.usageOf(f), AttemptCount: 1}
				if v := f.take("attemptCount"); !v.absent() {
					r.within("attemptCount", "attemptCount", func() { u.AttemptCount = r.spent(v) })
				}
				all[model] = u
			})
		})
	}
	return all
}

// spent is count for what budgets and bills add up, where nothing below zero is believed.
func (r *reader) spent(v value) int64 {
	r.positive(number(v))
	return count(v)
}

func (r *reader) positive(n float64) float64 {
	if n < 0 {
		r.bad("is below zero")
	}
	return max(n, 0)
}

// number makes a number of what a counter holds: numbers, their text, true as 1. Anything else is 0.
func number(v value) float64 {
	switch {
	case v == "true":
		return 1
	case v == "" || !v.isString() && strings.IndexByte("-0123456789", v[0]) < 0:
		return 0
	case v.isString():
		v = value(strings.TrimSpace(v.text()))
	}
	n, err := strconv.ParseFloat(string(v), 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0
	}
	return n
}

// count is number as a whole number, from 0 to 2^53-1, which is what JSON numbers carry exactly.
func count(v value) int64 { return int64(min(max(number(v), 0), 1<<53-1)) }
