package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/bits"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/store"
)

var (
	fuzzKey   = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	fuzzOther = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize)).Public().(ed25519.PublicKey)
	lineCost  = fuzztest.Cost{PerByte: 16}
)

// FuzzOutboxRow reads a row of the outbox. What it accepts is written as the same text again.
func FuzzOutboxRow(f *testing.F) {
	f.Add([]byte{})
	f.Add(Prepared{{contents("{}"), 1, false}, {contents{}, -1, false}}.appendTo(nil))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff{}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rowCost.Check(t, len(text), func() { readRow(text) })
		entries, ok := readRow(text)
		if again := entries.appendTo(nil); ok && !bytes.Equal(again, text) {
			t.Errorf("readRow(%q) = %v, which is written as %q", text, entries, again)
		}
	})
}

var rowCost = fuzztest.Cost{PerByte: 16} // an entry takes 40 bytes, and 12 of the text

func fuzzPublic() ed25519.PublicKey { return fuzzKey.Public().(ed25519.PublicKey) }

func FuzzCheckpoint(f *testing.F) {
	f.Add(sign(fuzzKey, Head{Size: 3, RootHash: strings.Repeat("0a", 32), LastSeq: 3}, time.UnixMilli(1), nil).line())
	f.Add([]byte(`{"v":"svc-audit-checkpoint/1","head":{"size":1,"rootHash":"","lastSeq":2},"V":"x"} {}`))
	f.Add([]byte(`{"v":"svc-audit-checkpoint/1","head":{"size":-1}}`))
	f.Add([]byte(`{"v":"svc-audit-checkpoint/1","signature":"","more":1}`))
	f.Add(sign(fuzzKey, Head{Size: 3, RootHash: strings.Repeat("0a", 32), LastSeq: 3}, time.UnixMilli(1), &Acceptance{At: 1, By: "cli:root", Reason: "\"\n", Seq: 3,
		First: Break{Seq: 1, Reason: BrokenMissing}, Breaks: []AcceptedBreak{{Seq: 1, To: 2, Reason: BrokenMissing}}, HeadBytes: 1, HeadSHA256: "00"}).line())
	f.Add([]byte(`{"v":"svc-audit-checkpoint/1","accepted":{"at":9223372036854775807,"reason":"\ud800","breaks":[{"seq":1e30}]}}`))
	f.Add([]byte(`{"v":"svc-audit-checkpoint/1","accepted":{"at":9223372036854775807,"headBytes":-9223372036854775808}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		lineCost.Check(t, len(line), func() { ParseCheckpoint(line) }) //nolint:errcheck // it is looked at below
		c, err := ParseCheckpoint(line)
		if err != nil {
			return
		}
		if c.V != checkpointLabel || c.Head.Size < 0 || !json.Valid(line) {
			t.Errorf("ParseCheckpoint(%q) = %+v", line, c)
		}
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseCheckpoint(text); err != nil || !same(again, c) {
			t.Errorf("ParseCheckpoint(%q) = %+v, and written again %+v, %v", line, c, again, err)
		}
		if c.Verify(fuzzOther) {
			t.Errorf("%q is signed with a key that signs nothing", line)
		}
		// Ed25519 signatures are unique, so one that holds is the one that sign makes.
		if c.Verify(fuzzPublic()) {
			ours := *sign(fuzzKey, c.Head, time.UnixMilli(c.SignedAt), c.Accepted)
			if ours.WriterID, ours.PublicKeyPEM = c.WriterID, c.PublicKeyPEM; c.WriterID == writerID(fuzzPublic()) && !same(ours, c) {
				t.Errorf("%q is signed, but sign makes %+v", line, ours)
			}
		}
	})
}

// same reports whether two checkpoints are written alike.
func same(a, b Checkpoint) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func FuzzKey(f *testing.F) {
	f.Add(PEM(fuzzPublic()))
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\n\n-----END PUBLIC KEY-----\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		// x509 and pem allocate by what the text says, which they check.
		fuzztest.Cost{PerByte: 32}.Check(t, len(text), func() { ParseKey(text) }) //nolint:errcheck // it is looked at below
		key, err := ParseKey(text)
		if err != nil {
			if key != nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("ParseKey(%q) = %x, %v", text, key, err)
			}
			return
		}
		if again, err := ParseKey(PEM(key)); err != nil || !key.Equal(again) {
			t.Errorf("ParseKey(%q) = %x, but written again %x, %v", text, key, again, err)
		}
	})
}

// FuzzHeads opens a checkpoint file to append to it.
func FuzzHeads(f *testing.F) {
	c := sign(fuzzKey, Head{Size: 3, RootHash: strings.Repeat("0a", 32), LastSeq: 3}, time.UnixMilli(1), nil)
	line := c.line()
	f.Add(append(slices.Clone(line), line...))
	f.Add(append(slices.Clone(line), line[:40]...))
	f.Add([]byte("\n\nx\n"))
	f.Add(bytes.Repeat([]byte("x"), maxLine+1))
	path := filepath.Join(f.TempDir(), "checkpoints")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := openHeads(Checkpoints{Path: path}, fuzzPublic())
		if err != nil {
			long := slices.ContainsFunc(bytes.Split(text, []byte("\n")), func(l []byte) bool { return len(l) >= maxLine })
			if !fault.Is(err, fault.AuditUnusable) || !long {
				t.Errorf("openHeads(%q) = %v, want audit-unusable for a line that is too long", text, err)
			}
			return
		}
		defer h.file.Close()
		if c := h.latest.Load(); c != nil && !c.Verify(fuzzPublic()) {
			t.Errorf("openHeads(%q) takes the head %+v, want only what is signed", text, c)
		}
		whole := text[:bytes.LastIndexByte(text, '\n')+1]
		if err := h.write(c); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, append(slices.Clone(whole), line...)) {
			t.Errorf("openHeads(%q) and a line make %q, %v", text, got, err)
		}
		r, err := readHeads(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.file.Close()
		var last Checkpoint
		lines := 0
		for {
			c, ok, err := r.next()
			if !ok {
				break
			}
			if lines++; err == nil {
				last = c
			}
		}
		if lines != bytes.Count(whole, []byte("\n"))+1 || !last.Verify(fuzzPublic()) {
			t.Errorf("of %q and a line, %d lines are read, the last %+v", text, lines, last)
		}
	})
}

// treeOf is an edge over n leaves, by a way of its own: RFC 6962 section 2.1, from the leaves down.
func treeOf(n int) (e edge, leaves []node) {
	for i := range n {
		hash := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		leaves = append(leaves, leafOf(hash[:]))
		e.add(hash[:])
	}
	return e, leaves
}

func rootOf(leaves []node) node {
	switch n := len(leaves); n {
	case 0:
		return sha256.Sum256(nil)
	case 1:
		return leaves[0]
	default:
		k := 1 << (bits.Len(uint(n-1)) - 1)
		return join(rootOf(leaves[:k]), rootOf(leaves[k:]))
	}
}

// FuzzTree reads the edge of a tree, as a chain of others may have it.
func FuzzTree(f *testing.F) {
	for _, n := range []int{0, 1, 5, 64} {
		e, _ := treeOf(n)
		f.Add(e.bytes())
	}
	f.Add([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzztest.Check(t, len(b), func() { parseEdge(b) })
		e, ok := parseEdge(b)
		if !ok {
			return
		}
		if !bytes.Equal(e.bytes(), b) || len(e.peaks) != bits.OnesCount64(uint64(e.size)) || e.size < 0 {
			t.Fatalf("parseEdge(%x) = %+v", b, e)
		}
		grown := e.clone()
		grown.add([]byte{1})
		if grown.size != e.size+1 || len(grown.peaks) != bits.OnesCount64(uint64(grown.size)) || grown.root() == e.root() {
			t.Errorf("%x grows to %+v", b, grown)
		}
		if again, ok := parseEdge(b); !ok || !reflect.DeepEqual(again, e) {
			t.Errorf("growing a clone of %+v makes it %+v", e, again)
		}
	})
}

// FuzzStub reads the record of a pruning, as a chain of others may have it.
func FuzzStub(f *testing.F) {
	e, _ := treeOf(5)
	s := stub{V: stubLabel, Through: 5, Hash: hex.EncodeToString(make([]byte, 32)), Tree: e.bytes(), Count: 5, At: 1, By: "cli:x"}
	text, err := json.Marshal(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"v":"svc-audit-stub/1","through":0,"tree":"AAAAAAAAAAA="}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		lineCost.Check(t, len(text), func() { parseStub(text) }) //nolint:errcheck // it is looked at below
		s, err := parseStub(text)
		if err != nil {
			if s != nil || !fault.Is(err, fault.AuditUnusable) {
				t.Errorf("parseStub(%q) = %v, %v, want audit-unusable", text, s, err)
			}
			return
		}
		written, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseStub(written)
		if err != nil || !reflect.DeepEqual(again, s) || s.edge.size != s.Through || s.Through < 1 || hex.EncodeToString(s.node[:]) != strings.ToLower(s.Hash) {
			t.Errorf("parseStub(%q) = %+v, and written again %+v, %v", text, s, again, err)
		}
		if signed(fuzzOther, s.Signature, s, "signature") {
			t.Errorf("%q is signed with a key that signs nothing", text)
		}
	})
}

// FuzzProof checks a proof for one of up to 300 entries, one byte of which is changed.
func FuzzProof(f *testing.F) {
	f.Add(uint16(1), uint16(1), uint16(0), byte(0))
	f.Add(uint16(7), uint16(3), uint16(9), byte(1))
	f.Add(uint16(256), uint16(256), uint16(40), byte(0x80))
	f.Fuzz(func(t *testing.T, size, seq, at uint16, flip byte) {
		if size = size%300 + 1; seq%size == 0 {
			seq = size
		}
		p := Proof{Seq: int64(seq % size), TreeSize: int64(size)}
		if p.Seq == 0 {
			p.Seq = int64(size)
		}
		e, leaves := treeOf(int(size))
		root := rootOf(leaves)
		if e.root() != root {
			t.Fatalf("an edge over %d leaves has the root %x, want %x", size, e.root(), root)
		}
		var path [][]byte
		for from, to := 0, len(leaves); to-from > 1; {
			k := from + 1<<(bits.Len(uint(to-from-1))-1)
			sibling := rootOf(leaves[from:k])
			if int(p.Seq) <= k {
				sibling = rootOf(leaves[k:to])
				to = k
			} else {
				from = k
			}
			path = append([][]byte{sibling[:]}, path...)
		}
		hash := sha256.Sum256([]byte{byte(p.Seq - 1), byte((p.Seq - 1) >> 8)})
		all := append([][]byte{hash[:]}, path...)
		all[int(at)/32%len(all)][at%32] ^= flip
		for _, b := range path {
			p.Path = append(p.Path, hex.EncodeToString(b))
		}
		got, ok := RootOf(hash[:], p)
		if holds := ok && bytes.Equal(got, root[:]); holds != (flip == 0) {
			t.Errorf("RootOf() of entry %d of %d with byte %d changed by %x = %x, %v; the root is %x", p.Seq, size, at, flip, got, ok, root)
		}
		for _, bad := range []Proof{{p.Seq, p.TreeSize, "", append(p.Path, strings.Repeat("00", 32))}, {p.Seq, p.TreeSize + 1<<20, "", p.Path}, {0, p.TreeSize, "", p.Path}} {
			if got, ok := RootOf(hash[:], bad); ok && bytes.Equal(got, root[:]) {
				t.Errorf("RootOf(%+v) is the root, too", bad)
			}
		}
	})
}

// FuzzEntry writes what a caller records, as it is sealed, and reads it as a row.
func FuzzEntry(f *testing.F) {
	f.Add("http:request", "GET /v1/x", "token", "id", "", "run", "m", int64(7))
	f.Add(`a","target":"b`, `,"target":"`, "\x00", "\"", "\u2028", "", "\xff", int64(-1))
	f.Fuzz(func(t *testing.T, action, target, kind, id, label, run, meta string, n int64) {
		r := Record{Action: Action(action), Target: target, Actor: Actor{kind, id, label}, Decision: Denied, Context: Context{RunID: run}}
		if meta != "" {
			r.Metadata = map[string]any{meta: []any{meta, n, nil, true, map[string]any{}}}
		}
		c, err := r.encode()
		if err != nil {
			if !fault.Is(err, fault.AuditPayload) {
				t.Errorf("encode(%+v) = %v, want audit-payload", r, err)
			}
			return
		}
		plain := slices.Clone(c)
		row := &store.AuditRow{Seq: 5, TS: 6, Prev: make([]byte, 32), Hash: bytes.Repeat([]byte{1}, 32)}
		e, err := entryOf(row, plain)
		if err != nil {
			t.Fatalf("entryOf(%q) = %v", plain, err)
		}
		want := c.appendEntry(nil, 5, 6, row.Prev, row.Hash)
		if got := e.Line(nil); !bytes.Equal(got, want) {
			t.Errorf("%+v is written as %q, and once read %q", r, want, got)
		}
		if canonical, err := form.Append(nil, want); err != nil || !bytes.Equal(canonical, want) {
			t.Errorf("%+v is written as %q, which in canonical form is %q, %v", r, want, canonical, err)
		}
		if text := c.appendEntry(nil, 5, 6, row.Prev, nil); sha256.Sum256(text) != e.Sum() {
			t.Errorf("%+v is hashed as %q, and once read as another", r, text)
		}
		if utf8.ValidString(strings.Join([]string{action, target, kind, id, label, run}, " ")) && len(target) <= maxTarget &&
			(e.Action != action || e.Target != target || e.Actor != r.Actor || e.Decision != Denied || (e.Context == nil) != (run == "")) {
			t.Errorf("%+v is read as %+v", r, e)
		}
	})
}

// FuzzRow reads what is sealed in a row of somebody who has the passphrase.
func FuzzRow(f *testing.F) {
	f.Add([]byte(`{"action":"a","actor":{"id":"","kind":"cli"},"decision":"success","target":"t"}`))
	f.Add([]byte(`{"actor":null,"Action":"x","metadata":[1,{}],"context":{},"target":7}`))
	f.Add([]byte(`,"target":"`))
	f.Fuzz(func(t *testing.T, plain []byte) {
		row := &store.AuditRow{Seq: 5, TS: 6, Prev: make([]byte, 32), Hash: bytes.Repeat([]byte{1}, 32)}
		lineCost.Check(t, len(plain), func() { entryOf(row, plain) }) //nolint:errcheck // it is looked at below
		e, err := entryOf(row, plain)
		if err != nil {
			if !fault.Is(err, fault.AuditUnusable) || strings.Contains(err.Error(), "target") {
				t.Errorf("entryOf(%q) = %v, want audit-unusable without what it says", plain, err)
			}
			return
		}
		if e.Seq != 5 || e.TS != 6 || e.PrevHash != hex.EncodeToString(row.Prev) || e.Hash != hex.EncodeToString(row.Hash) {
			t.Errorf("entryOf(%q) = %+v, want the row's own numbers and hashes", plain, e)
		}
		if line := e.Line(nil); !json.Valid(line) || bytes.Contains(line, []byte("\n")) && !bytes.Contains(plain, []byte("\n")) {
			t.Errorf("entryOf(%q) is written as %q", plain, line)
		}
		if text := contents(plain).appendEntry(nil, 5, 6, row.Prev, nil); text != nil && !bytes.HasPrefix(text, plain[:bytes.LastIndex(plain, []byte(targetMember))]) {
			t.Errorf("appendEntry(%q) = %q", plain, text)
		}
	})
}
