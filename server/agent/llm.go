package agent

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/schema"
	"agentd/server/tool"
)

// LLM is an agent that a model drives: it is asked, it may call tools, it is asked again with their outcomes, until
// it answers with text alone.
type LLM struct {
	Instructions  string
	Models        []Model // tried in order; the ones after the first are fallbacks
	Temperature   *float64
	MaxTokens     int // of one answer; 0: the model's own limit
	ToolChoice    provider.ToolChoice
	Tools         *tool.Set // nil: none
	Policy        Policy    // which calls it may make, and which a person must allow
	MaxSteps      int       // 50 when 0. Reaching it without an answer is a failure.
	MaxParallel   int       // tool calls at once; 8 when 0
	HistoryTokens int       // of the session's transcript; 0: none
	Output        *Output   // nil: text
	Budget        Budget
	Forward       string        // events of children that it forwards: none, all, or lifecycle (the zero value)
	Filter        HandoffFilter // of what a hand-off passes on
	NewTape       func() Tape   // keeps what a recording of a run needs beside its transcript; nil: nothing

	// CallerInstructions says that an input may have system messages, which stand after Instructions and are marked as the
	// caller's.
	CallerInstructions bool
}

// Model is a model and who serves it.
type Model struct {
	Provider provider.Provider
	Model    string
}

// Output is the form that the answer must have: JSON that fits a schema.
type Output struct {
	Spec   provider.OutputSpec
	Schema *schema.Schema
}

// Budget bounds what one run may use; zero means no bound. A bound is checked before a model call and before tool
// calls, so that one call can pass it.
type Budget struct {
	Tokens    int64
	CostUSD   float64
	ToolCalls int
	Wall      time.Duration // from the start of the run
}

const (
	defaultSteps = 50
	// maxItems is how many messages and parts of messages an input may have: each becomes rows and takes a multiple of its
	// length in memory.
	maxItems = 10_000
)

func (a llm) Accept(input json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(input, &text) == nil {
		return "text", nil
	}
	var list []message.Message
	if json.Unmarshal(input, &list) != nil {
		var one message.Message
		if json.Unmarshal(input, &one) != nil {
			return "", fault.Invalid("The input is neither text nor messages.", fault.At("is a string, a message or a list of messages", "input"))
		}
		list = []message.Message{one}
	}
	if len(list) == 0 {
		return "", fault.Invalid("The input has no message.", fault.At("has at least one message", "input"))
	}
	items := len(list)
	for _, m := range list {
		items += len(m.Content.Parts)
	}
	if items > maxItems {
		return "", fault.Invalid("The input has too many messages.", fault.At(fmt.Sprintf("has at most %d messages and parts of messages", maxItems), "input"))
	}
	var issues []fault.Issue
	for i, m := range list {
		switch m.Role {
		case message.User, message.Assistant, message.Tool:
		case message.System, message.Developer:
			if !a.CallerInstructions {
				issues = append(issues, fault.At(`is user, assistant or tool; only an agent with "callerInstructions": "append" takes instructions of its callers`, "input", i, "role"))
			}
		default:
			issues = append(issues, fault.At("is user, assistant or tool", "input", i, "role"))
		}
		for j, p := range m.Content.Parts {
			b, ok := p.Media()
			if !ok && p.Type != "text" && p.Type != "reasoning" {
				issues = append(issues, fault.At("is text, image, audio, file or reasoning", "input", i, "content", j, "type"))
			}
			if ok && (b == nil || b.Enc != "base64" && (b.Enc != "url" || b.Href == "")) {
				issues = append(issues, fault.At(`is {"enc": "base64", "data": ...} or {"enc": "url", "href": ...}`, "input", i, "content", j, p.Type))
			}
		}
	}
	if issues != nil {
		return "", fault.Invalid("The input's messages are not valid.", issues...)
	}
	if len(list) > 1 && list[len(list)-1].Role == message.Assistant && len(list[len(list)-1].ToolCalls) > 0 {
		return "", fault.Invalid("The input ends with tool calls.", fault.At("must end with a message that the model can answer", "input"))
	}
	return "messages", nil
}

// parse reads the answer as JSON, without one surrounding code fence, and checks it.
func (o *Output) parse(text string) (json.RawMessage, error) {
	text = strings.TrimSpace(text)
	if body, ok := strings.CutPrefix(text, "```"); ok {
		if _, rest, ok := strings.Cut(body, "\n"); ok {
			text = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "```"))
		}
	}
	if !json.Valid([]byte(text)) {
		return nil, fault.New(fault.OutputInvalid, "The answer is not JSON.")
	}
	if o.Schema != nil {
		if issues := o.Schema.Validate(json.RawMessage(text)); len(issues) > 0 {
			return nil, fault.New(fault.OutputInvalid, "The answer does not fit the output schema: %s.", fmt.Sprint(issues[0]))
		}
	}
	return json.RawMessage(text), nil
}
