package gate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentd/server/canonical"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/tracecontext"
	"agentd/store"
)

// KeyOptions are what [Keys] work with.
type KeyOptions struct {
	Records   *store.Keys
	TTL       time.Duration // how long an answer is kept
	Require   string        // what a request without a key gets: off, warn or enforce
	CheckBody bool          // refuse a key that comes back with another body
	CacheSize int           // answers kept in memory too; 1000 when 0
	Logger    *slog.Logger
}

// Keys remembers the answers to requests with an Idempotency-Key, so that repeating a request has no second effect.
//
//	Claim -> the key has a record -> conflict, or the first answer again
//	      -> its request is in progress -> in flight
//	      -> Claim: Keep in the transaction of the effect, or Save after it; then Done
//
// What keeps a key from being used twice at once is memory of this process, which alone has the database; what keeps it
// from being used again is a row. The row is written in the very transaction that makes the effect durable, so after a
// crash either both are there or neither. Only for requests that are harmless to repeat, the row is written after the
// effect. A refusal writes none: its key is free again.
//
// A key that is bound to a run answers for that run, whatever becomes of it, for as long as the run exists.
//
// It is safe for concurrent use.
type Keys struct {
	opts  KeyOptions
	start time.Time

	replays, firsts atomic.Int64

	mu         sync.Mutex                  // guards the fields below
	flying     map[string]*store.KeyRecord // the requests in progress
	young, old map[string]*store.KeyRecord // the records that were read last; once young is full, it takes the place of old
	epoch      int                         // how many erasures there were
}

// NewKeys makes keys of what the store knows.
func NewKeys(o KeyOptions) *Keys {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CacheSize == 0 {
		o.CacheSize = 1000
	}
	return &Keys{opts: o, flying: map[string]*store.KeyRecord{}, young: map[string]*store.KeyRecord{}, start: time.Now()}
}

const (
	// MaxAnswer is the size in bytes of the largest answer that [Claim.Save] keeps.
	MaxAnswer = 1 << 20
	// maxCachedBody is the largest answer that is kept in memory too.
	maxCachedBody = 16 << 10
)

// Read takes the key out of the values of the header. An absent key is empty; with missing, the answer has to show that.
// The error is idempotency-key-required: there is none, and there must be one, or it is malformed.
func (k *Keys) Read(values []string) (key string, missing bool, err error) {
	key = strings.TrimSpace(strings.Join(values, ","))
	switch {
	case key != "" && (len(key) < 8 || len(key) > 255 || strings.ContainsFunc(key, foreign)):
		return "", false, fault.New(fault.IdempotencyKeyRequired, "The Idempotency-Key is not valid.").
			Advise("Send one key of 8 to 255 characters of A-Z a-z 0-9 _ - :, such as a UUID.")
	case key == "" && k.opts.Require == "enforce":
		return "", false, fault.New(fault.IdempotencyKeyRequired, "The request carries no Idempotency-Key.")
	}
	return key, key == "" && k.opts.Require == "warn", nil
}

// foreign reports whether a key may not have a character.
func foreign(c rune) bool {
	return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '_' && c != '-' && c != ':'
}

// Claim takes a key for a request, of which asked has the key, the principal, the target and the fingerprint, or returns
// the record of its first request, whose answer is to be given again. The caller calls Done once the request has been
// answered. Errors: idempotency-conflict when the key was used by another caller or for another request;
// idempotency-in-flight while its request is in progress; storage-failed.
func (k *Keys) Claim(ctx context.Context, asked store.KeyRecord) (*Claim, *store.KeyRecord, error) {
	if err := k.enter(&asked, false); err != nil {
		return nil, nil, err
	}
	first, err := k.record(ctx, asked.Key)
	if err == nil && first != nil {
		if err = k.conflict(first, &asked); err == nil {
			k.replays.Add(1)
			return nil, first, nil
		}
	}
	if err == nil {
		err = k.enter(&asked, true)
	}
	if err != nil {
		return nil, nil, err
	}
	k.firsts.Add(1)
	return &Claim{keys: k, asked: &asked}, nil, nil
}

// enter refuses a request while another one with its key is in progress. If none is, and with take, it has the key from
// then on.
func (k *Keys) enter(asked *store.KeyRecord, take bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if first := k.flying[asked.Key]; first != nil {
		if err := k.conflict(first, asked); err != nil {
			return err
		}
		return inFlight()
	}
	if take {
		k.flying[asked.Key] = asked
	}
	return nil
}

func inFlight() error {
	return fault.New(fault.IdempotencyInFlight, "A request with this Idempotency-Key is in progress.").After(time.Second)
}

// conflict refuses a request that is not the one that its key was first used for.
func (k *Keys) conflict(first, asked *store.KeyRecord) error {
	var text string
	switch {
	case first.Principal != asked.Principal:
		text = "Another caller has used this Idempotency-Key."
	case first.Target == "":
		text = "The result of the request with this Idempotency-Key was erased."
	case first.Target != asked.Target:
		text = fmt.Sprintf("This Idempotency-Key belongs to another request: %.200s.", first.Target)
	case k.opts.CheckBody && !bytes.Equal(first.Fingerprint, asked.Fingerprint):
		text = "This Idempotency-Key belongs to a request with another body."
	default:
		return nil
	}
	return fault.New(fault.IdempotencyConflict, "%s", text)
}

// now is the time by which records expire: that of the wall clock, but not more than has passed since the start. So no
// request happens twice because somebody sets the clock forward.
func (k *Keys) now() int64 {
	passed := time.Since(k.start)
	return min(time.Now().UnixMilli(), k.start.Add(passed).UnixMilli())
}

// record reads the record of a key that has not expired; nil when there is none. A record that was read before an erasure
// does not come into the memory after it.
func (k *Keys) record(ctx context.Context, key string) (*store.KeyRecord, error) {
	now := k.now()
	k.mu.Lock()
	r, epoch := k.young[key], k.epoch
	if r == nil && k.old[key] != nil {
		r = k.old[key]
		k.rememberLocked(r)
	}
	k.mu.Unlock()
	if r != nil && r.Live(now) {
		return r, nil
	}
	r, err := k.opts.Records.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !r.Live(now): // another may come in its place
		return nil, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if epoch == k.epoch && len(r.Body) <= maxCachedBody {
		k.rememberLocked(r)
	}
	return r, nil
}

func (k *Keys) rememberLocked(r *store.KeyRecord) {
	if len(k.young) >= max(1, k.opts.CacheSize/2) {
		k.old, k.young = k.young, map[string]*store.KeyRecord{}
	}
	k.young[r.Key] = r
}

// Forget drops what is kept in memory. It is called after an erasure.
func (k *Keys) Forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch++
	clear(k.young)
	clear(k.old)
}

// HitRatio is the part of the requests with a key that were answered again; 0 when there was none.
func (k *Keys) HitRatio() float64 {
	hits, firsts := float64(k.replays.Load()), float64(k.firsts.Load())
	return hits / max(hits+firsts, 1)
}

// A Claim is a key that a request under way has to itself. Nobody else's request with it is made before Done. One
// goroutine uses it. A nil Claim is that of a request without a key: its methods do nothing.
type Claim struct {
	keys  *Keys
	asked *store.KeyRecord
	kept  bool
	done  bool
}

// ID returns an id that only repetitions of the request have; empty without a key.
func (c *Claim) ID() string {
	if c == nil {
		return ""
	}
	sum := sha256.Sum256(append([]byte(c.asked.Key+"\n"), c.asked.Fingerprint...))
	return "key-" + hex.EncodeToString(sum[:])
}

// Keep writes the answer in the transaction that makes it true: what a has of the run, the session and the status. Out is
// the body, as [JSON] writes it; nil: there is none. The error is idempotency-in-flight when another request was faster.
func (c *Claim) Keep(tx *store.Tx, a store.KeyRecord, out any) error {
	if c == nil {
		return nil
	}
	if out != nil {
		b, err := message.Encode(out)
		if err != nil {
			return fmt.Errorf("encoding an answer: %w", err)
		}
		a.Headers, a.Body = contentType("application/json"), append(b, '\n')
	}
	c.kept = true
	err := c.keys.opts.Records.Put(tx, c.complete(tx, a))
	if errors.Is(err, store.ErrConflict) {
		err = inFlight()
	}
	return err
}

// contentType is how a record has the one header that is kept.
func contentType(media string) json.RawMessage {
	b, _ := json.Marshal(http.Header{"Content-Type": {media}}) // texts always encode
	return b
}

func (c *Claim) complete(tx *store.Tx, a store.KeyRecord) *store.KeyRecord {
	a.Key, a.Principal, a.Target, a.Fingerprint = c.asked.Key, c.asked.Principal, c.asked.Target, c.asked.Fingerprint
	a.Expires = tx.Now() + c.keys.opts.TTL.Milliseconds()
	return &a
}

// Hold holds the answer of a request back until its endpoint has returned, or until it is longer than [MaxAnswer].
func (c *Claim) Hold(w http.ResponseWriter) { w.(*recorder).room = MaxAnswer }

// SaveHeld saves the answer that is held back, if it is a success and if none of it has left.
func (c *Claim) SaveHeld(ctx context.Context, w http.ResponseWriter, about store.KeyRecord) {
	rec := w.(*recorder)
	if rec.room == 0 || rec.status/100 != 2 {
		return
	}
	about.Status, about.Body = rec.status, rec.body
	if media := w.Header().Get("Content-Type"); media != "" {
		about.Headers = contentType(media)
	}
	c.Save(ctx, about)
}

// Save keeps the answer to a request that may be made again without harm, and that has not kept it yet. An answer of
// more than [MaxAnswer] bytes, one to something that was erased meanwhile, and one that the store cannot write are not
// kept.
func (c *Claim) Save(ctx context.Context, a store.KeyRecord) {
	if c.kept || len(a.Body) > MaxAnswer {
		return
	}
	records := c.keys.opts.Records
	err := records.Update(ctx, func(tx *store.Tx) error { return records.PutAbout(tx, c.complete(tx, a)) })
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrConflict) {
		tracecontext.Log(ctx, c.keys.opts.Logger).Warn("the answer to a request with an Idempotency-Key could not be stored", "target", c.asked.Target, "error", err)
	}
}

// Done lets the key go. It may be called again.
func (c *Claim) Done() {
	if c == nil || c.done {
		return
	}
	c.done = true
	c.keys.mu.Lock()
	defer c.keys.mu.Unlock()
	delete(c.keys.flying, c.asked.Key)
}

// Replay writes an answer as it was written first.
func Replay(w http.ResponseWriter, first *store.KeyRecord) error {
	var headers http.Header
	if first.Headers != nil {
		if err := json.Unmarshal(first.Headers, &headers); err != nil {
			return err
		}
	}
	maps.Copy(w.Header(), headers)
	Write(w, first.Status, first.Body)
	return nil
}

// form is the canonical form of a body.
var form = canonical.Rules{Depth: 64}

// Fingerprint is the SHA-256 of a request: method, a space, its target, a line feed and the canonical form of its body.
// The target is the path with the query, if there is one.
//
// The canonical form of JSON does not depend on the program that wrote the body. Anything that has none counts as one JSON
// text; so does JSON that is nested deeper than 64, and no body at all, as the empty one. Up to fifty bytes of memory are
// needed for each byte.
func Fingerprint(method, target string, body []byte) []byte {
	b := make([]byte, 0, len(method)+len(target)+len(body)+4)
	sum := sha256.Sum256(appendCanonical(append(b, method+" "+target+"\n"...), body))
	return sum[:]
}

// appendCanonical appends the canonical form of a body.
func appendCanonical(to, body []byte) []byte {
	if body = bytes.TrimSpace(body); len(body) == 0 {
		return append(to, `""`...)
	}
	if out, err := form.Append(to, body); err == nil {
		return out
	}
	return canonical.AppendText(to, string(body))
}
