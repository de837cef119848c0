package provider

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/server/message"
)

// Scripted is a [Provider] that plays a script, without network and without model. It retries nothing and has no state: which
// turn it plays depends on the request alone, so a run that continues after a crash gets the answers that it would have got.
type Scripted struct {
	name  string
	turns []turn
}

// Name is the id under which the configuration declares the provider.
func (s *Scripted) Name() string { return s.name }

// Stream implements [Provider]: it plays the first turn whose conditions hold. A turn that finishes with "length"
// loses the second half of its last call's arguments. A turn without usage gets an estimate.
func (s *Scripted) Stream(ctx context.Context, req *Request, sink func(Delta)) (*Response, error) {
	now := sceneOf(req)
	i := slices.IndexFunc(s.turns, func(t turn) bool { return t.When.holds(now) })
	if i < 0 {
		return nil, fault.New(fault.InvalidRequest, "the script of %s has no turn for this request (step %d after the user's message)", s.name, now.step)
	}
	t := &s.turns[i]
	res := t.response(now)
	res.Model = req.Model
	if res.Usage = estimate(req, res); t.Usage != nil {
		res.Usage = t.Usage.usage()
	}

	if !sleep(ctx, t.Delay.Duration()) {
		return nil, context.Cause(ctx)
	}
	said := int64(0)
	for _, d := range t.deltas(res) {
		if d.Kind != CallStart {
			if t.Error != nil && said >= t.Error.After {
				break
			}
			if said > 0 && !sleep(ctx, t.ChunkDelay.Duration()) {
				return nil, context.Cause(ctx)
			}
			said++
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		sink(d)
	}
	if t.Error != nil {
		return nil, fault.New(fault.ByCode(t.Error.Kind), "%s", t.Error.Message)
	}
	return res, nil
}

// A scene is what the conditions and the fillings of a script can see of a request.
type scene struct {
	model    string
	lastUser string
	lastTool string // text of the last tool message
	toolName string // its tool
	answered bool   // the last tool message came after the last user message
	step     int64  // answers of a model since the last user message
}

func sceneOf(req *Request) scene {
	now := scene{model: req.Model}
	names := map[string]string{} // of tools, by call
	for _, m := range req.Messages {
		switch m.Role {
		case message.User:
			now.lastUser, now.step, now.answered = m.Content.String(), 0, false
		case message.Assistant:
			now.step++
			for _, c := range m.ToolCalls {
				names[c.ID] = c.Name
			}
		case message.Tool:
			now.lastTool, now.toolName, now.answered = m.Content.String(), names[m.ToolCallID], true
		}
	}
	return now
}

// holds reports whether all conditions that are given hold. Those on a tool message look only at what came since the
// last user message: an answer to an earlier question is no answer to this one.
func (w *when) holds(now scene) bool {
	switch {
	case w.LastUser != "" && !w.lastUser.MatchString(now.lastUser):
	case w.LastTool != "" && !(now.answered && w.lastTool.MatchString(now.lastTool)):
	case w.ToolName != "" && !(now.answered && w.ToolName == now.toolName):
	case w.Step != nil && *w.Step != now.step:
	case w.Model != "" && w.Model != now.model:
	default:
		return true
	}
	return false
}

// response is the turn with its texts filled in.
func (t *turn) response(now scene) *Response {
	fill := func(s string, as func(string) string) string {
		return strings.NewReplacer("{{lastUser}}", as(now.lastUser), "{{lastTool}}", as(now.lastTool)).Replace(s)
	}
	plain := func(s string) string { return s }
	quoted := func(s string) string {
		b, _ := message.Encode(s)
		return strings.TrimSuffix(strings.TrimPrefix(string(b), `"`), `"`)
	}
	res := &Response{Text: fill(t.Text, plain), Reasoning: fill(t.Reasoning, plain), Finish: cmp.Or(t.Finish, FinishStop)}
	if t.Finish == "" && t.ToolCalls != nil {
		res.Finish = FinishToolCalls
	}
	for i, c := range t.ToolCalls {
		id, args := newCallID(), fill(cmp.Or(string(c.Args), "{}"), quoted)
		if t.Finish == FinishLength && i == len(t.ToolCalls)-1 {
			runes := []rune(args)
			res.Incomplete = &Incomplete{CallID: id, ToolName: c.Name, ArgsPrefix: string(runes[:len(runes)/2])}
			break
		}
		res.ToolCalls = append(res.ToolCalls, message.ToolCall{ID: id, Name: c.Name, Args: []byte(args)})
	}
	return res
}

// deltas cuts a response into the pieces that sink is given: reasoning, text, calls.
func (t *turn) deltas(res *Response) []Delta {
	var out []Delta
	cut := func(d Delta, text string) {
		for piece := range slices.Chunk([]rune(text), t.ChunkSize) {
			d.Text = string(piece)
			out = append(out, d)
		}
	}
	call := func(id, name, args string) {
		out = append(out, Delta{Kind: CallStart, CallID: id, ToolName: name})
		cut(Delta{Kind: CallDelta, CallID: id, ToolName: name}, args)
	}
	cut(Delta{Kind: ReasoningDelta}, res.Reasoning)
	cut(Delta{Kind: TextDelta}, res.Text)
	for _, c := range res.ToolCalls {
		call(c.ID, c.Name, string(c.Args))
	}
	if c := res.Incomplete; c != nil {
		call(c.CallID, c.ToolName, c.ArgsPrefix)
	}
	return out
}
