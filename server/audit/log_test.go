package audit_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/audit"
	"agentd/server/audit/export"
	"agentd/server/canonical"
	"agentd/server/fault"
	"agentd/store/storetest"
)

// TestVectors chains two entries whose hashes are known, in a chain that is made as a server makes it.
func TestVectors(t *testing.T) {
	l, err := audit.Open(t.Context(), audit.Options{Path: filepath.Join(t.TempDir(), "audit.db"), Passphrase: []byte(passphrase)})
	if err != nil {
		t.Fatal(err)
	}
	defer closeLog(t, l)
	for _, r := range []audit.Record{
		{At: time.UnixMilli(1700000000000), Actor: audit.Actor{Kind: "token", ID: "tok_1", Label: "ci"}, Action: "http:request", Target: "/v1/agents",
			Decision: audit.Success, Metadata: map[string]any{"method": "GET", "status": 200, "durationMs": int64(3), "requestId": "req-1"}},
		{At: time.UnixMilli(1700000000001), Actor: audit.Actor{Kind: "system", ID: "s"}, Action: "x:y", Target: "t", Decision: audit.Denied},
	} {
		if err := l.Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	page, more, err := l.List(t.Context(), audit.Query{})
	if err != nil || len(page) != 2 || more != 0 {
		t.Fatalf("List() = %d entries, %d, %v; want both", len(page), more, err)
	}
	const first, second = "8856c5602436d4281c55adb7d9a8acd823ca5c878a8f9dfecea151866a123b6a", "97426d7d579b16ff33e8b5db4a2adc2563814e74773bc781edfb8587b9f2e5e4"
	if page[0].PrevHash != strings.Repeat("0", 64) || page[0].Hash != first || page[1].PrevHash != first || page[1].Hash != second {
		t.Errorf("hashes = %s -> %s, %s -> %s; want those of the vectors", page[0].PrevHash, page[0].Hash, page[1].PrevHash, page[1].Hash)
	}
	want := `{"action":"http:request","actor":{"id":"tok_1","kind":"token","label":"ci"},"decision":"success","hash":"` + first +
		`","metadata":{"durationMs":3,"method":"GET","requestId":"req-1","status":200},"prevHash":"` + strings.Repeat("0", 64) + `","seq":1,"target":"/v1/agents","ts":1700000000000}`
	if got := string(page[0].Line(nil)); got != want {
		t.Errorf("Line() = %s\nwant %s", got, want)
	}
	if v := verify(t, l, audit.Verification{}); !v.OK || v.Count != 2 || !v.Contents || v.Head == nil || v.Head.Size != 2 {
		t.Errorf("Verify() = %+v, want two good entries", v)
	}
}

func TestAppendRefuses(t *testing.T) {
	l := openLog(t, audit.Options{})
	for name, m := range map[string]map[string]any{
		"infinite": {"x": math.Inf(1)}, "too large": {"x": strings.Repeat("x", 65<<10)}, "function": {"x": func() {}},
	} {
		if err := l.Append(t.Context(), audit.Record{Action: "a", Metadata: m}); !fault.Is(err, fault.AuditPayload) {
			t.Errorf("%s: Append() = %v, want audit-payload-serialization", name, err)
		}
	}
	odd := audit.Record{Actor: audit.Actor{Kind: "token", ID: `"`, Label: "\xff\n"}, Action: `,"target":"`, Target: `/a","target":"b` + strings.Repeat("ö", 3000), Decision: audit.Failed,
		Context: audit.Context{RunID: "r", ToolName: "t"}, Metadata: map[string]any{"target": `,"target":"`, "list": []any{1, "x", nil, 1.5, map[string]any{"b": true, "a": json.RawMessage(`{"z":1,"y":2}`)}}}}
	if err := l.Append(t.Context(), odd); err != nil {
		t.Fatal(err)
	}
	page, _, err := l.List(t.Context(), audit.Query{})
	if err != nil || len(page) != 1 || page[0].Action != string(odd.Action) || !strings.HasPrefix(page[0].Target, `/a","target":"bö`) || len(page[0].Target) > 2060 || page[0].Context.RunID != "r" {
		t.Errorf("List() = %+v, %v; want what was appended, its target cut", page, err)
	}
	if line := page[0].Line(nil); !json.Valid(line) {
		t.Errorf("Line() = %s, want JSON", line)
	} else if c, err := (canonical.Rules{Depth: 100}).Append(nil, line); err != nil || !bytes.Equal(c, line) {
		t.Errorf("Line() = %s\nwant it canonical: %s, %v", line, c, err)
	}
	if v := verify(t, l, audit.Verification{}); !v.OK {
		t.Errorf("Verify() = %+v, want it good", v)
	}
}

func TestOpenRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.db")
	l := openLog(t, audit.Options{Path: path, Cipher: "aes256gcm"})
	appendMany(t, l, 1, 3)
	closeLog(t, l)
	if b, err := os.ReadFile(path); err != nil || bytes.Contains(b, []byte("tok_1")) || bytes.Contains(b, []byte("/v1/agents")) {
		t.Errorf("the file shows what the entries say (%v)", err)
	}
	for _, tc := range []struct {
		name string
		o    audit.Options
		want *fault.Kind
	}{
		{"wrong passphrase", audit.Options{Passphrase: []byte("guess")}, fault.AuditPassphrase},
		{"other cipher", audit.Options{Passphrase: []byte(passphrase), Cipher: "chacha20"}, fault.AuditUnusable},
		{"unknown cipher", audit.Options{Passphrase: []byte(passphrase), Cipher: "rc4"}, fault.ConfigInvalid},
		{"no passphrase", audit.Options{}, fault.EncryptionRequired},
	} {
		tc.o.Path = path
		if l, err := audit.Open(t.Context(), tc.o); !fault.Is(err, tc.want) {
			t.Errorf("%s: Open() = %v, %v; want %s", tc.name, l, err, tc.want.Code)
		}
	}
	links, err := audit.Open(t.Context(), audit.Options{Path: path, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer links.Close()
	if v := verify(t, links, audit.Verification{}); !v.OK || v.Contents || v.Count != 3 || !links.Sealed() {
		t.Errorf("Verify() without the passphrase = %+v, want good links", v)
	}
	if _, _, err := links.List(t.Context(), audit.Query{}); !fault.Is(err, fault.EncryptionRequired) {
		t.Errorf("List() without the passphrase = %v, want pre-bind-encryption-required", err)
	}
	if err := links.Append(t.Context(), record(4)); !fault.Is(err, fault.AuditUnavailable) {
		t.Errorf("Append() without the passphrase = %v, want audit-unavailable", err)
	}
	if v := verify(t, openLog(t, audit.Options{Path: path}), audit.Verification{}); !v.OK || v.Count != 3 {
		t.Errorf("Verify() after another start = %+v, want three good entries", v)
	}
}

func TestConcurrentAppends(t *testing.T) {
	var mu sync.Mutex
	var told []int64
	l := openLog(t, audit.Options{Committed: func(seq int64, line []byte) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, seq)
		if !json.Valid(line) {
			t.Errorf("Committed(%d) = %s, want JSON", seq, line)
		}
	}})
	const callers, each = 32, 20
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				do := l.Append
				if (c+i)%3 == 0 {
					do = l.Note
				}
				if err := do(t.Context(), record(c*each+i)); err != nil {
					t.Errorf("append = %v", err)
				}
			}
		})
	}
	wg.Wait()
	if err := l.Append(t.Context(), record(0)); err != nil { // whatever was noted before it is durable after it
		t.Fatal(err)
	}
	if v := verify(t, l, audit.Verification{}); !v.OK || v.Count != callers*each+1 {
		t.Errorf("Verify() = %+v, want %d good entries", v, callers*each+1)
	}
	for i, seq := range told {
		if seq != int64(i+1) {
			t.Fatalf("Committed was told of %d at place %d, want them in order", seq, i)
		}
	}
	if len(told) != callers*each+1 || l.Head().Size != int64(len(told)) {
		t.Errorf("Committed was told of %d, Head() = %+v", len(told), l.Head())
	}
}

// TestTwoProcesses lets a second process append beside the one that holds the file.
func TestTwoProcesses(t *testing.T) {
	l := openLog(t, audit.Options{})
	appendMany(t, l, 1, 5)
	beside := openLog(t, audit.Options{Path: l.Path(), Beside: true})
	var wg sync.WaitGroup
	for _, l := range []*audit.Log{l, beside} {
		wg.Go(func() { appendMany(t, l, 1, 40) })
	}
	wg.Wait()
	if v := verify(t, l, audit.Verification{}); !v.OK || v.Count != 85 {
		t.Errorf("Verify() = %+v, want 85 good entries", v)
	}
}

// TestTruncatedBehindTheTip cuts entries off while the chain is open, and has another process append in their place. The
// holder's next append then finds that its own entries are gone.
func TestTruncatedBehindTheTip(t *testing.T) {
	l := openLog(t, audit.Options{})
	appendMany(t, l, 1, 5)
	storetest.Behind(t, l.Path(), "DELETE FROM audit_log WHERE seq > 3")
	beside := openLog(t, audit.Options{Path: l.Path(), Beside: true})
	appendMany(t, beside, 6, 9)
	appendMany(t, l, 10, 11)
	if b := l.Broken(); b == nil || b.Seq != 5 || b.Reason != audit.BrokenTruncated {
		t.Errorf("Broken() = %+v, want entry 5 truncated", b)
	}
	if page, _, err := l.List(t.Context(), audit.Query{}); err != nil || len(page) != 9 {
		t.Errorf("List() = %d entries, %v, want 9", len(page), err)
	}
	path := l.Path()
	closeLog(t, l)
	if b := openLog(t, audit.Options{Path: path}).Broken(); b == nil || b.Seq != 5 {
		t.Errorf("Broken() after another start = %+v, want entry 5", b)
	}
}

func TestNotesSurviveClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.db")
	l := openLog(t, audit.Options{Path: path})
	for i := range 50 {
		if err := l.Note(t.Context(), record(i)); err != nil {
			t.Fatal(err)
		}
	}
	closeLog(t, l)
	if err := l.Append(t.Context(), record(1)); !fault.Is(err, fault.AuditUnavailable) {
		t.Errorf("Append() after Close = %v, want audit-unavailable", err)
	}
	if v := verify(t, openLog(t, audit.Options{Path: path}), audit.Verification{}); !v.OK || v.Count != 50 {
		t.Errorf("Verify() = %+v, want 50 good entries", v)
	}
}

func TestListAndExport(t *testing.T) {
	l := openLog(t, audit.Options{})
	appendMany(t, l, 1, 25)
	if err := l.Append(t.Context(), audit.Record{At: time.UnixMilli(1_800_000_000_000), Actor: audit.Actor{Kind: "cli", ID: "root"}, Action: "token:create", Target: "a,\"b\"", Decision: audit.Success}); err != nil {
		t.Fatal(err)
	}
	seqs := func(q audit.Query) string {
		page, more, err := l.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for _, e := range page {
			text += fmt.Sprint(e.Seq, " ")
		}
		return text + fmt.Sprint("| ", more)
	}
	for _, tc := range []struct {
		q    audit.Query
		want string
	}{
		{audit.Query{Limit: 3}, "1 2 3 | 4"},
		{audit.Query{From: 24, Limit: 3}, "24 25 26 | 0"},
		{audit.Query{From: 24, To: 25}, "24 25 | 0"},
		{audit.Query{Newest: true, Limit: 2}, "26 25 | 24"},
		{audit.Query{Action: "token:create"}, "26 | 0"},
		{audit.Query{ActorID: "root", Newest: true}, "26 | 0"},
		{audit.Query{Since: 1_700_000_000_024, Until: 1_700_000_000_025}, "24 25 | 0"},
		{audit.Query{From: 99}, "| 0"},
	} {
		if got := seqs(tc.q); got != tc.want {
			t.Errorf("List(%+v) = %s, want %s", tc.q, got, tc.want)
		}
	}
	var out bytes.Buffer
	x, err := export.Write(t.Context(), l, &out, export.JSONL, 0, 0)
	if err != nil || x.Rows != 26 || x.Bytes != int64(out.Len()) || strings.Count(out.String(), "\n") != 26 {
		t.Errorf("Export(jsonl) = %+v, %v; %d bytes", x, err, out.Len())
	}
	for line := range strings.Lines(out.String()) {
		line = strings.TrimSuffix(line, "\n")
		if c, err := (canonical.Rules{Depth: 100}).Append(nil, []byte(line)); err != nil || string(c) != line {
			t.Errorf("Export(jsonl) has %s, want it canonical (%v)", line, err)
		}
	}
	out.Reset()
	if x, err = export.Write(t.Context(), l, &out, export.CSV, 25, 26); err != nil || x.Rows != 2 || x.Bytes != int64(out.Len()) {
		t.Errorf("Export(csv) = %+v, %v; %d bytes", x, err, out.Len())
	}
	if rows, err := csv.NewReader(&out).ReadAll(); err != nil || len(rows) != 3 || rows[2][6] != `a,"b"` || rows[2][0] != "26" {
		t.Errorf("Export(csv) = %q, %v", rows, err)
	}
}

func TestDenialsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLog(t, audit.Options{})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		for i := range 500 {
			for _, code := range []string{"auth-invalid", "auth-required"} {
				ip := netip.AddrFrom4([4]byte{10, 0, byte(i / 2), 1})
				if err := l.Denied(t.Context(), audit.Denial{Code: code, From: netip.PrefixFrom(ip, 32), Method: "GET", Target: "/v1/runs", RequestID: "r"}); err != nil {
					t.Fatal(err)
				}
			}
		}
		<-time.After(61 * time.Second)
		l.Denied(t.Context(), audit.Denial{Code: "auth-invalid", From: netip.MustParsePrefix("2001:db8:1:2::/64")})
		stop()
		<-done
		synctest.Wait() // until what was noted is durable
		total, entries := int64(0), 0
		page, _, err := l.List(t.Context(), audit.Query{Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		last := ""
		for _, e := range page {
			var m struct {
				Count   int64
				Address string
			}
			if err := json.Unmarshal(e.Metadata, &m); err != nil || e.Decision != audit.Denied || !strings.HasPrefix(e.Action, "auth:denied:auth-") {
				t.Fatalf("entry = %+v, %v", e, err)
			}
			total, entries, last = total+m.Count, entries+1, m.Address
		}
		if total != 1001 || entries > 210 || last != "2001:db8:1:2::/64" {
			t.Errorf("%d denials in %d entries, the last of %s; want 1001 in at most 210, of 2001:db8:1:2::/64", total, entries, last)
		}
	})
}
