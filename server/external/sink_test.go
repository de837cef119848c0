package external_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
)

// A recorder is a sink that keeps what it is given. said, when set, is told of every entry.
type recorder struct {
	mu    sync.Mutex // guards log: a test may look while the agent runs
	log   []string
	state json.RawMessage
	said  func(string)
	fail  error // what Emit returns
	no    error // what RequestApproval returns
}

func (r *recorder) Emit(ev event.Event) error {
	r.add(string(ev.Payload))
	return r.fail
}

func (r *recorder) Checkpoint(state json.RawMessage) error {
	r.state = state
	r.add("checkpoint " + string(state))
	return nil
}

func (r *recorder) RequestApproval(q agent.ApprovalRequest) error {
	r.add(fmt.Sprintf("approval %s %s %s %s", q.ToolCallID, q.ToolName, q.Args, q.Reason))
	return r.no
}

func (r *recorder) add(entry string) {
	r.mu.Lock()
	r.log = append(r.log, entry)
	r.mu.Unlock()
	if r.said != nil {
		r.said(entry)
	}
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.log, "\n")
}

var errSink = errors.New("the disk is full")

func input(text string) agent.Input {
	b, _ := message.Encode(text)
	return agent.Input{RunID: "run-1", AgentID: "bot", Input: b}
}

// output is a result's output as JSON.
func output(t *testing.T, res agent.Result) string {
	t.Helper()
	b, err := message.Encode(res.Output)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// wantFault checks the kind of an error and what its message says.
func wantFault(t *testing.T, call string, err error, kind *fault.Kind, says ...string) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Errorf("%s error = %v, want %s", call, err, kind.Code)
		return
	}
	for _, s := range says {
		if f := fault.Of(err); !strings.Contains(f.Message+" "+f.NextStep()+fmt.Sprint(f.Issues), s) {
			t.Errorf("%s error = %v, want it to say %q", call, err, s)
		}
	}
}
