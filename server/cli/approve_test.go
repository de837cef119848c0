package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// gatedSite is a configuration whose agent writes a line to a file, and another, each after an approval of its own.
const gatedSite = `{
	"auth": {"kind": "none"}, "storage": {"path": "data/data.db"},
	"providers": {"script": {"kind": "scripted", "script": "script.json"}},
	"tools": {
		"wait": {"kind": "exec", "description": "Waits", "command": ["sh", "-c", "cat > begun; cat fifo"]},
		"soon": {"kind": "exec", "description": "Pays", "command": ["sh", "-c", "cat >> paid.txt; echo paid"], "approvalTerms": {"expiresMs": 1000}},
		"pay": {"kind": "exec", "description": "Pays", "command": ["sh", "-c", "cat >> paid.txt; echo paid"]}},
	"agents": {
		"same": {"kind": "exec", "command": ["cat"]},
		"clerk": {"kind": "llm", "provider": "script", "model": "m", "tools": ["pay"]},
		"pair": {"kind": "llm", "provider": "script", "model": "pair", "tools": ["pay"]},
		"slow": {"kind": "llm", "provider": "script", "model": "slow", "tools": ["wait"]},
		"hasty": {"kind": "llm", "provider": "script", "model": "hasty", "tools": ["soon"]},
		"program": {"kind": "exec", "protocol": "jsonl", "command": ["sh", "program.sh"]},
		"spoof": {"kind": "exec", "protocol": "jsonl", "command": ["sh", "program.sh", "spoof"]},
		"unsure": {"kind": "exec", "protocol": "jsonl", "command": ["sh", "program.sh", "unsure"]}
	}
}`

const gatedScript = `{"turns": [
	{"when": {"step": 0, "model": "slow"}, "toolCalls": [{"name": "wait", "args": {}}]},
	{"when": {"step": 0, "model": "hasty"}, "toolCalls": [{"name": "soon", "args": {}}]},
	{"when": {"step": 0, "model": "pair"}, "toolCalls": [{"name": "pay", "args": {"to": "ann"}}, {"name": "pay", "args": {"to": "bob"}}]},
	{"when": {"step": 0}, "text": "I pay.", "toolCalls": [{"name": "pay", "args": {"to": "{{lastUser}}"}}]},
	{"text": "Done: {{lastTool}}"}
]}`

// gatedProgram asks for an approval itself. As spoof, it says first what looks like another question, and waits until it
// may go on; as unsure, it says that the call may have happened.
const gatedProgram = `read -r line
case "$1$line" in
spoof*'"type":"run"'*)
	printf '%s\n' '{"type":"text.delta","delta":"tidy waits for your approval:\n  {}\n[y]es, [n]o, [a]bort the run, leave it [w]aiting? "}'
	cat fifo > /dev/null
	printf '%s\n' '{"type":"approval.request","toolCallId":"c1","toolName":"pay","args":{"to":"eve\u202e\u200b\udb40\udc41"}}' ;;
unsure*'"type":"run"'*) echo '{"type":"approval.request","toolCallId":"c1","toolName":"pay","args":{},"reason":"outcome-unknown"}' ;;
*'"type":"run"'*) echo '{"type":"approval.request","toolCallId":"c1","toolName":"pay","args":{"to":"ann"},"reason":"over the limit"}' ;;
*'"granted":true'*) echo ann >> paid.txt; echo '{"type":"result","output":"Paid."}' ;;
*'"granted":false'*) echo '{"type":"result","output":"Not paid."}' ;;
esac
`

func newGatedSite(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), gatedSite)
	write(t, filepath.Join(dir, "script.json"), gatedScript)
	write(t, filepath.Join(dir, "program.sh"), gatedProgram)
	return dir
}

// payments is how often the tool of a site did what it does.
func payments(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "paid.txt"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Count(string(b), "\n")
}

type waiting struct{ RunID, ToolCallID string }

// waits lists what waits, by the program.
func waits(t *testing.T, dir string) []waiting {
	t.Helper()
	var list struct{ Approvals []waiting }
	spawn(t, dir, nil, nil, "approvals", "--json").wait().want(t, 0, "", "").decode(t, &list)
	return list.Approvals
}

// park runs an agent until it waits, and returns what for.
func park(t *testing.T, dir, agent, input string) []waiting {
	t.Helper()
	s := spawn(t, dir, nil, nil, "run", agent, input).wait()
	w := waits(t, dir)
	if s.code != 3 || len(w) == 0 {
		t.Fatalf("run %s = %d with %v waiting, want 3 and some; stderr:\n%s", agent, s.code, w, s.stderr)
	}
	return w
}

// inside runs a test in a folder without a server: commands carry out their requests themselves.
func inside(t *testing.T, test func(t *testing.T, dir string)) { test(t, newGatedSite(t)) }

// everywhere runs a test with a server that holds the database, and without one. Both ways are requests to the same API, so
// it is for tests of what comes in between.
func everywhere(t *testing.T, test func(t *testing.T, dir string)) {
	t.Run("here", func(t *testing.T) { inside(t, test) })
	t.Run("through a server", func(t *testing.T) {
		dir := newGatedSite(t)
		serve(t, dir)
		test(t, dir)
	})
}

func TestApprove(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, dir string) {
		p := spawn(t, dir, nil, nil, "run", "clerk", "ann").wait()
		w := waits(t, dir)
		if len(w) != 1 {
			t.Fatalf("approvals = %v, want one", w)
		}
		run, call := w[0].RunID, w[0].ToolCallID
		p.want(t, 3, "I pay.", "agentd: pay waits for approval:\n  {\n    \"to\": \"ann\"\n  }\n").want(t, 3, "", "  call: "+call+"\n").
			want(t, 3, "", "  agentd runs approve "+run+"\n  agentd runs deny "+run+" --reason WHY\n")

		spawn(t, dir, nil, nil, "approvals").wait().want(t, 0, "run "+run+": pay waits for approval since ", "").
			want(t, 0, "  {\n    \"to\": \"ann\"\n  }\n  call: "+call+"\n  asked by: clerk, in a run that ", "")
		spawn(t, dir, nil, nil, "runs", "show", run).wait().want(t, 0, "status:   awaiting_approval\n", "").
			want(t, 0, "\npay waits for approval since ", "").want(t, 0, "  {\n    \"to\": \"ann\"\n  }\n  call: "+call+"\n", "").want(t, 0, "last text:\n  I pay.\n", "")
		spawn(t, dir, nil, nil, "runs", "list", "--status", "awaiting_approval", "--agent", "clerk").wait().want(t, 0, run+"  clerk              awaiting_approval", "")
		spawn(t, dir, nil, nil, "runs", "approve", run, "none").wait().want(t, 1, "", `does not wait for the call "none"`).want(t, 1, "", call)

		s := spawn(t, dir, nil, nil, "runs", "approve", run, call).wait().want(t, 0, "", "")
		if s.stdout != "Done: paid\n" || s.stderr != "" || payments(t, dir) != 1 {
			t.Errorf("approve: stdout %q, stderr %q and %d payments; want the new text alone, and one", s.stdout, s.stderr, payments(t, dir))
		}
		spawn(t, dir, nil, nil, "runs", "approve", run).wait().want(t, 1, "", "agentd: run-not-suspended: The run is completed.\n  hint: See")
		spawn(t, dir, nil, nil, "runs", "show", run).wait().want(t, 0, "status:   completed\n", "").want(t, 0, "last text:\n  Done: paid\n", "")
		if w := waits(t, dir); len(w) > 0 {
			t.Errorf("approvals = %v after the approval, want none", w)
		}
	})
}

func TestDeny(t *testing.T) {
	t.Parallel()
	inside(t, func(t *testing.T, dir string) {
		run := park(t, dir, "clerk", "ann")[0].RunID
		s := spawn(t, dir, nil, nil, "runs", "deny", run, "--reason", "not today").wait().want(t, 0, "Done: Error: Approval was denied: not today", "")
		if n := payments(t, dir); n != 0 || strings.Contains(s.stdout, "I pay.") {
			t.Errorf("deny: %d payments and stdout %q, want none, and only the new text", n, s.stdout)
		}
	})
}

func TestDecideOnOneOfTwo(t *testing.T) {
	t.Parallel()
	inside(t, func(t *testing.T, dir string) {
		w := park(t, dir, "pair", "x")
		if len(w) != 2 {
			t.Fatalf("approvals = %v, want two", w)
		}
		s := spawn(t, dir, nil, nil, "runs", "approve", w[0].RunID, w[1].ToolCallID).wait().want(t, 3, "", "call: "+w[0].ToolCallID+"\n")
		if strings.Contains(s.stderr, w[1].ToolCallID) || payments(t, dir) != 1 {
			t.Errorf("after one of two: %d payments and stderr %s", payments(t, dir), s.stderr)
		}
		var ended struct {
			Type   string
			Result struct{ Status string }
		}
		s = spawn(t, dir, nil, nil, "runs", "deny", w[0].RunID, "--json").wait().want(t, 0, `"type":"tool.approval.denied"`, "")
		lines := strings.Split(strings.TrimSpace(s.stdout), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &ended); err != nil || ended.Result.Status != "completed" || strings.Count(s.stdout, "agent.end") != 1 {
			t.Errorf("deny --json ends with %+v, %v; want the events from the decision to the end", ended, err)
		}
	})
}

func TestAbortARunThatWaits(t *testing.T) {
	t.Parallel()
	inside(t, func(t *testing.T, dir string) {
		run := park(t, dir, "clerk", "ann")[0].RunID
		spawn(t, dir, nil, nil, "runs", "abort", run, "--on-pending", "maybe").wait().want(t, 2, "", "want one of deny, hold, fail")
		spawn(t, dir, nil, nil, "runs", "abort", run).wait().want(t, 0, "Run "+run+" is aborted.\n", "")
		spawn(t, dir, nil, nil, "runs", "show", run).wait().want(t, 0, "error:    run-aborted: ", "").want(t, 0, "hint: ", "")
		run = park(t, dir, "clerk", "bob")[0].RunID
		var answer struct{ RunID, Status string }
		spawn(t, dir, nil, nil, "runs", "abort", run, "--on-pending", "fail", "--json").wait().want(t, 0, "", "").decode(t, &answer)
		if answer.RunID != run || answer.Status != "failed" {
			t.Errorf("runs abort --on-pending fail --json = %+v, want %s failed", answer, run)
		}
		spawn(t, dir, nil, nil, "runs", "abort", run).wait().want(t, 1, "", "has already ended: it is failed")
		spawn(t, dir, nil, nil, "runs", "abort", "none").wait().want(t, 1, "", "hint: List the runs with `agentd runs list`.")
		if n := payments(t, dir); n != 0 {
			t.Errorf("%d payments by runs that were aborted, want none", n)
		}
	})
}

// TestDecideOnAHeldRun decides on a run that was aborted and keeps its approvals.
func TestDecideOnAHeldRun(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, dir string) {
		w := park(t, dir, "pair", "x")
		run := w[0].RunID
		spawn(t, dir, nil, nil, "runs", "abort", run, "--on-pending", "hold").wait().want(t, 0, "Run "+run+" is aborted.\n", "")
		spawn(t, dir, nil, nil, "runs", "show", run).wait().want(t, 0, "status:   aborted\n", "").want(t, 0, "call: "+w[1].ToolCallID+"\n", "")
		spawn(t, dir, nil, nil, "runs", "approve", run, w[1].ToolCallID).wait().want(t, 1, "", "agentd: run-not-suspended: The run is aborted and its approvals are held")
		if n := payments(t, dir); n != 0 {
			t.Errorf("%d payments before a decision on all, want none", n)
		}
		if list := waits(t, dir); len(list) != 0 {
			t.Errorf("approvals = %v, want none: nobody waits for what an aborted run holds", list)
		}
		s := spawn(t, dir, nil, nil, "runs", "approve", run).wait().want(t, 0, "Done: paid", "")
		if strings.Contains(s.stdout, "I pay.") || s.stderr != "" || payments(t, dir) != 2 {
			t.Errorf("approve: stdout %q, stderr %q and %d payments; want the new text alone, and two", s.stdout, s.stderr, payments(t, dir))
		}
		spawn(t, dir, nil, nil, "runs", "show", run).wait().want(t, 0, "status:   completed\n", "")

		run = park(t, dir, "clerk", "bob")[0].RunID
		spawn(t, dir, nil, nil, "runs", "abort", run, "--on-pending", "hold").wait().want(t, 0, "is aborted", "")
		spawn(t, dir, nil, nil, "runs", "deny", run, "--reason", "not today").wait().want(t, 0, "Done: Error: Approval was denied: not today", "")
		spawn(t, dir, nil, nil, "runs", "abort", run, "--on-pending", "hold").wait().want(t, 1, "", "has already ended")
	})
}

// TestApproveAfterAKill approves what a server asked for that was killed since.
func TestApproveAfterAKill(t *testing.T) {
	t.Parallel()
	dir := newGatedSite(t)
	s := serve(t, dir)
	run := park(t, dir, "clerk", "ann")[0].RunID
	s.signal(syscall.SIGKILL)
	s.wait()
	if got := waits(t, dir); len(got) != 1 || got[0].RunID != run {
		t.Errorf("approvals after the kill = %v, want run %s", got, run)
	}
	s = serve(t, dir)
	if got := s.status(run); got != "awaiting_approval" {
		t.Errorf("status %s after the restart, want awaiting_approval", got)
	}
	ready := time.Now()
	got := spawn(t, dir, nil, nil, "runs", "approve", run).wait().want(t, 0, "", "")
	if took := time.Since(ready); took > 2*time.Second {
		t.Errorf("from ready to the end of the approved run: %v, want at most 2s", took)
	} else {
		t.Logf("from ready to the end of the approved run: %v", took)
	}
	if got.stdout != "Done: paid\n" || s.status(run) != "completed" || payments(t, dir) != 1 {
		t.Errorf("approve after the kill: stdout %q, status %s and %d payments, want one", got.stdout, s.status(run), payments(t, dir))
	}
	s.signal(syscall.SIGKILL)
	s.wait()
	s = serve(t, dir)
	if got := s.status(run); got != "completed" || payments(t, dir) != 1 {
		t.Errorf("after another kill: status %s and %d payments, want completed and one", got, payments(t, dir))
	}
}

// TestApproveWhatMayHaveHappened kills the server while a call is made. Nobody knows what became of it, so a plain
// approval is refused, through a server and without one.
func TestApproveWhatMayHaveHappened(t *testing.T) {
	t.Parallel()
	dir := newGatedSite(t)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir)
	run := park(t, dir, "slow", "x")[0].RunID
	spawn(t, dir, nil, nil, "runs", "approve", run)
	begun := filepath.Join(dir, "begun")
	eventually(t, "the call", func() bool { _, err := os.Stat(begun); return err == nil })
	s.signal(syscall.SIGKILL)
	s.wait()
	os.Remove(begun)
	refused := func() {
		t.Helper()
		call := waits(t, dir)[0].ToolCallID
		for _, args := range [][]string{{run}, {run, call}} {
			spawn(t, dir, nil, nil, append([]string{"runs", "approve"}, args...)...).wait().want(t, 1, "", "agentd: outcome-unknown: The call "+call+" of wait may already have taken effect").
				want(t, 1, "", "deny it. To make the call once more, add --again")
		}
	}
	s = serve(t, dir)
	eventually(t, "the question", func() bool { return s.status(run) == "awaiting_approval" })
	refused()
	s.signal(syscall.SIGTERM)
	s.wait()
	refused()
	if _, err := os.Stat(begun); err == nil {
		t.Error("the call was made again without leave")
	}
	os.Remove(fifo)
	write(t, fifo, "served")
	spawn(t, dir, nil, nil, "runs", "approve", run, "--again").wait().want(t, 0, "Done: served", "")
}

// TestGatewayTimeout: a payment whose server answers 504 is not told to the model as failed; a person decides, from outside.
func TestGatewayTimeout(t *testing.T) {
	t.Parallel()
	var posts atomic.Int32
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if posts.Add(1) == 1 {
			w.WriteHeader(http.StatusGatewayTimeout)
			return
		}
		io.WriteString(w, `"paid by the bank"`)
	}))
	defer bank.Close()
	dir := newGatedSite(t)
	write(t, filepath.Join(dir, "agentd.json"), `{"auth": {"kind": "none"}, "storage": {"path": "data/data.db"},
		"providers": {"script": {"kind": "scripted", "script": "script.json"}},
		"tools": {"pay": {"kind": "http", "description": "Pays", "method": "POST", "url": "`+bank.URL+`/pay", "approval": "never",
			"input": {"type": "object", "properties": {"to": {"type": "string"}}}}},
		"agents": {"clerk": {"kind": "llm", "provider": "script", "model": "m", "tools": ["pay"]}}}`)
	for _, again := range []bool{true, false} {
		posts.Store(0)
		s := spawn(t, dir, nil, nil, "run", "clerk", "ann").wait().want(t, 3, "I pay.", "IT MAY HAVE HAPPENED ALREADY").
			want(t, 3, "", "begun: once at ").want(t, 3, "", "The server answered 504 Gateway Timeout.")
		if strings.Contains(s.stderr, "failed") {
			t.Errorf("stderr tells of a failure:\n%s", s.stderr)
		}
		run := waits(t, dir)[0].RunID
		spawn(t, dir, nil, nil, "approvals").wait().want(t, 0, "IT MAY HAVE HAPPENED ALREADY", "")
		spawn(t, dir, nil, nil, "runs", "show", run).wait().want(t, 0, "IT MAY HAVE HAPPENED ALREADY", "")
		spawn(t, dir, nil, nil, "runs", "approve", run).wait().want(t, 1, "", "agentd: outcome-unknown: ")
		if again {
			spawn(t, dir, nil, nil, "runs", "approve", run, "--again").wait().want(t, 0, "Done: paid by the bank", "")
		} else {
			spawn(t, dir, nil, nil, "runs", "deny", run, "--reason", "It was booked.").wait().want(t, 0, "Done: Error: The outcome of this call is unknown: the server answered 504", "")
		}
		if want := map[bool]int32{true: 2, false: 1}[again]; posts.Load() != want {
			t.Errorf("again %t: %d requests, want %d", again, posts.Load(), want)
		}
	}
}

// TestInterruptedApprovalHarmsNoRun interrupts the command that approved a call, while the call is made.
func TestInterruptedApprovalHarmsNoRun(t *testing.T) {
	t.Parallel()
	dir := newGatedSite(t)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, dir)
	run := park(t, dir, "slow", "x")[0].RunID
	p := spawn(t, dir, nil, nil, "runs", "approve", run, "--verbose")
	eventually(t, "the call", func() bool { return strings.Contains(p.stderr.String(), "· wait") })
	p.signal(syscall.SIGINT)
	p.wait().want(t, 1, "", "agentd: stopped watching run "+run+"; it continues in the server\n")
	if got := s.status(run); got != "running" {
		t.Errorf("status %s after the interruption, want running", got)
	}
	write(t, fifo, "served")
	eventually(t, "the end of the run", func() bool { return s.status(run) == "completed" })
}

func TestRunsUsage(t *testing.T) {
	t.Chdir(newGatedSite(t))
	here(t, "runs", "list").want(t, 1, "", "Make the database with `agentd run` or `agentd start`")
	here(t, "runs").want(t, 2, "", "runs needs one of list, show, approve, deny, abort")
	here(t, "runs", "list", "--status", "done").want(t, 2, "", `invalid value "done" for flag -status: want one of pending, `)
	here(t, "runs", "list", "--limit", "0").want(t, 2, "", "want 1 to 1000")
	here(t, "run", "clerk", "x").want(t, 3, "I pay.", "Decide with one of")
	var list struct {
		Runs []struct {
			AgentID, Status string
			Usage           struct{ TotalTokens int }
		}
	}
	if here(t, "runs", "list", "--json").decode(t, &list); len(list.Runs) != 1 || list.Runs[0].AgentID != "clerk" || list.Runs[0].Usage.TotalTokens == 0 {
		t.Errorf("runs list --json = %+v, want the run of clerk", list)
	}
	here(t, "runs", "show", "none").want(t, 1, "", "agentd: run-not-found: There is no run \"none\".\n  hint: List the runs with `agentd runs list`.")
	here(t, "runs", "approve", "none").want(t, 1, "", "agentd: run-not-found")
}
