package workflow

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"agentd/server/expr"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/journal"
	"agentd/server/message"
)

// A problem is why a task failed, as handlers and expressions see it.
type problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Node    string `json:"node"`
	Hint    string `json:"hint,omitempty"`
	Final   bool   `json:"final,omitempty"` // no handler takes it, and no retry begins again
}

// trouble is a problem of a kind, with its hint.
func trouble(kind *fault.Kind, format string, args ...any) *problem {
	return problemOf(fault.New(kind, format, args...))
}

// problemOf makes a problem of an error, at no node.
func problemOf(err error) *problem {
	if e, ok := errors.AsType[*expr.Error](err); ok {
		return &problem{Code: cmp.Or(e.Code, fault.ExpressionFailed.Code), Message: err.Error(), Hint: e.Hint}
	}
	f := fault.Of(err)
	return &problem{Code: f.Kind.Code, Message: f.Message, Hint: f.NextStep()}
}

// at sets the node of a problem.
func (p *problem) at(node string) *problem {
	p.Node = node
	return p
}

func (p *problem) fault() *fault.Error { return fault.Told(p.Code, p.Message, p.Hint) }

// value is the problem as expressions see it.
func (p *problem) value() any {
	if p == nil {
		return nil
	}
	return map[string]any{"code": p.Code, "message": p.Message, "node": p.Node}
}

// retries reports whether another attempt follows a failure.
func (t *thread) retries(n *graph.Node, k *task, p *problem) bool {
	r := n.Retry
	if r == nil || k.Attempt-k.Past >= r.Max {
		return false
	}
	if r.On != nil {
		return slices.Contains(r.On, p.Code)
	}
	return !slices.Contains(lasting, p.Code)
}

// lasting are the codes of failures that another attempt only repeats: those of the workflow, and of tools.
var lasting = []string{fault.ConfigInvalid.Code, fault.ApprovalDenied.Code, fault.ExpressionFailed.Code, fault.OutcomeUnknown.Code, fault.StateTooLarge.Code,
	fault.StateNotSerializable.Code, fault.MaxStepsExceeded.Code, fault.CallTooDeep.Code, "invalid-input", "unknown-tool", "capability-blocked"}

func tooLarge(key string, size, most int) *problem {
	return trouble(fault.StateTooLarge, "With the key %q, the state of the thread has %d bytes; maxStateBytes is %d.", key, size, most)
}

// backoff is how long the next attempt waits: exponential with full jitter.
func backoff(r *graph.Retry, attempt int) int64 {
	most := r.Backoff
	for range min(attempt-1, 20) {
		most = min(most, math.MaxInt64/2) * 2
	}
	if r.MaxBackoff > 0 {
		most = min(most, r.MaxBackoff)
	}
	return rand.Int64N(most.Milliseconds() + 1)
}

// shown is a problem as runs show it.
func (p *problem) shown() *journal.Error {
	f := p.fault()
	return &journal.Error{Message: f.Message, Code: f.Kind.Code, Hint: f.NextStep()}
}

// problemOfOutcome makes a problem of how a call ended.
func problemOfOutcome(o *message.Outcome) *problem {
	code := strings.ReplaceAll(string(o.Kind), "_", "-")
	switch o.Kind {
	case message.Timeout:
		code = fault.NodeTimeout.Code
	case message.ExecutionFailed:
		code = fault.NodeFailed.Code
	}
	return &problem{Code: code, Message: o.Message, Hint: o.Hint}
}
