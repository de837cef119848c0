// Package audit keeps the tamper-evident chain of what principals did: append, seal, verify, export.
//
// Each entry holds the hash of the one before it. The contents of an entry are encrypted. Its number, its time and the
// two hashes are not, so that the links can be checked without the passphrase. A second file holds signed heads of a
// Merkle tree over the hashes. They reveal what the links alone cannot: a tail that was cut off, and a chain that was
// rewritten.
//
//	Append --> queue --> one of the waiting callers leads: hash, seal, INSERT...; COMMIT --> every caller returns
//	                                                            \--> Options.Committed
//	Run    --> every interval, or so many entries: sign the tree's head --> checkpoint file
//
// The chain cannot reveal two attacks: whoever has the passphrase can write another chain, and whoever can write both
// files can restore older copies of both. Against either, keep copies of the checkpoint file and of the public key where
// the server cannot write, and verify with those.
package audit

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"agentd/server/canonical"
	"agentd/server/fault"
	"agentd/store"
)

// Kinds of actor.
const (
	ActorToken  = "token"
	ActorCLI    = "cli"
	ActorAgent  = "agent"
	ActorTool   = "tool"
	ActorSystem = "system"
)

// Actor is who did something.
type Actor struct {
	Kind  string `json:"kind"`
	ID    string `json:"id"`
	Label string `json:"label,omitempty"`
}

// A Decision is what became of it.
type Decision string

const (
	Success  Decision = "success"
	Denied   Decision = "denied"
	Failed   Decision = "error"
	NotFound Decision = "not-found"
)

// Context is what it belonged to.
type Context struct {
	RunID     string `json:"runId,omitempty"`
	SessionID string `json:"sessionId,omitempty"`
	ToolName  string `json:"toolName,omitempty"`
}

// A Record is what a caller wants to have recorded.
type Record struct {
	At       time.Time // zero: now
	Actor    Actor
	Action   Action
	Target   string
	Decision Decision
	Context  Context
	Metadata map[string]any // strings, numbers, booleans, and maps and lists of those; nil: none
}

// Entry is a record in its place in the chain. Hashes are lowercase hex.
type Entry struct {
	Seq      int64           `json:"seq"`
	TS       int64           `json:"ts" doc:"Milliseconds since 1970."`
	Actor    Actor           `json:"actor"`
	Action   string          `json:"action"`
	Target   string          `json:"target"`
	Decision Decision        `json:"decision"`
	Context  *Context        `json:"context,omitempty"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
	PrevHash string          `json:"prevHash"`
	Hash     string          `json:"hash"`
}

// Limits of a record. A longer target is cut; a larger record is refused.
const (
	maxTarget   = 2048
	maxContents = 64 << 10
)

// contents is a record as canonical JSON, in the two parts between which the members that the chain adds belong:
//
//	{"action":...,"actor":...,"context":...,"decision":...,"metadata":... ,"target":"..."}
//	                                                                     ^ prevHash, seq      ^ ts
type contents struct {
	head, tail []byte
	decided    int   // length of head up to its decision, after which the hash belongs
	ts         int64 // milliseconds since 1970
}

// form is the canonical form (RFC 8785) in which entries are hashed, sealed and signed.
var form = canonical.Rules{Depth: 100}

func appendString(b []byte, s string) []byte {
	return canonical.AppendText(b, strings.ToValidUTF8(s, "\uFFFD"))
}

func contentsOf(r *Record) (contents, error) {
	b := appendHead(make([]byte, 0, 320), string(r.Action), r.Actor, r.Context, r.Decision)
	decided := len(b)
	if r.Metadata != nil {
		b = append(b, metadataMember...)
		var err error
		if b, err = form.AppendValue(b, r.Metadata); err != nil {
			return contents{}, fault.New(fault.AuditPayload, "The record %s cannot be encoded: %v.", r.Action, err)
		}
	}
	c := endContents(b, decided, r.Target[:min(len(r.Target), maxTarget)])
	if n := len(c.whole()); n > maxContents {
		return contents{}, fault.New(fault.AuditPayload, "The record %s has %d bytes, more than %d.", r.Action, n, maxContents)
	}
	return c, nil
}

// endContents adds the target to what comes before it.
func endContents(b []byte, decided int, target string) contents {
	n := len(b)
	b = appendString(append(b, targetMember[:len(targetMember)-1]...), target)
	b = append(b, '}')
	return contents{head: b[:n], tail: b[n:], decided: decided}
}

// appendHead writes an entry up to its decision.
func appendHead(b []byte, action string, by Actor, c Context, d Decision) []byte {
	b = append(b, `{"action":`...)
	b = appendString(b, action)
	b = append(b, `,"actor":{"id":`...)
	b = appendString(b, by.ID)
	b = append(b, `,"kind":`...)
	b = appendString(b, by.Kind)
	if by.Label != "" {
		b = append(b, `,"label":`...)
		b = appendString(b, by.Label)
	}
	b = appendContext(append(b, '}'), c)
	b = append(b, `,"decision":`...)
	return appendString(b, string(d))
}

func appendContext(b []byte, c Context) []byte {
	if c == (Context{}) {
		return b
	}
	b = append(b, `,"context":`...)
	sep := byte('{')
	for _, m := range [...][2]string{{"runId", c.RunID}, {"sessionId", c.SessionID}, {"toolName", c.ToolName}} {
		if m[1] != "" {
			b = append(append(b, sep, '"'), m[0]...)
			b = appendString(append(b, '"', ':'), m[1])
			sep = ','
		}
	}
	return append(b, '}')
}

// whole is both parts together: what is sealed. They lie next to each other.
func (c contents) whole() []byte { return c.head[:len(c.head)+len(c.tail)] }

const (
	metadataMember = `,"metadata":`
	targetMember   = `,"target":"` // of the last member of the sealed part; no string can hold it, since it escapes its quotes
)

// appendEntry writes what is hashed: the canonical form of the entry without its own hash.
func (c contents) appendEntry(dst []byte, seq, ts int64, prev []byte) []byte {
	dst = append(append(dst, c.head...), `,"prevHash":"`...)
	dst = hex.AppendEncode(dst, prev)
	dst = append(dst, `","seq":`...)
	dst = strconv.AppendInt(dst, seq, 10)
	dst = append(dst, c.tail[:len(c.tail)-1]...)
	dst = append(dst, `,"ts":`...)
	dst = strconv.AppendInt(dst, ts, 10)
	return append(dst, '}')
}

// line is the entry with its hash, as an export has it.
func (c contents) line(seq, ts int64, prev, hash []byte) []byte {
	dst := make([]byte, 0, len(c.head)+len(c.tail)+208)
	dst = append(append(dst, c.head[:c.decided]...), `,"hash":"`...)
	dst = append(hex.AppendEncode(dst, hash), '"')
	rest := contents{head: c.head[c.decided:], tail: c.tail}
	return rest.appendEntry(dst, seq, ts, prev)
}

// splitSealed is the inverse of whole, but for decided.
func splitSealed(plain []byte) (contents, bool) {
	i := bytes.LastIndex(plain, []byte(targetMember))
	if i < 0 {
		return contents{}, false
	}
	return contents{head: plain[:i], tail: plain[i:]}, true
}

// entryOf reads a row whose contents are opened.
func entryOf(r *store.AuditRow, plain []byte) (e Entry, err error) {
	if err := json.Unmarshal(plain, &e); err != nil {
		return e, unusable("entry %d is damaged", r.Seq)
	}
	e.Seq, e.TS, e.PrevHash, e.Hash = r.Seq, r.TS, hex.EncodeToString(r.Prev), hex.EncodeToString(r.Hash)
	return e, nil
}

// contents is the inverse of entryOf.
func (e *Entry) contents() contents {
	b := appendHead(nil, e.Action, e.Actor, *cmp.Or(e.Context, new(Context)), e.Decision)
	decided := len(b)
	if len(e.Metadata) > 0 {
		b = append(append(b, metadataMember...), e.Metadata...)
	}
	return endContents(b, decided, e.Target)
}

// Line is the entry as one line of canonical JSON, without the line's end: what an export has. Of hashes that are not
// hexadecimal it has what can be read.
func (e *Entry) Line(dst []byte) []byte {
	prev, _ := hex.DecodeString(e.PrevHash)
	hash, _ := hex.DecodeString(e.Hash)
	return append(dst, e.contents().line(e.Seq, e.TS, prev, hash)...)
}

// Sum is the hash that the entry must have, by what it says. Its metadata must be in canonical form, as they are in what
// [Log.List] returns and in an export.
func (e *Entry) Sum() [sha256.Size]byte {
	prev, _ := hex.DecodeString(e.PrevHash)
	return sha256.Sum256(e.contents().appendEntry(nil, e.Seq, e.TS, prev))
}
