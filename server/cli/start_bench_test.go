package cli_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/store"
)

// BenchmarkStart measures the time from the start of the process to its first 200, and what the idle process holds.
func BenchmarkStart(b *testing.B) { // P15, P22
	for _, size := range []int64{0, 1 << 30} {
		b.Run(fmt.Sprintf("store=%dMiB", size>>20), func(b *testing.B) {
			dir := b.TempDir()
			config := `{"auth":{"kind":"none"},"server":{"port":0},"storage":{"path":"data.db"},"agents":{"shout":{"kind":"exec","command":["tr","a-z","A-Z"]}}}`
			if err := os.WriteFile(filepath.Join(dir, "agentd.json"), []byte(config), 0o600); err != nil {
				b.Fatal(err)
			}
			fill(b, filepath.Join(dir, "data.db"), size)
			var resident int
			for b.Loop() {
				resident = firstAnswer(b, dir)
			}
			b.ReportMetric(float64(resident)/1024, "RSS-MiB")
		})
	}
}

// firstAnswer starts the program, waits for its first 200, stops it, and returns its resident set in KiB. Only the
// time until the answer counts.
func firstAnswer(b *testing.B, dir string) (resident int) {
	ready := filepath.Join(dir, "ready")
	os.Remove(ready)
	cmd := exec.Command(binary, "start", "--config", filepath.Join(dir, "agentd.json"), "--ready-file", ready)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	var at struct {
		Host string
		Port int
	}
	for deadline := time.Now().Add(20 * time.Second); at.Port == 0; {
		if time.Now().After(deadline) {
			b.Fatal("the server did not become ready")
		}
		if text, err := os.ReadFile(ready); err == nil {
			if err := json.Unmarshal(text, &at); err != nil {
				b.Fatal(err)
			}
		} else {
			<-time.After(500 * time.Microsecond)
		}
	}
	res, err := http.Get(fmt.Sprintf("http://%s:%d/v1/health", at.Host, at.Port))
	if err != nil {
		b.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b.Fatalf("GET /health = %d", res.StatusCode)
	}
	b.StopTimer()
	defer b.StartTimer()
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if _, rest, ok := strings.Cut(string(status), "VmRSS:"); ok {
		fmt.Sscan(rest, &resident)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		b.Fatalf("stopping: %v", err)
	}
	return resident
}

// fill makes a store of about the given size: runs with a long answer each.
func fill(b *testing.B, path string, size int64) {
	b.Helper()
	db, err := store.Open(b.Context(), store.Options{Path: path, Durability: "normal"})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	noise := make([]byte, 24<<10)
	for n, written := 0, int64(0); written < size; {
		err := db.Update(b.Context(), func(tx *store.Tx) error {
			for range 100 {
				rand.Read(noise)
				text, _ := json.Marshal(map[string]string{"role": "user", "content": base64.StdEncoding.EncodeToString(noise)})
				c := store.Change{Run: store.Run{ID: fmt.Sprintf("run-%09d", n), Kind: "agent", Owner: "shout", Current: "shout", Status: store.Completed,
					InputForm: "text", Usage: []byte(`{}`), Models: []byte(`{}`), Messages: 1}, Messages: []store.Message{{Role: "user", Body: text}}}
				if _, err := db.Runs().Apply(tx, &c); err != nil {
					return err
				}
				n++
				written += int64(len(text))
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
