package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"agentd/metrics"
	"agentd/server/fault"
	"agentd/store"
)

// Options say which chain to open and how.
type Options struct {
	Path       string
	Durability string // of the file's commits, as in [store.Options]
	Holder     store.Holder
	Logger     *slog.Logger

	// Passphrase opens the contents. Without it only the links can be checked, and nothing can be appended.
	Passphrase []byte
	Cipher     string // chacha20 (when empty) or aes256gcm; of a chain that exists, "" takes what it has

	ReadOnly bool // somebody else may hold the file; see [store.Options]
	Beside   bool

	Checkpoints Checkpoints
	Metrics     *metrics.Inventory // nil: nothing is counted

	// Committed is told of each entry once it is durable, in order, from one goroutine at a time. It must not block,
	// and the line is its own.
	Committed func(seq int64, line []byte)
}

// Log is an open chain. It is safe for concurrent use.
type Log struct {
	opts   Options
	file   *store.Audit
	keys   *keys // nil: no passphrase
	public ed25519.PublicKey
	log    *slog.Logger

	places chan struct{} // one token per record that waits
	lead   chan struct{} // holds a token while somebody commits; guards the head

	// The head of the chain as of the last commit, and whether it must be read again.
	last  int64
	hash  node
	tree  edge
	stale bool

	mu     sync.Mutex // guards the fields below
	queue  []*waiting
	closed bool
	failed error // of the last commit; nil after one that succeeded
	broken *Break
	lost   []int64 // entries whose contents cannot be read, as somebody has accepted

	seen     Head // as of the last commit
	seenTree edge // of that size; it is never changed in place

	work    sync.WaitGroup // of goroutines that commit what nobody waits for
	heads   *heads         // nil: no checkpoints are written
	walking chan struct{}  // holds a token while a verification runs: each takes a core
	due     chan struct{}  // tells Run that enough entries came since the last checkpoint
	denials denials
	grants  grants
	meter   meter
}

// Head is the Merkle tree over all entries at one moment. Size is also the last sequence number.
type Head struct {
	Size     int64  `json:"size"`
	RootHash string `json:"rootHash" doc:"RFC 6962 tree hash over the hashes of the entries, hex."`
	LastSeq  int64  `json:"lastSeq"`
}

// maxWaiting is how many records may wait; who comes later waits for a place.
const maxWaiting = 1024

// Open opens the chain and, when there is none, makes it. Errors are start-up faults: audit-passphrase-wrong,
// audit-unusable, config-invalid for an unknown cipher, and those of [store.Open].
func Open(ctx context.Context, o Options) (*Log, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Cipher != "" {
		if _, err := (&sealing{Cipher: o.Cipher}).aead(make([]byte, 32), ""); err != nil {
			return nil, err
		}
	}
	guest := o.ReadOnly || o.Beside
	if !guest {
		if err := orphaned(o); err != nil {
			return nil, err
		}
	}
	if len(o.Passphrase) == 0 && !o.ReadOnly {
		return nil, fault.New(fault.EncryptionRequired, "The audit chain is always encrypted, and its passphrase is empty.")
	}
	file, err := store.OpenAudit(ctx, store.Options{Path: o.Path, Durability: o.Durability, Holder: o.Holder, Logger: o.Logger, ReadOnly: o.ReadOnly, Beside: o.Beside})
	if err != nil {
		return nil, err
	}
	l := &Log{opts: o, file: file, log: o.Logger, places: make(chan struct{}, maxWaiting), lead: make(chan struct{}, 1), due: make(chan struct{}, 1),
		walking: make(chan struct{}, 1)}
	l.denials.init(l)
	err = l.open(ctx, !guest)
	if err == nil && !guest && o.Checkpoints.Path != "" {
		if l.heads, err = openHeads(o.Checkpoints, l.public); err == nil {
			err = l.mend(ctx)
		}
	}
	if err == nil && !guest {
		err = l.examine(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	l.meter.init(l)
	return l, nil
}

// open reads the values of the chain, and makes them when it is new.
func (l *Log) open(ctx context.Context, own bool) error {
	if own {
		if err := l.file.Update(ctx, func(tx *store.Tx) error {
			have, err := l.file.Value(tx, valueSealing)
			if err != nil || have != nil {
				return err
			}
			if _, some, err := l.file.Tail(tx); err != nil || some {
				return errors.Join(err, unusable("it has entries, but not what they were sealed with"))
			}
			if covered(l.opts) {
				return unusable("it is empty, but its checkpoints are there: %s", l.opts.Checkpoints.Path)
			}
			return found(tx, l.file, newSealing(cmp.Or(l.opts.Cipher, "chacha20")), l.opts.Passphrase)
		}); err != nil {
			return err
		}
	}
	var s sealing
	var text, private []byte
	var accepted []Acceptance
	err := l.file.Snapshot(ctx, func(tx *store.Tx) (err error) {
		if text, err = l.file.Value(tx, valueSealing); err == nil {
			l.public, err = l.file.Value(tx, valuePublic)
		}
		if err == nil {
			private, err = l.file.Value(tx, valuePrivate)
		}
		if err == nil && len(l.public) == ed25519.PublicKeySize {
			accepted, err = l.acceptances(tx, l.public)
		}
		return err
	})
	if err != nil {
		return err
	}
	l.lost = lost(accepted)
	if json.Unmarshal(text, &s) != nil || len(l.public) != ed25519.PublicKeySize {
		return unusable("what its entries were sealed with is missing or damaged")
	}
	if l.opts.Cipher != "" && s.Cipher != l.opts.Cipher {
		return unusable("it is sealed with %s, and audit.cipher is %s", s.Cipher, l.opts.Cipher)
	}
	if len(l.opts.Passphrase) == 0 {
		return nil
	}
	if l.keys, err = unlock(&s, l.public, private, l.opts.Passphrase); err != nil || l.opts.ReadOnly {
		return err // who only reads wants to be told of a damaged head as of any other entry
	}
	return l.reload(ctx)
}

// reload reads the head from the file. The caller leads, or nobody else knows the log yet.
func (l *Log) reload(ctx context.Context) error {
	var tail store.AuditRow
	var some bool
	var k known
	err := l.file.Snapshot(ctx, func(tx *store.Tx) (err error) {
		if tail, some, err = l.file.Tail(tx); err == nil {
			k, err = l.known(tx, l.public)
		}
		return err
	})
	if err != nil {
		return err
	}
	if some && len(tail.Hash) != sha256.Size {
		return unusable("the hash of entry %d is damaged", tail.Seq)
	}
	from := k.edge(tail.Seq)
	if l.last > 0 { // the tree that this process has grown itself, if the entries are still there
		same := false
		if _, err := l.file.Hashes(ctx, l.last, l.last, 1, func(_ int64, hash []byte) error { same = bytes.Equal(hash, l.hash[:]); return nil }); err != nil {
			return err
		}
		if same || k.stub != nil && k.stub.Through >= l.last {
			from = l.tree.clone()
		} else {
			l.distrust(Break{Seq: l.last, Reason: BrokenTruncated, Expected: hex.EncodeToString(l.hash[:])})
		}
	}
	tree, err := l.regrow(ctx, from, tail.Seq)
	if err != nil {
		return err
	}
	l.last, l.hash, l.tree, l.stale = 0, node{}, tree, false
	if some {
		l.last, l.hash = tail.Seq, node(tail.Hash)
	} else if k.stub != nil {
		l.last, l.hash = k.stub.Through, k.stub.node
	}
	l.see()
	return nil
}

// regrow adds to a tree the rows up to a sequence number. For those that are missing, which a verification finds, it takes
// empty ones, so that no checkpoint that was signed before will ever fit.
func (l *Log) regrow(ctx context.Context, e edge, to int64) (edge, error) {
	for e.size < to {
		n, err := l.file.Hashes(ctx, e.size+1, to, scanPage, func(seq int64, hash []byte) error {
			if seq-e.size > maxGap {
				return unusable("the entries from %d to %d are missing", e.size+1, seq-1)
			}
			for e.size+1 < seq {
				e.grow(node{})
			}
			e.grow(leafOf(hash))
			return nil
		})
		if err == nil && n == 0 {
			err = errGap // the last row was there a moment ago
		}
		if err != nil {
			return e, err
		}
	}
	return e, nil
}

// maxGap is how many entries may be missing in one place of a chain that is used at all.
const maxGap = 1 << 20

var errGap = errors.New("audit: a sequence number is missing")

// PublicKey checks the signatures of checkpoints and prune records.
func (l *Log) PublicKey() ed25519.PublicKey { return l.public }

// Path is the absolute path of the chain's file.
func (l *Log) Path() string { return l.file.Path() }

// Sealed reports whether the contents cannot be read, for want of the passphrase.
func (l *Log) Sealed() bool { return l.keys == nil }

// Head is the head of the chain as this process knows it.
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// Check reports whether entries can be appended. After a failure it tries again, so that it finds out when the disk
// has recovered.
func (l *Log) Check(ctx context.Context) error {
	if err := l.file.Ping(ctx); err != nil {
		return unavailable(err)
	}
	l.mu.Lock()
	failed := l.failed
	l.mu.Unlock()
	if failed == nil {
		return nil
	}
	select {
	case l.lead <- struct{}{}:
		defer func() { <-l.lead; l.kick() }()
	case <-ctx.Done():
		return failed
	}
	err := l.drain()
	if err == nil {
		l.mu.Lock()
		l.failed = nil // also where nothing was left to try with
		l.mu.Unlock()
	}
	return err
}

// Run writes checkpoints and the counts of denied authentications until ctx is done.
func (l *Log) Run(ctx context.Context) error {
	every := l.opts.Checkpoints.Interval
	if every <= 0 {
		every = time.Minute
	}
	heads, minute := time.NewTicker(every), time.NewTicker(denialWindow)
	defer heads.Stop()
	defer minute.Stop()
	for first := true; ; first = false {
		if !first { // that one covers at once what a process that was killed has left
			select {
			case <-heads.C:
			case <-l.due:
			case <-minute.C:
				l.denials.flush()
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if err := l.checkpoint(ctx); err != nil {
			l.log.Error("audit checkpoint failed", "error", err)
		}
	}
}

// Close refuses new records, makes those that wait durable, writes a last checkpoint and closes the file.
func (l *Log) Close() error {
	var errs []error
	if l.keys != nil && !l.opts.ReadOnly {
		l.denials.flush()
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	l.lead <- struct{}{}
	errs = append(errs, l.drain())
	<-l.lead
	l.work.Wait()
	if l.heads != nil {
		errs = append(errs, l.checkpoint(context.Background()), l.heads.close())
	}
	return errors.Join(append(errs, l.file.Close())...)
}

// Exists reports whether there is a chain at a path.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func unavailable(err error) error {
	return fault.New(fault.AuditUnavailable, "The audit chain cannot be written, so nothing is answered that must be recorded.").Because(err).After(5 * time.Second)
}
