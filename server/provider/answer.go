package provider

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"io"
	"regexp"
	"strings"

	"agentd/server/message"
)

// An answer collects the chunks of a stream, or the one object that a server sends instead. Whatever it gets it gives to sink
// at once.
type answer struct {
	messages []message.Message // the request's, whose call ids are taken
	sink     func(Delta)

	model           string
	text, reasoning strings.Builder
	calls           []*call
	byIndex         map[count]*call
	ids             map[string]bool // of calls, here and in messages; made with the first call
	finish          FinishReason    // empty until the model finished
	usage           message.Usage
	spoke           bool
}

// A call is a tool call that is still being written.
type call struct {
	wireID   string // as the server names it
	id, name string // id is empty until the name is known, which is when the call starts
	args     strings.Builder
}

// add takes the JSON of a chunk. It returns a problem that the server reports in the chunk, or an error for anything that is
// not a chunk.
func (a *answer) add(data []byte) (*problem, error) {
	c, err := readChunk(data)
	if err != nil {
		return nil, err
	}
	if c.Failed {
		return new(readProblem(data)), nil
	}
	if c.Model != "" {
		a.model = string(c.Model)
	}
	if c.Usage != nil {
		a.usage = c.Usage.usage()
	}
	for i := range c.Choices {
		choice := &c.Choices[i]
		if choice.Index != 0 {
			continue
		}
		a.say(choice.Delta)
		// Some servers repeat the whole message at the end of a stream.
		if choice.Message != nil && !a.spoke {
			for i := range choice.Message.ToolCalls {
				choice.Message.ToolCalls[i].Index = new(count(i))
			}
			a.say(*choice.Message)
		}
		if choice.FinishReason != "" {
			a.finish = cmp.Or(finishes[choice.FinishReason], FinishStop)
		}
	}
	return nil, nil
}

// finishes are the reasons of the protocol; any other counts as a stop.
var finishes = map[text]FinishReason{"length": FinishLength, "tool_calls": FinishToolCalls, "function_call": FinishToolCalls,
	"content_filter": FinishContentFilter}

func (a *answer) say(d delta) {
	if s := d.thought(); s != "" {
		a.reasoning.WriteString(s)
		a.emit(Delta{Kind: ReasoningDelta, Text: s})
	}
	if s := string(d.Content); s != "" {
		a.text.WriteString(s)
		a.emit(Delta{Kind: TextDelta, Text: s})
	}
	for _, f := range d.ToolCalls {
		a.extend(f)
	}
}

func (a *answer) emit(d Delta) {
	a.spoke = true
	a.sink(d)
}

// extend adds a fragment to the call that it belongs to.
func (a *answer) extend(f fragment) {
	c := a.callOf(f)
	if c.wireID == "" {
		c.wireID = string(f.ID)
	}
	c.args.WriteString(f.Arguments)
	more := f.Arguments
	if c.id == "" {
		if f.Name == "" {
			return
		}
		c.name = string(f.Name)
		c.id = a.callID(c.wireID)
		a.emit(Delta{Kind: CallStart, CallID: c.id, ToolName: c.name})
		more = c.args.String()
	}
	if more != "" {
		a.emit(Delta{Kind: CallDelta, CallID: c.id, ToolName: c.name, Text: more})
	}
}

// callOf finds the call of a fragment, or begins one. The index distinguishes calls; but some servers send parallel calls all
// under index 0, each complete and with a different id, and some send no index.
func (a *answer) callOf(f fragment) *call {
	fresh := func(c *call) bool {
		return f.Name != "" && f.ID != "" && c.wireID != "" && string(f.ID) != c.wireID
	}
	var c *call
	switch {
	case f.Index != nil:
		c = a.byIndex[*f.Index]
	case len(a.calls) > 0:
		c = a.calls[len(a.calls)-1]
	}
	if c == nil || fresh(c) {
		c = &call{}
		a.calls = append(a.calls, c)
	}
	if f.Index != nil {
		if a.byIndex == nil {
			a.byIndex = map[count]*call{}
		}
		a.byIndex[*f.Index] = c
	}
	return c
}

// callID is the server's id, or a new one where that cannot be used: it is missing, could not stand in a path, or was used
// before, since the whole run finds a call by its id.
func (a *answer) callID(wire string) string {
	if a.ids == nil {
		a.ids = map[string]bool{}
		for _, m := range a.messages {
			a.ids[m.ToolCallID] = true
			for _, c := range m.ToolCalls {
				a.ids[c.ID] = true
			}
		}
	}
	if !validID.MatchString(wire) || a.ids[wire] {
		wire = newCallID()
	}
	a.ids[wire] = true
	return wire
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`)

func newCallID() string {
	var b [12]byte
	rand.Read(b[:])
	return "call_" + hex.EncodeToString(b[:])
}

// stop ends an answer in which the model may not have said that it finished. It is an error that it said nothing.
func (a *answer) stop() error {
	if a.finish == "" && !a.spoke {
		return io.ErrUnexpectedEOF
	}
	a.finish = cmp.Or(a.finish, FinishStop)
	return nil
}

// response is the finished answer.
func (a *answer) response() *Response {
	r := &Response{
		Text:      a.text.String(),
		Reasoning: a.reasoning.String(),
		Finish:    a.finish,
		Usage:     a.usage,
		Model:     a.model,
	}
	for _, c := range a.calls {
		args := c.args.String()
		switch {
		case a.finish == FinishLength && (c.id == "" || !json.Valid([]byte(args))):
			if r.Incomplete == nil {
				r.Incomplete = &Incomplete{CallID: c.id, ToolName: c.name, ArgsPrefix: args}
			}
		case c.id == "": // a call of nothing
		default:
			r.ToolCalls = append(r.ToolCalls, message.ToolCall{ID: c.id, Name: c.name, Args: message.Args(args)})
		}
	}
	if r.Finish == FinishStop && r.ToolCalls != nil {
		r.Finish = FinishToolCalls
	}
	return r
}
