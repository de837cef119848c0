package cli_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const programsSite = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {"pay": {"kind": "exec", "description": "has an effect", "approval": "never", "onUnknownOutcome": "error", "command": ["sh", "pay.sh"]}},
	"agents": {
		"llm": {"kind": "llm", "provider": "p", "model": "m"},
		"payer": {"kind": "llm", "provider": "p", "model": "payer", "tools": ["pay"]},
		"sleeper": {"kind": "exec", "command": ["sleep", "0.9"]},
		"text": {"kind": "exec", "command": ["sh", "pay.sh"]},
		"lines": {"kind": "exec", "protocol": "jsonl", "command": ["sh", "lines.sh"]},
		"sh": {"kind": "exec", "command": ["sh"], "env": {"K": {"ref": "env:LLM_KEY"}}}
	}
}`

// The effects that these programs have are what their descendants have read, which take their time for it.
const (
	payScript   = `(sleep 0.0$(($$ % 10)); all=$(cat); echo "${#all}" >> effects); exit 0`
	linesScript = `(sleep 0.0$(($$ % 10)); IFS= read -r line && echo "${#line}" >> lines); echo '{"type":"result","output":1}'`
)

// programs makes a site. The function that it returns starts the server, where the test may do so as a user of whom nothing
// else runs and of whom no process is still to be reaped, so that limits per user reach this server alone.
func programs(t *testing.T, input string) (dir string, start func(prefix string, args ...string) *listener) {
	t.Helper()
	stranger := 100_000 + rand.IntN(1<<20)
	dir, err := os.MkdirTemp("", "programs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	own := filepath.Join(dir, "agentd")
	if err := os.Link(binary, own); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "agentd.json"), programsSite)
	write(t, filepath.Join(dir, "script.json"), fmt.Sprintf(`{"turns": [{"when": {"model": "payer", "step": 0}, "toolCalls": [{"name": "pay", "args": {"to": %q}}]}, {"text": "done"}]}`, input))
	write(t, filepath.Join(dir, "pay.sh"), payScript)
	write(t, filepath.Join(dir, "lines.sh"), linesScript)
	if os.Geteuid() == 0 {
		if err := os.Chmod(own, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{".", "agentd.json", "script.json", "pay.sh", "lines.sh"} {
			if err := os.Chown(filepath.Join(dir, name), stranger, stranger); err != nil {
				t.Fatal(err)
			}
		}
	}
	n := 0
	return dir, func(prefix string, args ...string) *listener {
		n++
		s := &listener{ready: filepath.Join(dir, fmt.Sprintf("ready-%d.json", n))}
		s.process = command(t, dir, append([]string{"start", "--port", "0", "--ready-file", s.ready}, args...)...)
		s.cmd.Path, s.cmd.Args = "/bin/sh", append([]string{"sh", "-c", prefix + ` exec "$0" "$@"`, own}, s.cmd.Args[1:]...)
		s.cmd.Env = append(s.cmd.Env, "LLM_KEY=hunter2hunter2")
		if os.Geteuid() == 0 {
			s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(stranger), Gid: uint32(stranger)}}
		}
		s.process.start()
		s.url = s.await(s.ready)
		return s
	}
}

// offer starts a run and does not wait for its end. A server that has been killed is no failure.
func (s *listener) offer(agent, input string) (started bool) {
	res, err := http.Post(s.url+"/agents/"+agent+"/stream", "application/json", strings.NewReader(fmt.Sprintf(`{"input": %q}`, input)))
	if err != nil {
		return false
	}
	defer res.Body.Close()
	io.Copy(io.Discard, res.Body)
	return res.StatusCode == http.StatusAccepted
}

// A server that runs out of tasks would end, with everybody's runs: Go cannot live without a thread that it needs. One
// client starts more programs than the system lets the user have.
func TestProgramsBeyondTheTaskLimit(t *testing.T) {
	_, start := programs(t, "x")
	// Of 264 tasks, 64 are the server's, a quarter of the others are programs, and three quarters of these for one payer.
	limit := 264
	if os.Geteuid() != 0 {
		limit += tasks(t, os.Getuid())
	}
	s := start(fmt.Sprintf(`{ ulimit -p %[1]d || ulimit -u %[1]d; } 2>/dev/null;`, limit))
	const runs = 360
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range runs / 20 {
				if !s.offer("sleeper", "x") {
					t.Error("a run could not be started")
				}
			}
		})
	}
	all.Wait()
	begun := time.Now()
	var answer struct{ Status string }
	if code := s.call("POST", "/agents/llm/run", `{"input": "hi"}`, &answer); code != 200 || answer.Status != "completed" || time.Since(begun) > 5*time.Second {
		t.Errorf("another agent's run = %d %q after %v, want it to end at once", code, answer.Status, time.Since(begun))
	}
	eventually(t, "the end of all runs", func() bool {
		res := s.request("GET", "/metrics", "")
		defer res.Body.Close()
		text, _ := io.ReadAll(res.Body)
		return strings.Contains(string(text), fmt.Sprintf("svc_agent_runs_total{status=\"completed\"} %d\n", runs+1))
	})
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
}

// tasks is how many the processes of a user have.
func tasks(t *testing.T, uid int) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/task/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range all {
		if info, err := os.Stat(task); err == nil && int(info.Sys().(*syscall.Stat_t).Uid) == uid {
			n++
		}
	}
	return n
}

// A program that uses up all tasks by itself takes others' programs away, and not the server.
func TestProgramThatForksWithoutEnd(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can run the server as a user of whom nothing else runs")
	}
	_, start := programs(t, "x")
	s := start(`export AGENTD_SERVER_MAXPROGRAMS=100 AGENTD_OBSERVABILITY_LOGGER=json; { ulimit -p 160 || ulimit -u 160; } 2>/dev/null;`)
	eventually(t, "the warning of more programs than there can be tasks", func() bool {
		return strings.Contains(s.stderr.String(), "server.maxPrograms is 100, and the system has ")
	})
	if !s.offer("sh", "(while :; do sleep 20 & done) 2>/dev/null; exec sleep 20") {
		t.Fatal("a run could not be started")
	}
	before := 0
	eventually(t, "the end of all tasks", func() bool { // without runs beside it, it leaves a single one
		<-time.After(100 * time.Millisecond)
		last := before
		before = tasks(t, int(s.cmd.SysProcAttr.Credential.Uid))
		return before > 80 && before == last
	})
	var refused atomic.Int64
	for begun := time.Now(); time.Since(begun) < time.Second || refused.Load() == 0 && time.Since(begun) < patience/2; {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				var got any
				code := s.call("POST", "/agents/sh/run", `{"input": "sleep 0.1"}`, &got)
				switch text := fmt.Sprint(got); {
				case code == 200:
				case strings.Contains(text, "code:overloaded"), strings.Contains(text, "code:agent-exited"): // itself, or what it starts
					refused.Add(1)
				default:
					t.Errorf("a run without a task for it = %d %s, want overloaded", code, text)
				}
			})
		}
		var got any
		if code := s.call("POST", "/agents/llm/run", `{"input": "hi"}`, &got); code != 200 {
			t.Errorf("a run without a program = %d", code)
		}
		all.Wait()
	}
	if refused.Load() == 0 {
		t.Error("no run was refused: the program has not used up the tasks")
	}
}

// No program acts on a part of its input, and none of a group is left, whenever the server is killed.
func TestKillWhileProgramsRead(t *testing.T) {
	t.Parallel()
	input := strings.Repeat("y", 200_000)
	dir, start := programs(t, input)
	pay, whole := len(`{"to":""}`)+len(input), map[string]bool{}
	for _, n := range []int{len(input), pay} {
		whole[fmt.Sprint(n)] = true
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for n := range often(25, 6) {
		s := start("")
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() { s.offer([]string{"text", "payer", "lines", "text"}[i%4], input) })
		}
		if n == 0 { // else a slow machine may never come to an effect
			eventually(t, "the first effect", func() bool { _, err := os.Stat(filepath.Join(dir, "effects")); return err == nil })
		}
		time.AfterFunc(time.Duration(random.IntN(600))*time.Millisecond, func() { s.cmd.Process.Kill() })
		<-s.done
		killed := time.Now()
		for n := running(t, dir); n > 0; n = running(t, dir) {
			if time.Since(killed) > 2*time.Second {
				t.Fatalf("%d processes of the server's programs are left after 2 s", n)
			}
		}
		all.Wait()
	}
	effects, err := os.ReadFile(filepath.Join(dir, "effects"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(effects)) {
		if !whole[strings.TrimSpace(line)] {
			t.Errorf("a program acted on %s of its input, want %v bytes", strings.TrimSpace(line), whole)
		}
	}
	lines, _ := os.ReadFile(filepath.Join(dir, "lines"))
	for line := range strings.Lines(string(lines)) {
		if n := strings.TrimSpace(line); len(n) != 6 || n < "200000" {
			t.Errorf("a program acted on a line of %s bytes, want one that is whole", n)
		}
	}
	t.Logf("%d effects, %d lines", strings.Count(string(effects), "\n"), strings.Count(string(lines), "\n"))
}

// running is how many processes have a working folder.
func running(t *testing.T, dir string) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range all {
		if at, err := os.Readlink(link); err == nil && at == dir {
			n++
		}
	}
	return n
}

// What the server has open and what it knows is not for its programs, though they have the same user.
func TestProgramsCannotReadTheServer(t *testing.T) {
	t.Parallel()
	dir, start := programs(t, "x")
	if err := os.Chmod(write(t, filepath.Join(dir, "inherited"), "for the server only"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := start(`exec 7<inherited;`)
	script := `cat <&7; cat /proc/$PPID/environ; cat /proc/$PPID/maps; head -c 1 /proc/$PPID/mem; ls /proc/$PPID/fd; echo "$PATH"; env | grep KEY`
	if os.Geteuid() != 0 {
		t.Logf("as user %d", os.Geteuid())
	}
	var got struct{ Result struct{ Output string } }
	if code := s.call("POST", "/agents/sh/run", fmt.Sprintf(`{"input": %q}`, "("+script+") 2>/dev/null; exit 0"), &got); code != 200 {
		t.Fatalf("POST = %d", code)
	}
	if want := os.Getenv("PATH") + "\n"; got.Result.Output != want {
		t.Errorf("the program says %q, want %q", got.Result.Output, want)
	}
}

// A secret that a program is given and writes is not shown, whichever way it is cut.
func TestProgramsDoNotTellSecrets(t *testing.T) {
	t.Parallel()
	_, start := programs(t, "x")
	s := start("")
	script := `printf "a ${K%hunter2}"; sleep 0.1; printf "${K#hunter2}\n"; printf %s "x$K" | base64 -w 5; for c in h unt er2 hunter 2; do printf $c; sleep 0.02; done`
	res := s.request("POST", "/agents/sh/stream", fmt.Sprintf(`{"input": %q}`, script), "Accept", "text/event-stream")
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	text := string(b)
	if err != nil || strings.Count(text, `"delta"`) < 2 || strings.Count(text, "[REDACTED]") < 6 {
		t.Errorf("the stream is %v\n%s\nwant secrets hidden in deltas, in the text and in the output", err, text)
	}
	for _, shown := range []string{"hunter2hunter2", "nRlcj", "JodW5", `"text":"a hunter2`} {
		if strings.Contains(text, shown) {
			t.Errorf("the stream shows %q:\n%s", shown, text)
		}
	}
}
