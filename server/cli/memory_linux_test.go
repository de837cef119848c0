package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/ws"
	"agentd/ws/wstest"
)

// mostMemory is what a server may take in MiB while twenty clients do their worst.
const mostMemory = 300

// peak is the most memory that the process has ever had in MiB.
func (p *process) peak() int {
	p.t.Helper()
	for line := range strings.Lines(read(p.t, fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				p.t.Fatal(err)
			}
			return kib >> 10
		}
	}
	p.t.Fatal("no VmHWM")
	return 0
}

// bodies that cost the most, each about 3.9 MB.
func worstBodies() map[string]string {
	const size = 3_900_000
	fill := func(head, item, tail string) string {
		n := (size - len(head) - len(tail)) / len(item)
		return head + strings.Repeat(item, n)[:n*len(item)-1] + tail
	}
	meta := `{"kind":"meta","version":"1.0","format":"svc-session-export","createdAt":"2026-01-01T00:00:00.000Z","writer":"x","minRuntimeVersion":"0.1.0"}` + "\n" +
		`{"kind":"session","id":"s-%d","userId":"u","agentId":"assistant","createdAt":"2026-01-01T00:00:00.000Z"}` + "\n"
	return map[string]string{
		"POST /tokens":                  fill(`{"scopes":[`, `"a:b",`, `]}`),
		"POST /agents/assistant/run":    fill(`{"input":[`, `{},`, `]}`),
		"POST /agents/assistant/run ":   fill(`{"input":[{"role":"user","content":[`, `{},`, `]}]}`),
		"POST /agents/shout/run":        fill(`{"input":"`, `aaaaaaaa`, `"}`),
		"POST /agents/shout/run ":       fill(`{"input":[`, `0,`, `]}`),
		"POST /runs/import":             fill(`{"version":"svc-run-state/1.2","agentId":"assistant","messages":[`, `{},`, `]}`),
		"POST /runs/import ":            fill(`{"version":"svc-run-state/1.2","agentId":"assistant","messages":[`, `{"role":"user","content":"aaaaaaaaaaaa"},`, `]}`),
		"POST /agents/assistant/run  ":  fill(`{"input":[`, `{"role":"user","content":"aaaaaaaaaaaa"},`, `]}`),
		"POST /agents/assistant/run   ": fill(`{"input":[{"role":"user","content":[`, `{"type":"text","text":"aaaaaaaaaaaaaa"},`, `]}]}`),
		"POST /sessions/import  ":       fill(meta+`{"kind":"message","sequence":1,"message":{"role":"user","content":[`, `{"type":"text","text":"aaaaaaaaaaaaaa"},`, `]}}`+"\n"),
		"POST /sessions/import":         fill(meta+`{"kind":"message","sequence":1,"message":{"role":"user","content":[`, `{},`, `]}}`+"\n"),
		"POST /sessions/import ":        meta + strings.Repeat(`{"kind":"message"}`+"\n", size/19),
	}
}

func TestMemoryUnderAttack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pepper"), pepper)
	write(t, filepath.Join(dir, "script.json"), `{"turns": [{"text": "ok"}]}`)
	write(t, filepath.Join(dir, "agentd.json"), `{"server": {"rateLimit": {"enabled": false}}, "auth": {"pepperRef": "file:pepper"}, "storage": {"path": "data.db"},
		"providers": {"fake": {"kind": "scripted", "script": "script.json"}},
		"agents": {"assistant": {"kind": "llm", "provider": "fake", "model": "one"}, "shout": {"kind": "exec", "command": ["tr", "a-z", "A-Z"]}}}`)
	s := serve(t, dir)
	s.token = token(t, dir)
	bearer := http.Header{"Authorization": {"Bearer " + s.token}}
	before := s.peak()
	end := time.Now().Add(time.Duration(often(8, 3)) * time.Second)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: time.Minute}
	var all sync.WaitGroup
	var mu sync.Mutex
	answers := map[string]int{}
	bodies := worstBodies()
	attack := func(do func(n int) string) {
		all.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				what := do(n)
				mu.Lock()
				answers[what]++
				mu.Unlock()
			}
		})
	}
	for where, body := range bodies { // 12 clients, each with another body
		method, path, _ := strings.Cut(strings.TrimSpace(where), " ")
		attack(func(n int) string {
			req, err := http.NewRequest(method, s.url+path, strings.NewReader(strings.Replace(body, "%d", strconv.Itoa(n), 1)))
			if err != nil {
				t.Error(err)
			}
			req.Header = bearer
			res, err := client.Do(req)
			if err != nil {
				return where + " " + err.Error()
			}
			defer res.Body.Close()
			io.Copy(io.Discard, res.Body)
			return fmt.Sprint(where, " ", res.StatusCode)
		})
	}
	for range 4 { // pings whose answers nobody reads
		all.Go(func() {
			conn, err := wstest.Dial(t.Context(), "ws"+strings.TrimPrefix(s.url, "http")+"/ws", &wstest.DialOptions{Protocols: []string{"svc.protocol.v1"}, Header: bearer})
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.CloseNow()
			timer := time.AfterFunc(time.Until(end), conn.CloseNow)
			defer timer.Stop()
			nonce := strings.Repeat("n", 1000)
			big := strings.Repeat(" ", 1<<20-2000)
			for n := 0; time.Now().Before(end); n++ {
				ping := fmt.Sprintf(`{"v":"1","jsonrpc":"2.0","id":%d,"method":"ping","params":{"nonce":%q}}`, n, nonce)
				if n%64 == 0 {
					ping += big
				}
				if conn.Write(t.Context(), ws.Text, []byte(ping)) != nil {
					return
				}
			}
		})
	}
	for range 4 { // long frames, and what follows a refusal
		attack(func(int) string {
			conn, err := wstest.Dial(t.Context(), "ws"+strings.TrimPrefix(s.url, "http")+"/ws", &wstest.DialOptions{Protocols: []string{"svc.protocol.v1"}, Header: bearer})
			if err != nil {
				return "ws " + err.Error()
			}
			defer conn.CloseNow()
			long := []byte(`{"v":"1","jsonrpc":"2.0","id":1,"method":"ping","params":{"nonce":"` + strings.Repeat("n", 1<<20-200) + `"}}`)
			for range 8 {
				if conn.Write(t.Context(), ws.Text, long) != nil {
					break
				}
			}
			return "ws"
		})
	}
	// Meanwhile others are served: probes, decisions and small runs.
	for range 20 {
		for _, what := range []struct {
			method, path, body string
			status             int
		}{{"GET", "/health", "", 200}, {"POST", "/agents/shout/run", `{"input":"small"}`, 200}, {"POST", "/runs/none/resume", `{"approvals":[{"toolCallId":"a","granted":true}]}`, 404}} {
			begun := time.Now()
			res := s.request(what.method, what.path, what.body)
			res.Body.Close()
			if took := time.Since(begun); res.StatusCode != what.status || took > 15*time.Second {
				t.Errorf("%s %s = %d after %v, want %d", what.method, what.path, res.StatusCode, took, what.status)
			}
		}
		time.Sleep(time.Until(end) / 20)
	}
	all.Wait()
	after := s.peak()
	t.Logf("%d MiB at the start, %d MiB at most; answers: %v", before, after, answers)
	if after > mostMemory {
		t.Errorf("the server took %d MiB, want at most %d", after, mostMemory)
	}
}
