package provider

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"

	"agentd/server/canonical"
)

var errNoChunk = errors.New("the data is not a chunk of a completion")

// readChunk reads the JSON of a chunk. A chunk comes with each token, which is why it is not decoded by
// reflection.
func readChunk(data []byte) (c chunk, err error) {
	if !json.Valid(data) {
		return chunk{}, json.Unmarshal(data, new(json.RawMessage)) // which says where
	}
	in := decoder{Cursor: canonical.Cursor{Source: data}}
	in.Space()
	in.object(func(name []byte) {
		switch string(name) {
		case "model":
			c.Model = in.text()
		case "choices":
			c.Choices = nil
			in.list(func() {
				c.Choices = append(c.Choices, choice{})
				in.choice(&c.Choices[len(c.Choices)-1])
			})
		case "usage":
			if !in.null() {
				c.Usage = new(wireUsage)
				in.usage(c.Usage)
			}
		case "error":
			c.Failed = !in.null() || c.Failed
		case "object":
			c.Failed = string(in.raw()) == `"error"` || c.Failed
		}
	})
	if in.misfit {
		return chunk{}, errNoChunk
	}
	return c, nil
}

// decoder reads a chunk from valid JSON. Its methods pass the value at the cursor. They take null for nothing.
type decoder struct {
	canonical.Cursor
	misfit bool // an object or a list was expected where another value is
}

// object calls member at the value of each member. It passes those that member leaves.
func (d *decoder) object(member func(name []byte)) { d.each('{', member) }

// list calls item at each item.
func (d *decoder) list(item func()) { d.each('[', func([]byte) { item() }) }

func (d *decoder) each(open byte, do func(name []byte)) {
	if d.Source[d.At] != open {
		d.misfit = !d.null() || d.misfit
		d.Skip()
		return
	}
	for d.More() {
		var name []byte
		if open == '{' {
			name = d.NameBytes()
		}
		start := d.At
		if do(name); d.At == start {
			d.Skip()
		}
	}
}

// null reports whether null is at the cursor, and does not pass it.
func (d *decoder) null() bool { return d.Source[d.At] == 'n' }

func (d *decoder) raw() []byte {
	start := d.At
	d.Skip()
	return d.Source[start:d.At]
}

func (d *decoder) text() text {
	if d.Source[d.At] == '"' {
		return text(d.Bytes())
	}
	return textOf(d.raw())
}

func (d *decoder) count() count {
	f, err := strconv.ParseFloat(string(d.raw()), 64)
	if err != nil || f < 0 {
		return 0
	}
	return count(min(f, math.MaxInt32))
}

// optional is nil for null.
func (d *decoder) optional() *count {
	if d.null() {
		return nil
	}
	return new(d.count())
}

func (d *decoder) choice(c *choice) {
	d.object(func(name []byte) {
		switch string(name) {
		case "index":
			c.Index = d.count()
		case "delta":
			d.delta(&c.Delta)
		case "message":
			if !d.null() {
				c.Message = new(delta)
				d.delta(c.Message)
			}
		case "finish_reason":
			c.FinishReason = d.text()
		}
	})
}

func (d *decoder) delta(to *delta) {
	d.object(func(name []byte) {
		switch string(name) {
		case "content":
			to.Content = d.text()
		case "reasoning_content":
			to.ReasoningContent = d.text()
		case "reasoning":
			to.Reasoning = d.text()
		case "tool_calls":
			to.ToolCalls = nil
			d.list(func() {
				to.ToolCalls = append(to.ToolCalls, fragment{})
				d.fragment(&to.ToolCalls[len(to.ToolCalls)-1])
			})
		}
	})
}

func (d *decoder) fragment(f *fragment) {
	d.object(func(name []byte) {
		switch string(name) {
		case "index":
			f.Index = d.optional()
		case "id":
			f.ID = d.text()
		case "function":
			d.object(func(name []byte) {
				switch string(name) {
				case "name":
					f.Name = d.text()
				case "arguments": // some servers send the arguments themselves instead of pieces of their text
					switch {
					case d.Source[d.At] == '"':
						f.Arguments = d.Text()
					case !d.null():
						f.Arguments = string(d.raw())
					}
				}
			})
		}
	})
}

func (d *decoder) usage(u *wireUsage) {
	d.object(func(name []byte) {
		switch string(name) {
		case "prompt_tokens":
			u.Prompt = d.count()
		case "completion_tokens":
			u.Completion = d.count()
		case "total_tokens":
			u.Total = d.count()
		case "prompt_tokens_details":
			d.member("cached_tokens", &u.Cached)
		case "completion_tokens_details":
			d.member("reasoning_tokens", &u.Reasoning)
		}
	})
}

// member reads one count of an object.
func (d *decoder) member(called string, to **count) {
	d.object(func(name []byte) {
		if string(name) == called {
			*to = d.optional()
		}
	})
}
