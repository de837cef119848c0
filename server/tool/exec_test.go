package tool_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"agentd/server/message"
	"agentd/server/proc"
	"agentd/server/secret"
	"agentd/server/tool"
)

func script(t testing.TB, s tool.Spec, body string) tool.Tool {
	t.Helper()
	s.Name = "sh"
	return tool.NewExec(tool.ExecOptions{Spec: s, Program: proc.Command{Argv: []string{"/bin/sh", "-c", body}, Env: []string{"GREETING=hello"}}})
}

func TestExec(t *testing.T) {
	for _, tc := range []struct{ name, script, args, want string }{
		{"JSON", `cat`, `{"env":"prod"}`, `{"env":"prod"}`},
		{"a line to read", `read line; echo "got $line"`, `{"a":1}`, "got {\"a\":1}\n"},
		{"nothing", `true`, `{}`, "(The tool succeeded without output.)"},
		{"broken text", `printf 'a\377b'`, `{}`, "a�b"},
		{"environment", `env | sort | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=`, `{}`,
			"AGENTD_AGENT_ID=a1\nAGENTD_CALL_ID=r1:2:c1\nAGENTD_RUN_ID=r1\nGREETING=hello\n"},
		{"failure", `echo out; echo 'no such env' >&2; exit 3`, `{}`,
			"Error: The tool's program ended with exit status 3: no such env\n[kind: execution_failed; recoverable: no; suggested action: try_alternative; A part of its output was streamed before.]"},
		{"silent failure", `exit 1`, `{}`,
			"Error: The tool's program ended with exit status 1 and an empty standard error.\n[kind: execution_failed; recoverable: no; suggested action: try_alternative]"},
		{"signal", `kill -9 $$`, `{}`,
			"Error: The tool's program ended with signal: killed and an empty standard error.\n[kind: execution_failed; recoverable: no; suggested action: try_alternative]"},
	} {
		if got := use(t, t.Context(), script(t, tool.Spec{}, tc.script), call, tc.args); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestExecWithoutProgram(t *testing.T) {
	tl := tool.NewExec(tool.ExecOptions{Spec: spec("x"), Program: proc.Command{Argv: []string{"./no-such-program"}}})
	if got := use(t, t.Context(), tl, call, `{}`); !strings.HasPrefix(got, "Error: The tool's program could not be started: ") {
		t.Errorf("a missing program: %q", got)
	}
}

func TestExecFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "deploy.sh"), []byte("#!/bin/sh\nexec pwd -P\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	tl := tool.NewExec(tool.ExecOptions{Spec: spec("x"), Program: proc.Command{Argv: []string{"./deploy.sh"}, Dir: dir}})
	want, _ := filepath.EvalSymlinks(dir)
	if got := use(t, t.Context(), tl, call, `{}`); got != want+"\n" {
		t.Errorf("./deploy.sh in %s = %q", dir, got)
	}
}

func TestExecStreams(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	// The second half of the character comes only after the first text has been seen.
	s := set(t, script(t, tool.Spec{}, `printf 'one \303'; read go <`+gate+`; printf '\251 two'; printf '\303'`))
	var chunks []string
	c := call
	c.Stream = func(chunk tool.Chunk) {
		if chunk.Kind != tool.Text || !utf8.ValidString(chunk.Text) {
			t.Errorf("chunk %+v, want valid text", chunk)
		}
		if chunks = append(chunks, chunk.Text); len(chunks) == 1 {
			if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
				t.Error(err)
			}
		}
	}
	o := s.Execute(t.Context(), "sh", c).Outcome
	if got, want := strings.Join(chunks, ""), "one é two�"; got != want || chunks[0] != "one " {
		t.Errorf("the chunks are %q, want %q with the first one alone", chunks, want)
	}
	if string(o.Output) != `"one é two�"` {
		t.Errorf("Execute = %s, want all of it", o.Output)
	}
}

// A program with more output than the limit has had its effect, and is not ended for it.
func TestExecOutputLimit(t *testing.T) {
	dir := t.TempDir()
	for _, tc := range []struct {
		name, script, want string
		cut                bool
	}{
		{"at the limit", `printf %1000s x`, `"` + strings.Repeat(" ", 999) + `x"`, false},
		{"beyond", `head -c 3000000 /dev/zero | tr '\0' y; echo > effect`, `"` + strings.Repeat("y", 1000) + `"`, true},
		{"JSON at its beginning", `printf %1000s '{}'; printf '{}'; echo > effect`, `"` + strings.Repeat(" ", 998) + `{}"`, true},
	} {
		tl := tool.NewExec(tool.ExecOptions{Spec: spec("x"), Program: proc.Command{Argv: []string{"sh", "-c", tc.script}, Dir: dir, MaxOutput: 1000}})
		streamed := 0
		c := call
		c.Stream = func(chunk tool.Chunk) { streamed += len(chunk.Text) }
		o := set(t, tl).Execute(t.Context(), "x", c).Outcome
		if string(o.Output) != tc.want || o.Truncated != tc.cut || streamed != 1000 {
			t.Errorf("%s: Execute = %.80s, truncated %v, %d bytes streamed, error %q; want %.80s, %v, 1000", tc.name, o.Output, o.Truncated, streamed, o.Message, tc.want, tc.cut)
		}
		if err := os.Remove(filepath.Join(dir, "effect")); tc.cut && err != nil {
			t.Errorf("%s: the program was ended before its effect: %v", tc.name, err)
		}
		if note := "\n\n[The tool wrote more than its limit; the rest was not kept.]"; strings.HasSuffix(message.Render(&o), note) != tc.cut {
			t.Errorf("%s: Render = %q, want the note: %v", tc.name, message.Render(&o), tc.cut)
		}
	}
}

// While no program may start, a call has not begun, whatever becomes of it.
func TestExecWaitsForAPlace(t *testing.T) {
	limit := proc.NewLimit(1)
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := proc.Start(t.Context(), proc.Command{Argv: []string{"/bin/sh", "-c", "read go <" + gate}, Limit: limit})
	if err != nil {
		t.Fatal(err)
	}
	echo := tool.ExecOptions{Spec: tool.Spec{Name: "sh", Timeout: 100 * time.Millisecond}, Program: proc.Command{Argv: []string{"/bin/echo", "hi"}, Limit: limit}}
	s := set(t, tool.NewExec(echo))
	if o := s.Execute(t.Context(), "sh", call).Outcome; o.Kind != message.RateLimited || !o.Recoverable || strings.Contains(o.Hint, "may have happened") {
		t.Errorf("Execute without a place = %+v, want rate_limited", o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	aborted := make(chan message.Outcome)
	go func() { aborted <- s.Execute(ctx, "sh", call).Outcome }()
	cancel()
	if o := <-aborted; o.Kind != message.AbortedCall || strings.Contains(o.Hint, "may have happened") {
		t.Errorf("Execute, aborted without a place = %+v, want an aborted call that has not begun", o)
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	first.Wait()
	echo.Spec.Timeout = 0
	if got := use(t, t.Context(), tool.NewExec(echo), call, `{}`); got != "hi\n" {
		t.Errorf("with a place: %q, want hi", got)
	}
}

func TestExecEndsWithItsTree(t *testing.T) {
	for _, tc := range []struct {
		name    string
		timeout time.Duration // 0: the run is aborted
		kind    message.ErrorKind
	}{{"abort", 0, message.AbortedCall}, {"timeout", 300 * time.Millisecond, message.Timeout}} {
		held := filepath.Join(t.TempDir(), "held")
		if err := syscall.Mkfifo(held, 0o600); err != nil {
			t.Fatal(err)
		}
		reader, err := os.OpenFile(held, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		s := set(t, script(t, tool.Spec{Timeout: tc.timeout}, `exec 3<>`+held+`; (sleep 1000; sleep 1000) & echo up; sleep 1000`))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := call
		c.Stream = func(tool.Chunk) {
			if tc.timeout == 0 {
				cancel()
			}
		}
		o := s.Execute(ctx, "sh", c).Outcome
		if o.Kind != tc.kind || !strings.Contains(o.Hint, "may have happened") {
			t.Errorf("%s: Execute = %+v, want %s", tc.name, o, tc.kind)
		}
		if err := s.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		reader.SetReadDeadline(time.Now().Add(10 * time.Second))
		if b, err := io.ReadAll(reader); err != nil || len(b) > 0 {
			t.Errorf("%s: %q, %v: some of the program's processes are left", tc.name, b, err)
		}
	}
}

func TestExecLargeJSONIsSpilled(t *testing.T) {
	s := set(t, script(t, tool.Spec{}, `printf '["'; head -c 100000 /dev/zero | tr '\0' x; printf '"]'`))
	got := s.Execute(t.Context(), "sh", call)
	want, _ := json.Marshal([]string{strings.Repeat("x", 100_000)})
	if got.Spill == nil || string(got.Spill.Data) != string(want) || got.Outcome.ResultHandle == nil {
		t.Errorf("Execute = %+v, want a handle of %d bytes", got.Outcome, len(want))
	}
}

func TestExecHidesSecrets(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	known := &secret.Redactor{}
	known.Add([]byte("hunter2hunter2"))
	known.Add([]byte("12345678"))
	for _, tc := range []struct {
		name, script, want, chunks string
	}{
		{"halves", `printf 'a hunter2'; read go <$GATE; printf 'hunter2 b'`, "a [REDACTED] b", "a |[REDACTED] b|"},
		{"JSON", `printf '{"a":"hunter2\\u0068unter2"}'`, `{"a":"[REDACTED]"}`, `{"a":"[REDACTED]"}|`},
		{"a number", `printf '{"a":12345678}'`, `{"a":[REDACTED]}`, `{"a":[REDACTED]}|`},
		{"cut off", `printf %990s x; printf hunter2hunter2`, strings.Repeat(" ", 989) + "x[REDACTED]\n\n[The tool wrote more than its limit; the rest was not kept.]", ""},
		{"failure", `printf 'a hunter2'; read go <$GATE; printf 'hunter2'; echo hunter2hunter2 >&2; exit 1`, "Error: The tool's program ended with exit status 1: [REDACTED]\n" +
			"[kind: execution_failed; recoverable: no; suggested action: try_alternative; A part of its output was streamed before.]", "a |[REDACTED]|"},
	} {
		tl := tool.NewExec(tool.ExecOptions{Spec: spec("x"), Program: proc.Command{Argv: []string{"/bin/sh", "-c", tc.script}, Env: []string{"PATH=/usr/bin:/bin", "GATE=" + gate}, MaxOutput: 1000}, Known: known})
		chunks := ""
		c := call
		c.Stream = func(chunk tool.Chunk) {
			if chunks == "" && strings.Contains(tc.script, "GATE") {
				os.WriteFile(gate, []byte("go\n"), 0) //nolint:errcheck // else the program waits
			}
			chunks += chunk.Text + "|"
		}
		if got := use(t, t.Context(), tl, c, `{}`); got != tc.want || tc.chunks != "" && chunks != tc.chunks {
			t.Errorf("%s: %q in chunks %q, want %q and %q", tc.name, got, chunks, tc.want, tc.chunks)
		}
	}
}
