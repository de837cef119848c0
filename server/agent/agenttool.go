package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"agentd/server/tool"
	"agentd/store"
)

// An agent as a tool of another: its calls are child runs; see package run.

const (
	HandoffPrefix  = "transfer_to_" // begins the names of tools that hand a conversation over
	subAgentPrefix = "subagent_"
)

// agentTool offers another agent as a tool. The kernel makes its calls, as child runs.
type agentTool struct {
	agent   string
	handoff bool
	spec    tool.Spec
}

// HandoffTool is the tool `transfer_to_<agentID>`: the agent is given the conversation, and its final answer is the
// result of the call. The calling agent then continues the conversation.
func HandoffTool(agentID, description string) tool.Tool {
	return agentTool{agent: agentID, handoff: true, spec: tool.Spec{Name: HandoffPrefix + agentID, Truncation: tool.Spill,
		Description: sentence("Hand this conversation over to the agent "+agentID, description),
		Input:       json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`)}}
}

// TransferTool is [HandoffTool] with an agent that keeps the conversation: its final answer is the run's answer, and what
// is said to the session next goes to it. It is given back by such a tool for the agent that it came from. A child that does
// not complete is given nothing: its end is the result of the call.
func TransferTool(agentID, description string) tool.Tool {
	t := HandoffTool(agentID, "").(agentTool)
	t.spec.Final = true
	t.spec.Description = sentence("Give this conversation to the agent "+agentID+", which answers from now on", description)
	return t
}

// SubAgentTool is the tool `subagent_<agentID>`: the agent answers a question of its own.
func SubAgentTool(agentID, description string) tool.Tool {
	return agentTool{agent: agentID, spec: tool.Spec{Name: subAgentPrefix + agentID, Truncation: tool.Spill,
		Description: sentence("Ask the agent "+agentID+", which sees nothing of this conversation but the input", description),
		Input: json.RawMessage(`{"type":"object","properties":{"input":{"type":"string","description":"What the agent shall do, with all it needs to know."}},` +
			`"required":["input"],"additionalProperties":false}`)}}
}

func sentence(what, description string) string {
	if description == "" {
		return what + "."
	}
	return what + ": " + description
}

func (t agentTool) Spec() tool.Spec { return t.spec }

func (t agentTool) Execute(context.Context, tool.Call) (tool.Result, error) {
	return tool.Result{}, errors.New("an agent runs only as a part of a run")
}

// label names the child in messages.
func (t agentTool) label() string {
	if t.handoff {
		return fmt.Sprintf("handoff to %q", t.agent)
	}
	return fmt.Sprintf("sub-agent %q", t.agent)
}

// agentTool finds the agent behind a tool's name.
func (a *LLM) agentTool(name string) (t agentTool, ok bool) {
	found, ok := a.Tools.Get(name)
	if ok {
		t, ok = found.(agentTool)
	}
	return t, ok
}

// callee returns the agent behind a call, also where a restart has taken the tool out of this agent's tools.
func (a *LLM) callee(c *store.Call) agentTool {
	t, ok := a.agentTool(c.Name)
	if !ok {
		if t.agent, t.handoff = strings.CutPrefix(c.Name, HandoffPrefix); !t.handoff {
			t.agent = strings.TrimPrefix(c.Name, subAgentPrefix)
		}
	}
	return t
}

// Callee returns the agent that a tool calls; empty for any other tool.
func (a *LLM) Callee(name string) string {
	t, _ := a.agentTool(name)
	return t.agent
}
