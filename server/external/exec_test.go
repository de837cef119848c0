package external_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/server/agent"
	"agentd/server/external"
	"agentd/server/fault"
	"agentd/server/proc"
	"agentd/server/run"
	"agentd/server/secret"
)

func newExec(t *testing.T, opts external.ExecOptions) agent.Streamer {
	t.Helper()
	opts.ID, opts.Timeout = "bot", cmp.Or(opts.Timeout, time.Minute)
	return external.NewExec(opts)
}

func sh(script, dir string) proc.Command {
	return proc.Command{Argv: []string{"sh", "-c", script}, Dir: dir}
}

// shell is an agent that runs a script.
func shell(t *testing.T, protocol, script string) agent.Streamer {
	t.Helper()
	return newExec(t, external.ExecOptions{Program: sh(script, t.TempDir()), Protocol: protocol})
}

// fifo makes a named pipe.
func fifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestText(t *testing.T) {
	for _, tc := range []struct {
		name, script, in, output string
		events                   []string
	}{
		{"upper-case", "tr a-z A-Z", "hello\nyou\n", `"HELLO\nYOU\n"`, []string{
			`{"type":"text.delta","delta":"HELLO\nYOU\n"}`, `{"type":"text.complete","text":"HELLO\nYOU\n"}`}},
		{"silent", "cat >/dev/null", "hello", `""`, nil},
		{"input is not read", ":", strings.Repeat("x", 1<<20), `""`, nil},
		{"invalid bytes", `printf 'a\377b\344\270'`, "", `"a` + "\uFFFDb\uFFFD\uFFFD" + `"`, []string{
			`{"type":"text.delta","delta":"a` + "\uFFFDb" + `"}`, `{"type":"text.delta","delta":"` + "\uFFFD\uFFFD" + `"}`,
			`{"type":"text.complete","text":"a` + "\uFFFDb\uFFFD\uFFFD" + `"}`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sink := &recorder{}
			a := shell(t, "text", tc.script)
			res, err := a.Stream(t.Context(), input(tc.in), sink)
			if err != nil || output(t, res) != tc.output {
				t.Errorf("Stream(%.20q) = %s, %v; want %s", tc.in, output(t, res), err, tc.output)
			}
			if want := strings.Join(tc.events, "\n"); sink.String() != want {
				t.Errorf("events = %s, want %s", sink, want)
			}
			if res, err = a.Run(t.Context(), input(tc.in)); err != nil || output(t, res) != tc.output {
				t.Errorf("Run(%.20q) = %s, %v; want %s", tc.in, output(t, res), err, tc.output)
			}
		})
	}
	if _, ok := shell(t, "text", ":").(agent.Resumer); ok {
		t.Error("a text agent is a Resumer, but has no state")
	}
}

func TestTextCutsAtCharacters(t *testing.T) {
	path := fifo(t)
	a := shell(t, "text", `printf 'a\344\270'; read x <`+path+`; printf '\226b'`)
	sink := &recorder{said: func(entry string) {
		if strings.Contains(entry, `"a"`) {
			if err := os.WriteFile(path, []byte("go on\n"), 0); err != nil {
				t.Error(err)
			}
		}
	}}
	if _, err := a.Stream(t.Context(), input(""), sink); err != nil {
		t.Fatal(err)
	}
	want := `{"type":"text.delta","delta":"a"}` + "\n" + `{"type":"text.delta","delta":"世b"}` + "\n" + `{"type":"text.complete","text":"a世b"}`
	if sink.String() != want {
		t.Errorf("events = %s, want %s", sink, want)
	}
}

func TestJSONInputReachesATextProgramAsJSON(t *testing.T) {
	in := input("")
	in.Input = []byte(`{"a":[1]}`)
	res, err := shell(t, "text", "cat").Run(t.Context(), in)
	if err != nil || res.Output != `{"a":[1]}` {
		t.Errorf("Run() = %v, %v; want the JSON text", res.Output, err)
	}
}

func TestEnvironmentIsClean(t *testing.T) {
	t.Setenv("EXTERNAL_INHERITED", "yes")
	t.Setenv("EXTERNAL_SECRET", "no")
	t.Setenv("PATH", "/usr/bin:/bin")
	t.Setenv("HOME", "/home/agentd")
	t.Setenv("LANG", "de")
	t.Setenv("TZ", "UTC")
	t.Setenv("TMPDIR", "/tmp")
	for clean, want := range map[bool]string{
		true:  "AGENTD_AGENT_ID=bot\nAGENTD_RUN_ID=run-1\nEXTERNAL_INHERITED=yes\nLANG=C\n",
		false: "AGENTD_AGENT_ID=bot\nAGENTD_RUN_ID=run-1\nEXTERNAL_INHERITED=yes\nHOME=/home/agentd\nLANG=C\nPATH=/usr/bin:/bin\nTMPDIR=/tmp\nTZ=UTC\n",
	} {
		a := newExec(t, external.ExecOptions{
			Program: proc.Command{Argv: []string{"env"},
				Env: proc.Environ(map[string]string{"LANG": "C", "AGENTD_RUN_ID": "forged"}, []string{"EXTERNAL_INHERITED", "EXTERNAL_UNSET"}, clean)},
			Protocol: "text",
		})
		res, err := a.Run(t.Context(), input(""))
		if got, _ := res.Output.(string); err != nil || strings.Join(slices.Sorted(strings.Lines(got)), "") != want {
			t.Errorf("env with cleanEnv %v = %q, %v; want %q", clean, res.Output, err, want)
		}
	}
}

func TestLinesHappyPath(t *testing.T) {
	const script = `read -r first; printf '%s' "$first" >first
printf '{"type":"text.delta","delta":"H"}\n\n{"type":"my.own","n":1}\r\n'
printf '{"type":"checkpoint","state":[1]}\n{"type":"agent.end","forged":true}\n'
printf '{"type":"result","output":{"ok":true},"usage":{"promptTokens":2,"completionTokens":3,"totalTokens":5}}\n'
printf 'whatever\n'; exit 7`
	dir := t.TempDir()
	a := newExec(t, external.ExecOptions{Program: sh(script, dir), Protocol: "jsonl"})
	in := input("hi")
	in.SessionID = "s"
	sink := &recorder{}
	res, err := a.Stream(t.Context(), in, sink)
	if err != nil || output(t, res) != `{"ok":true}` || res.Usage.TotalTokens != 5 {
		t.Errorf("Stream() = %s, %+v, %v", res.Output, res.Usage, err)
	}
	want := strings.Join([]string{`{"type":"text.delta","delta":"H"}`, `{"type":"my.own","n":1}`, `checkpoint [1]`,
		`{"type":"agent.end","forged":true}`}, "\n")
	if sink.String() != want {
		t.Errorf("said = %s, want %s", sink, want)
	}
	want = `{"type":"run","runId":"run-1","agentId":"bot","sessionId":"s","input":"hi","messages":[]}`
	if got, err := os.ReadFile(filepath.Join(dir, "first")); string(got) != want || err != nil {
		t.Errorf("first line = %s, %v; want %s", got, err, want)
	}
}

func TestLinesResumeFromTheCheckpoint(t *testing.T) {
	a := shell(t, "jsonl", `read -r first
case "$first" in
*'"type":"run"'*) printf '{"type":"checkpoint","state":{"n":1}}\n'; kill -9 $$ ;;
*'"state":{"n":1},"approvals":[]}') printf '{"type":"result","output":"resumed"}\n' ;;
*'"state":null,"approvals":[]}') printf '{"type":"result","output":"afresh"}\n' ;;
esac`).(agent.Resumer)
	sink := &recorder{}
	_, err := a.Stream(t.Context(), input("hi"), sink)
	wantFault(t, "Stream()", err, fault.AgentExited, "signal: killed")
	res, err := a.Resume(t.Context(), input("hi"), agent.Resumption{State: sink.state}, sink)
	if err != nil || output(t, res) != `"resumed"` {
		t.Errorf("Resume(%s) = %s, %v; want resumed", sink.state, output(t, res), err)
	}
	if res, err = a.Resume(t.Context(), input("hi"), agent.Resumption{}, sink); err != nil || output(t, res) != `"afresh"` {
		t.Errorf("Resume(nil) = %s, %v; want afresh", output(t, res), err)
	}
}

const ask = `echo '{"type":"approval.request","toolCallId":"c","toolName":"t","args":{}}'; `

// TestLinesAskForApprovals: a program that asks ends without a result, and is told the decisions when it is started again.
func TestLinesAskForApprovals(t *testing.T) {
	a := shell(t, "jsonl", `read -r first
case "$first" in
*'"type":"run"'*) `+ask+`echo '{"type":"approval.request","toolCallId":"d","toolName":"u","args":[1],"reason":"why"}'
	echo '{"type":"checkpoint","state":2}' ;;
*'"state":2,"approvals":[{"toolCallId":"c","granted":true},{"toolCallId":"d","granted":false,"reason":"no"}]}') echo '{"type":"result","output":"told"}' ;;
esac`).(agent.Resumer)
	sink := &recorder{}
	res, err := a.Stream(t.Context(), input("hi"), sink)
	if err != nil || res.Output != nil {
		t.Errorf("Stream() = %v, %v; want an empty result", res.Output, err)
	}
	if want := "approval c t {} \napproval d u [1] why\ncheckpoint 2"; sink.String() != want {
		t.Errorf("said = %s, want %s", sink, want)
	}
	res, err = a.Resume(t.Context(), input("hi"), agent.Resumption{State: sink.state,
		Approvals: []run.Decision{{ToolCallID: "c", Granted: true, Reason: "of the person"}, {ToolCallID: "d", Reason: "no"}}}, sink)
	if err != nil || output(t, res) != `"told"` {
		t.Errorf("Resume() = %s, %v; want told", output(t, res), err)
	}
	refused := &recorder{no: fault.New(fault.AgentProtocol, "It was asked before.")}
	_, err = a.Stream(t.Context(), input("hi"), refused)
	wantFault(t, "Stream()", err, fault.AgentProtocol, "line 1 cannot ask for an approval: It was asked before.")
	_, err = a.Stream(t.Context(), input("hi"), &recorder{no: errSink})
	if err != errSink {
		t.Errorf("Stream() error = %v, want %v", err, errSink)
	}
	_, err = a.Run(t.Context(), input("hi"))
	wantFault(t, "Run()", err, fault.AgentProtocol, "Approvals are not available")
}

func TestProgramFailures(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, protocol, script string
		kind                   *fault.Kind
		says                   []string
	}{
		{"exit status", "text", "echo words; echo trouble >&2; exit 3", fault.AgentExited, []string{"exit status 3: trouble"}},
		{"silent exit", "text", "exit 3", fault.AgentExited, []string{"exit status 3 and an empty standard error"}},
		{"too much text", "text", "yes", fault.OutputTooLarge, []string{"100000 bytes"}},
		{"exit status without result", "jsonl", `echo '{"type":"a"}'; echo trouble >&2; exit 4`, fault.AgentExited, []string{"exit status 4: trouble"}},
		{"end without result", "jsonl", `echo '{"type":"a"}'`, fault.AgentProtocol, []string{"without a result"}},
		{"bad line", "jsonl", `echo; echo '{"type":"a"}'; echo oops; exec sleep 100`, fault.AgentProtocol, []string{"line 3 is not JSON"}},
		{"no type", "jsonl", `echo '{}'; exec sleep 100`, fault.AgentProtocol, []string{"line 1 is not an event"}},
		{"bad request for an approval", "jsonl", `echo '{"type":"approval.request","toolCallId":"c"}'; exec sleep 100`, fault.AgentProtocol,
			[]string{`line 1 asks for an approval but has no "toolName" and has no "args"`}},
		{"result while an approval is pending", "jsonl", ask + `echo '{"type":"a"}'; echo '{"type":"result","output":1}'; exec sleep 100`, fault.AgentProtocol,
			[]string{"line 3 is a result, but the approval that its line 1 asks for is pending", "End without a result"}},
		{"exit status after a request", "jsonl", ask + `echo trouble >&2; exit 4`, fault.AgentExited, []string{"exit status 4: trouble"}},
		{"request without an exit", "jsonl", ask + `exec >&-; exec sleep 100`, fault.AgentProtocol, []string{"asked for approvals and did not exit"}},
		{"waiting for the answer", "jsonl", ask + `read -r first; read -r answer`, fault.AgentTimeout, []string{"did not exit within 1s", "A new process receives"}},
		{"too many lines", "jsonl", `yes '{"type":"a"}'`, fault.OutputTooLarge, []string{"100000 bytes"}},
		{"stdout closed", "jsonl", `exec >&-; exec sleep 100`, fault.AgentProtocol, []string{"without a result"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			timeout := time.Minute
			if tc.kind == fault.AgentTimeout {
				timeout = time.Second
			}
			a := newExec(t, external.ExecOptions{Program: proc.Command{Argv: []string{"sh", "-c", tc.script}, MaxOutput: 100_000}, Protocol: tc.protocol, Timeout: timeout})
			_, err := a.Stream(t.Context(), input(""), &recorder{})
			wantFault(t, "Stream()", err, tc.kind, tc.says...)
		})
	}
}

func TestTheEndOfStderrIsShown(t *testing.T) {
	for _, protocol := range []string{"text", "jsonl"} {
		a := shell(t, protocol, `head -c 9000 /dev/zero | tr '\0' x >&2; echo the end >&2; exit 1`)
		_, err := a.Stream(t.Context(), input(""), &recorder{})
		wantFault(t, "Stream()", err, fault.AgentExited, "xx", "the end")
		if n := len(fault.Of(err).Message); n < 4000 || n > 4200 {
			t.Errorf("Stream(%s) message has %d bytes, want 4 KiB of stderr", protocol, n)
		}
	}
}

func TestLineTooLong(t *testing.T) {
	a := shell(t, "jsonl", `echo '{"type":"a"}'; head -c 1100000 /dev/zero | tr '\0' x; exec sleep 100`)
	_, err := a.Stream(t.Context(), input(""), &recorder{})
	wantFault(t, "Stream()", err, fault.AgentProtocol, "line 2 is longer than 1048576 bytes")
}

func TestUnstartable(t *testing.T) {
	for _, protocol := range []string{"text", "jsonl"} {
		for _, opts := range []external.ExecOptions{
			{Program: proc.Command{Argv: []string{"/no/such/program"}}, Protocol: protocol},
			{Program: proc.Command{Argv: []string{"no-such-program-anywhere"}}, Protocol: protocol},
			{Program: proc.Command{Argv: []string{"sh"}, Dir: "/no/such/folder"}, Protocol: protocol},
		} {
			_, err := newExec(t, opts).Stream(t.Context(), input(""), &recorder{})
			wantFault(t, "Stream("+opts.Program.Argv[0]+")", err, fault.AgentUnreachable, "could not be started")
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errSink)
		if _, err := shell(t, protocol, ":").Stream(ctx, input(""), &recorder{}); err != errSink {
			t.Errorf("Stream(%s) with an ended context = %v, want the cause", protocol, err)
		}
	}
}

// TestAbortEndsTheTree holds a pipe open in a grandchild: its end of file says that the grandchild is gone.
func TestAbortEndsTheTree(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"text", "jsonl"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			path := fifo(t)
			a := shell(t, protocol, `exec 3>`+path+`; (sleep 100; :) & echo '{"type":"ready"}'; wait`)
			gone := make(chan error, 1)
			go func() {
				f, err := os.Open(path)
				if err == nil {
					_, err = io.Copy(io.Discard, f)
					f.Close()
				}
				gone <- err
			}()
			why := errors.New("somebody aborted")
			ctx, cancel := context.WithCancelCause(t.Context())
			start := time.Now()
			_, err := a.Stream(ctx, input(""), &recorder{said: func(string) { cancel(why) }})
			if err != why || time.Since(start) > 50*time.Second {
				t.Errorf("Stream() error = %v after %v, want %v at once", err, time.Since(start), why)
			}
			select {
			case err := <-gone:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				t.Error("the grandchild is still there")
			}
		})
	}
}

func TestAbortTellsTheProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := newExec(t, external.ExecOptions{Protocol: "jsonl", Program: sh(
		`trap '' TERM; read -r first; echo '{"type":"ready"}'; read -r line; printf '%s' "$line" >line; echo '{"type":"result","output":1}'`, dir)})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New(`somebody "aborted"`)
	_, err := a.Stream(ctx, input(""), &recorder{said: func(string) { cancel(why) }})
	got, _ := os.ReadFile(filepath.Join(dir, "line"))
	if want := `{"type":"abort","reason":"somebody \"aborted\""}`; string(got) != want {
		t.Errorf("the program read %q, want %s", got, want)
	}
	if err != why {
		t.Errorf("Stream() error = %v, want %v", err, why)
	}
}

func TestAbortOfADeafProgram(t *testing.T) {
	t.Parallel()
	in := input(strings.Repeat("x", 1<<20)) // more than a pipe holds, so the first line is never taken whole
	a := shell(t, "jsonl", `trap '' TERM; echo '{"type":"ready"}'; while :; do sleep 100; done`)
	ctx, cancel := context.WithCancelCause(t.Context())
	start := time.Now()
	_, err := a.Stream(ctx, in, &recorder{said: func(string) { cancel(errSink) }})
	if took := time.Since(start); err != errSink || took < 2*time.Second || took > 20*time.Second {
		t.Errorf("Stream() error = %v after %v, want %v after 2 s", err, took, errSink)
	}
}

func TestTimeout(t *testing.T) {
	for _, protocol := range []string{"text", "jsonl"} {
		a := newExec(t, external.ExecOptions{Program: proc.Command{Argv: []string{"sleep", "100"}}, Protocol: protocol, Timeout: 100 * time.Millisecond})
		_, err := a.Stream(t.Context(), input(""), &recorder{})
		wantFault(t, "Stream("+protocol+")", err, fault.AgentTimeout, "100ms")
	}
}

func TestTheResultStands(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"reads to the end": `echo '{"type":"result","output":1}'; cat >/dev/null; exit 1`,
		"floods":           `echo '{"type":"result","output":1}'; yes`,
		"stays":            `echo '{"type":"result","output":1}'; exec sleep 100`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			in := input(strings.Repeat("x", 1<<20)) // which nobody reads
			res, err := shell(t, "jsonl", script).Stream(t.Context(), in, &recorder{})
			if err != nil || output(t, res) != "1" || time.Since(start) > 3*time.Second {
				t.Errorf("Stream() = %v, %v after %v; want the result within 3 s", res.Output, err, time.Since(start))
			}
		})
	}
}

func TestSinkErrorEndsTheProgram(t *testing.T) {
	for _, protocol := range []string{"text", "jsonl"} {
		a := shell(t, protocol, `echo '{"type":"a"}'; exec sleep 100`)
		if _, err := a.Stream(t.Context(), input(""), &recorder{fail: errSink}); !errors.Is(err, errSink) {
			t.Errorf("Stream(%s) error = %v, want %v", protocol, err, errSink)
		}
	}
}

// Known secrets are taken out of all that a program says, also where two pieces have a half each.
func TestSecretsAreHidden(t *testing.T) {
	gate := fifo(t)
	known := &secret.Redactor{}
	known.Add([]byte("hunter2hunter2"))
	known.Add([]byte("12345678"))
	for _, tc := range []struct {
		name, protocol, script, want, output string
	}{
		{"text", "text", `printf 'a hunter2'; read go <` + gate + `; printf 'hunter2 b hunter2hun'`,
			`{"type":"text.delta","delta":"a "}` + "\n" + `{"type":"text.delta","delta":"[REDACTED] b "}` + "\n" + `{"type":"text.delta","delta":"hunter2hun"}` + "\n" +
				`{"type":"text.complete","text":"a [REDACTED] b hunter2hun"}`, `"a [REDACTED] b hunter2hun"`},
		{"lines", "jsonl", `echo '{"type":"text.delta","delta":"a hunter2"}'
echo '{"type":"my.own","key":"hunter2hunter2","list":[12345678,{"x-hunter2hunter2":1}]}'
echo '{"type":"text.delta","delta":"hun"}'; echo '{"type":"text.delta","delta":"ter2"}'; echo '{"type":"checkpoint","state":"hunter2hunter2"}'
echo '{"type":"text.delta","delta":" b","n":1}'; echo '{"type":"text.delta","delta":"hunter2h"}'; echo '{"type":"result","output":{"a":"hunter2hunter2"}}'`,
			`{"type":"text.delta","delta":"a "}` + "\n" + `{"key":"[REDACTED]","list":["[REDACTED]",{"x-[REDACTED]":1}],"type":"my.own"}` + "\n" +
				`checkpoint "hunter2hunter2"` + "\n" + `{"type":"text.delta","delta":"[REDACTED] b"}` + "\n" +
				`{"type":"text.delta","delta":"[REDACTED]"}`, `{"a":"[REDACTED]"}`},
	} {
		sink := &recorder{said: func(entry string) {
			if tc.protocol == "text" && strings.HasSuffix(entry, `"a "}`) {
				os.WriteFile(gate, []byte("go\n"), 0) //nolint:errcheck // else the program waits
			}
		}}
		a := newExec(t, external.ExecOptions{Program: sh(tc.script, ""), Protocol: tc.protocol, Known: known})
		res, err := a.Stream(t.Context(), input(""), sink)
		if err != nil || output(t, res) != tc.output || sink.String() != tc.want {
			t.Errorf("%s: Stream() = %s, %v, said\n%s\nwant %s and\n%s", tc.name, output(t, res), err, sink, tc.output, tc.want)
		}
	}
}
