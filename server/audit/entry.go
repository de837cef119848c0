// Package audit keeps the tamper-evident chain of what principals did: append, seal, verify, prune.
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
	"agentd/store"
)

// Kinds of actor.
const (
	ActorToken  = "token"
	ActorCLI    = "cli"
	ActorHook   = "hook"
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

// A Decision is the outcome of an action.
type Decision string

const (
	Success  Decision = "success"
	Denied   Decision = "denied"
	Failed   Decision = "error"
	NotFound Decision = "not-found"
)

// Context names the run, the session and the tool that an action belongs to.
type Context struct {
	RunID     string `json:"runId,omitempty"`
	SessionID string `json:"sessionId,omitempty"`
	ToolName  string `json:"toolName,omitempty"`
}

// A Record is an action that a caller records.
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

// form is the canonical form (RFC 8785) in which entries are hashed, sealed and signed.
var form = canonical.Rules{Depth: 100}

// contents is the sealed part of an entry: its canonical JSON without the members that the chain adds at three places:
//
//	{"action":...,"actor":...,"context":...,"decision":... ,"metadata":... ,"target":"..." }
//	                                                      ^ hash          ^ prevHash, seq  ^ ts
type contents []byte

// The members before which the chain adds some. No text can hold them, because it escapes its quotes.
const (
	metadataMember = `,"metadata":`
	targetMember   = `,"target":"`
)

// begin writes contents up to the metadata.
func begin(action string, by Actor, c Context, d Decision) []byte {
	b := appendText(append(make([]byte, 0, 320), `{"action":`...), action)
	b = appendTexts(append(b, `,"actor":`...), 2, "id", by.ID, "kind", by.Kind, "label", by.Label)
	if c != (Context{}) {
		b = appendTexts(append(b, `,"context":`...), 0, "runId", c.RunID, "sessionId", c.SessionID, "toolName", c.ToolName)
	}
	return appendText(append(b, `,"decision":`...), string(d))
}

// finish writes the rest of contents, from the target on.
func finish(b []byte, target string) contents {
	return append(appendText(append(b, targetMember[:len(targetMember)-1]...), target), '}')
}

func appendText(b []byte, s string) []byte {
	return canonical.AppendText(b, strings.ToValidUTF8(s, "\uFFFD"))
}

// appendTexts writes an object of names and texts. It leaves out those that are empty, except the first ones.
func appendTexts(b []byte, always int, members ...string) []byte {
	sep := byte('{')
	for i := 0; i < len(members); i += 2 {
		if i < 2*always || members[i+1] != "" {
			b = append(append(append(b, sep, '"'), members[i]...), '"', ':')
			b, sep = appendText(b, members[i+1]), ','
		}
	}
	return append(b, '}')
}

// appendEntry writes the canonical form of the entry. With a nil hash, it leaves the hash out and so writes the text that is
// hashed. It returns nil for contents without a target, which have no place for the chain's members.
func (c contents) appendEntry(dst []byte, seq, ts int64, prev, hash []byte) []byte {
	t := bytes.LastIndex(c, []byte(targetMember))
	if t < 0 {
		return nil
	}
	if hash != nil {
		m := bytes.Index(c[:t], []byte(metadataMember))
		if m < 0 {
			m = t
		}
		dst = append(append(dst, c[:m]...), `,"hash":"`...)
		dst = append(hex.AppendEncode(dst, hash), '"')
		c, t = c[m:], t-m
	}
	dst = append(append(dst, c[:t]...), `,"prevHash":"`...)
	dst = append(hex.AppendEncode(dst, prev), `","seq":`...)
	dst = append(strconv.AppendInt(dst, seq, 10), c[t:len(c)-1]...)
	dst = append(dst, `,"ts":`...)
	return append(strconv.AppendInt(dst, ts, 10), '}')
}

// entryOf reads a row whose contents are opened.
func entryOf(r *store.AuditRow, plain contents) (e Entry, err error) {
	if err := json.Unmarshal(plain, &e); err != nil {
		return e, unusable("entry %d is damaged", r.Seq)
	}
	e.Seq, e.TS, e.PrevHash, e.Hash = r.Seq, r.TS, hex.EncodeToString(r.Prev), hex.EncodeToString(r.Hash)
	return e, nil
}

// Line is the entry as one line of canonical JSON, as in an export, without the line's end. A hash that is not hexadecimal is
// cut at the first wrong character.
func (e *Entry) Line(dst []byte) []byte {
	hash, _ := hex.DecodeString(e.Hash)
	return e.appendTo(dst, hash)
}

// Sum computes the entry's hash from its other members. Its metadata must be in canonical form, as [Log.List] returns them
// and as an export holds them.
func (e *Entry) Sum() [sha256.Size]byte { return sha256.Sum256(e.appendTo(nil, nil)) }

func (e *Entry) appendTo(dst, hash []byte) []byte {
	prev, _ := hex.DecodeString(e.PrevHash)
	b := begin(e.Action, e.Actor, *cmp.Or(e.Context, new(Context)), e.Decision)
	if e.Metadata != nil {
		b = append(append(b, metadataMember...), e.Metadata...)
	}
	return finish(b, e.Target).appendEntry(dst, e.Seq, e.TS, prev, hash)
}
