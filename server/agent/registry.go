package agent

import (
	"sync"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/run"
	"agentd/server/tool"
)

// Registry is the agents that can be run. The zero value is empty and ready; it is safe for concurrent use.
type Registry struct {
	mu     sync.Mutex // guards the fields below
	agents map[string]*Registration
	order  []string
}

// Register adds an agent. An id that is taken is refused with duplicate-id, one that cannot be part of a subject with
// config-invalid.
func (g *Registry) Register(reg Registration) error {
	if !event.ValidID(reg.ID) {
		return fault.Invalid("An agent id has 1 to 128 characters of A-Z a-z 0-9 _ -.", fault.At("is not a valid id", "id"))
	}
	if (reg.Agent == nil) == (reg.LLM == nil) {
		return fault.Invalid("A registration has an agent.", fault.At("set one of Agent and LLM", "agent"))
	}
	if reg.LLM != nil && reg.LLM.Tools == nil {
		none, err := tool.NewSet()
		if err != nil {
			return err
		}
		toolless := *reg.LLM
		toolless.Tools, reg.LLM = none, &toolless
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.agents[reg.ID] != nil {
		return fault.New(fault.DuplicateID, "The agent %q is already registered.", reg.ID)
	}
	if g.agents == nil {
		g.agents = map[string]*Registration{}
	}
	reg.owner = run.Owner{ID: reg.ID, Driver: opaque{reg.Agent}, HistoryTokens: defaultHistory, FailOnRestart: reg.FailOnRestart}
	if reg.LLM != nil {
		reg.owner.Driver, reg.owner.HistoryTokens = llm{reg.LLM}, reg.LLM.HistoryTokens
	}
	g.agents[reg.ID] = &reg
	g.order = append(g.order, reg.ID)
	return nil
}

// Agents returns the registrations in the order in which they were made.
func (g *Registry) Agents() []*Registration {
	g.mu.Lock()
	defer g.mu.Unlock()
	regs := make([]*Registration, 0, len(g.order))
	for _, id := range g.order {
		regs = append(regs, g.agents[id])
	}
	return regs
}

// Agent returns one registration, nil when there is none.
func (g *Registry) Agent(id string) *Registration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.agents[id]
}

// Registration is what is known about an agent. Exactly one of Agent and LLM is set.
type Registration struct {
	ID          string
	Description string
	Tags        []string
	Agent       Agent
	LLM         *LLM
	// FailOnRestart makes a run that a restart interrupted end as failed, also where it could go on.
	FailOnRestart bool

	owner run.Owner
}

const defaultHistory = 8000 // tokens

// owner returns what the kernel runs.
func (g *Registry) owner(id string) *run.Owner {
	if reg := g.Agent(id); reg != nil {
		return &reg.owner
	}
	return nil
}
