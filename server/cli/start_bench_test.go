package cli_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/store/storetest"
)

// BenchmarkStart measures the time from the start of the process to its first 200, the processor time until then (cpu-ms), and
// what the idle process holds: with a new database, with a new audit chain beside it, and after a kill -9 of a server that was
// starting runs. AGENTD_GROWTH has the numbers of runs that the killed server's database holds; 4000000 are 1.7 GB.
//
//	AGENTD_GROWTH=10000,4000000 go test ./server/cli -run '^$' -bench Start -benchtime 15x -timeout 30m
func BenchmarkStart(b *testing.B) { // P15, P22
	fresh := func(s *starts) {
		for s.b.Loop() {
			if err := os.RemoveAll(s.data()); err != nil {
				s.b.Fatal(err)
			}
			s.start()
			s.b.StopTimer()
			s.end(syscall.SIGTERM)
			s.b.StartTimer()
		}
	}
	b.Run("new-database", func(b *testing.B) { measure(b, false, fresh) })
	b.Run("new-chain", func(b *testing.B) { measure(b, true, fresh) })
	for text := range strings.SplitSeq(cmp.Or(os.Getenv("AGENTD_GROWTH"), "10000"), ",") {
		runs, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("killed-runs="+text, func(b *testing.B) {
			measure(b, false, func(s *starts) {
				path := filepath.Join(s.data(), "data.db")
				storetest.Grow(b, path, runs)
				kill := func() {
					for range 300 { // each in a new session, so that they are written all over the database
						s.ask("POST", "/agents/shout/stream", `{"input":"hello"}`)
					}
					s.end(syscall.SIGKILL)
				}
				s.start()
				kill()
				for b.Loop() {
					s.start()
					b.StopTimer()
					kill()
					b.StartTimer()
				}
				for _, file := range []string{"", "-wal"} {
					info, err := os.Stat(path + file)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(info.Size())/(1<<20), "MiB"+file)
				}
			})
		})
	}
}

// starts are those of one benchmark, one after the other.
type starts struct {
	b        *testing.B
	dir      string
	cmd      *exec.Cmd // of the server that runs
	base     string    // its address
	count    int
	cpu      int64 // of all, in nanoseconds
	resident int   // of the latest, in KiB
}

func measure(b *testing.B, audit bool, run func(*starts)) {
	const config = `{"auth":{"kind":"none"},"server":{"port":0,"rateLimit":{"enabled":false}},"storage":{"path":"data/data.db"},
		"agents":{"shout":{"kind":"exec","command":["tr","a-z","A-Z"]}},"audit":{"enabled":%t,"passphraseRef":"file:passphrase"}}`
	s := &starts{b: b, dir: b.TempDir()}
	for name, text := range map[string]string{"agentd.json": fmt.Sprintf(config, audit), "passphrase": "a passphrase that nobody guesses"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	run(s)
	b.ReportMetric(float64(s.cpu)/1e6/float64(s.count), "cpu-ms")
	b.ReportMetric(float64(s.resident)/1024, "RSS-MiB")
}

func (s *starts) data() string { return filepath.Join(s.dir, "data") }

// start starts the program and waits for its first 200.
func (s *starts) start() {
	ready := filepath.Join(s.dir, "ready")
	os.Remove(ready)
	s.cmd = exec.Command(binary, "start", "--config", filepath.Join(s.dir, "agentd.json"), "--ready-file", ready)
	if err := s.cmd.Start(); err != nil {
		s.b.Fatal(err)
	}
	var at struct {
		Host string
		Port int
	}
	for deadline := time.Now().Add(20 * time.Second); at.Port == 0; {
		if time.Now().After(deadline) {
			s.b.Fatal("the server did not become ready")
		}
		if text, err := os.ReadFile(ready); err == nil {
			if err := json.Unmarshal(text, &at); err != nil {
				s.b.Fatal(err)
			}
		} else {
			<-time.After(500 * time.Microsecond)
		}
	}
	s.base = fmt.Sprintf("http://%s:%d/v1", at.Host, at.Port)
	s.ask("GET", "/health", "")
	s.b.StopTimer()
	defer s.b.StartTimer()
	s.count++
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.cmd.Process.Pid))
	for _, path := range threads {
		text, _ := os.ReadFile(path)
		first, _, _ := strings.Cut(string(text), " ")
		spent, _ := strconv.ParseInt(first, 10, 64)
		s.cpu += spent
	}
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if _, rest, ok := strings.Cut(string(status), "VmRSS:"); ok {
		fmt.Sscan(rest, &s.resident)
	}
}

func (s *starts) ask(method, path, body string) {
	req, err := http.NewRequest(method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.b.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.b.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	if res.Body.Close(); res.StatusCode >= 300 {
		s.b.Fatalf("%s %s = %d", method, path, res.StatusCode)
	}
}

// end ends the server with a signal.
func (s *starts) end(signal syscall.Signal) {
	s.cmd.Process.Signal(signal)
	if err := s.cmd.Wait(); err != nil && signal != syscall.SIGKILL {
		s.b.Fatalf("stopping: %v", err)
	}
}
