package audit

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
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

	// Passphrase opens the contents. Without it, only the links can be checked and nothing can be appended.
	Passphrase []byte
	Cipher     string // chacha20 (default) or aes256gcm; empty accepts the cipher of an existing chain

	// Outbox has entries wait in the database, in the transactions of what they record, until they are chained; see
	// [Log.Prepare]. Nil: entries are written into the chain at once.
	Outbox *store.Outbox

	ReadOnly bool // somebody else may hold the file; see [store.Options]
	Beside   bool

	Checkpoints Checkpoints
	Metrics     *metrics.Inventory // nil: nothing is counted

	// Committed receives each entry when it is durable, in order, from one goroutine at a time. It must not block. It may
	// keep the line.
	Committed func(seq int64, line []byte)
}

// Log is an open chain. It is safe for concurrent use.
type Log struct {
	opts   Options
	file   *store.Audit
	blocks blocks // of the file, for searches
	keys   *keys  // nil: no passphrase
	public ed25519.PublicKey
	log    *slog.Logger
	batch  batch   // of the file's writer
	outbox *outbox // nil: there is none
	heads  *heads  // nil: no checkpoints are written
	before int64   // entries of earlier processes

	mu     sync.Mutex // guards the fields below
	closed bool
	broken *Break
	noted  Prepared // records that nobody waits for
	posted bool     // the next transaction takes them
	lost   []int64  // entries whose contents cannot be read; somebody has accepted that
	seen   edge     // the tree as of the last commit; it is never changed in place

	walking chan struct{} // holds a token while a verification runs: one uses a whole core
	due     chan struct{} // tells Run that enough entries have come for a checkpoint
	denials notices
	grants  notices

	uncovered atomic.Int64 // when the first entry came that no checkpoint covers, in milliseconds; unused while all are covered
}

// Head is the Merkle tree over all entries at one moment. Size is also the last sequence number.
type Head struct {
	Size     int64  `json:"size"`
	RootHash string `json:"rootHash" doc:"RFC 6962 tree hash over the hashes of the entries, hex."`
	LastSeq  int64  `json:"lastSeq"`
}

// Open opens the chain and, when there is none, makes it. Errors are start-up faults: audit-passphrase-wrong,
// audit-unusable, config-invalid for an unknown cipher, and those of [store.Open].
func Open(ctx context.Context, o Options) (*Log, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New("")
	}
	if o.Cipher != "" {
		if _, err := (&sealing{Cipher: o.Cipher}).aead(make([]byte, 32), ""); err != nil {
			return nil, err
		}
	}
	guest := o.ReadOnly || o.Beside
	if len(o.Passphrase) == 0 && !o.ReadOnly {
		return nil, fault.New(fault.EncryptionRequired, "The audit chain is always encrypted, and its passphrase is empty.")
	}
	l := &Log{opts: o, log: o.Logger, due: make(chan struct{}, 1), walking: make(chan struct{}, 1),
		denials: notices{most: maxDenials}, grants: notices{most: maxGrants, window: grantWindow}}
	l.batch.log = l
	if o.Outbox != nil {
		l.outbox = &outbox{log: l, rows: o.Outbox, turn: make(chan struct{}, 1), due: make(chan struct{}, 1), stop: make(chan struct{})}
	}
	var err error
	l.file, err = store.OpenAudit(ctx, store.Options{Path: o.Path, Durability: o.Durability, Holder: o.Holder, Logger: o.Logger, ReadOnly: o.ReadOnly, Beside: o.Beside}, &l.batch)
	if err != nil {
		return nil, err
	}
	if err = l.open(ctx, guest); err != nil {
		if l.heads != nil {
			l.heads.file.Close()
		}
		return nil, errors.Join(err, l.file.Close())
	}
	l.before = l.tree().size
	l.measure()
	return l, nil
}

// open reads the values of the chain, and makes them when it is new.
func (l *Log) open(ctx context.Context, guest bool) error {
	s, err := l.file.State(ctx)
	if err == nil && !guest && s.Values[valueSealing] == nil {
		if err = l.found(ctx, s.Tail); err == nil {
			s, err = l.file.State(ctx)
		}
	}
	if err != nil {
		return err
	}
	var how sealing
	l.public = s.Values[valuePublic]
	if json.Unmarshal(s.Values[valueSealing], &how) != nil || len(l.public) != ed25519.PublicKeySize {
		return unusable("what its entries were sealed with is missing or damaged")
	}
	l.lost = lost(acceptances(s.Values[valueAccepts], l.public))
	if l.opts.Cipher != "" && how.Cipher != l.opts.Cipher {
		return unusable("it is sealed with %s, and audit.cipher is %s", how.Cipher, l.opts.Cipher)
	}
	if len(l.opts.Passphrase) > 0 && l.keys == nil {
		l.keys, err = unlock(&how, l.public, s.Values[valuePrivate], l.opts.Passphrase)
	}
	if err != nil || l.opts.ReadOnly { // a verification reports a damaged end like any other entry
		return err
	}
	if err := l.batch.reload(nil); err != nil {
		return err
	}
	if guest {
		return l.openOutbox(ctx)
	}
	if l.opts.Checkpoints.Path != "" {
		if l.heads, err = openHeads(l.opts.Checkpoints, l.public); err != nil {
			return err
		}
		if err := l.mend(s.Values[valueHead]); err != nil {
			return err
		}
	}
	return cmp.Or(l.examine(ctx), l.openOutbox(ctx))
}

// found makes the values and the keys of a new chain.
func (l *Log) found(ctx context.Context, tail *store.AuditRow) (err error) {
	if tail != nil {
		return unusable("it has entries, but not what they were sealed with")
	}
	path := l.opts.Checkpoints.Path
	if info, err := os.Stat(path); path != "" && err == nil && info.Size() > 0 {
		return fault.New(fault.AuditUnusable, "The audit chain %s is missing or empty, but its checkpoints exist: %s.", l.opts.Path, path).
			Advise("Restore the chain's file. To begin a new chain, move its checkpoints to another place.")
	}
	last := int64(0)
	if l.outbox != nil {
		if last, err = l.outbox.abandon(ctx); err != nil {
			return err
		}
	}
	l.keys, err = found(ctx, l.file, newSealing(cmp.Or(l.opts.Cipher, "chacha20")), l.opts.Passphrase, last)
	return err
}

// PublicKey checks the signatures of checkpoints and prune records.
func (l *Log) PublicKey() ed25519.PublicKey { return l.public }

// Path is the absolute path of the chain's file.
func (l *Log) Path() string { return l.file.Path() }

// Sealed reports whether the contents cannot be read, for want of the passphrase.
func (l *Log) Sealed() bool { return l.keys == nil }

// Head is the head of the chain as this process knows it.
func (l *Log) Head() Head {
	tree := l.tree()
	return tree.head()
}

func (l *Log) tree() edge {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// see publishes the tree as of a commit.
func (l *Log) see(tree edge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = tree
}

// Check reports whether entries can be appended. After a failed commit it tries another one, and so notices that the disk has
// recovered.
func (l *Log) Check(ctx context.Context) error { return unavailable(l.file.Ping(ctx)) }

// Run writes checkpoints and the counts of denied authentications until ctx is done.
func (l *Log) Run(ctx context.Context) error {
	every := l.opts.Checkpoints.Interval
	if every <= 0 {
		every = time.Minute
	}
	heads, minute := time.NewTicker(every), time.NewTicker(denialWindow)
	defer heads.Stop()
	defer minute.Stop()
	checkpoint := func() {
		if err := l.checkpoint(ctx); err != nil {
			l.log.Error("audit checkpoint failed", "error", err)
		}
	}
	if l.heads != nil && l.heads.size() < l.before { // a process was killed before it could cover its last entries
		checkpoint()
	}
	for {
		select {
		case <-heads.C:
			checkpoint()
		case <-l.due:
			checkpoint()
		case <-minute.C:
			l.countDenials()
		case <-ctx.Done():
			return nil
		}
	}
}

// Close writes the waiting records and a last checkpoint, and closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	closed := l.closed
	l.closed = true
	l.mu.Unlock()
	if closed {
		return nil
	}
	var errs []error
	if l.keys != nil && !l.opts.ReadOnly {
		l.countDenials()
		nothing := func(*store.Tx) error { return nil } // comes after all that waits
		if l.outbox != nil {
			errs = append(errs, unavailable(l.outbox.rows.Update(context.Background(), nothing)), l.outbox.close())
		} else {
			errs = append(errs, unavailable(l.file.Update(context.Background(), nothing)))
		}
	}
	if l.heads != nil {
		errs = append(errs, l.checkpoint(context.Background()), l.heads.file.Close())
	}
	return errors.Join(append(errs, l.file.Close())...)
}

// unavailable wraps the reason why the chain cannot be written; it returns nil for nil.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.AuditUnavailable, "The server cannot write the audit chain, and answers nothing that it must record.").Because(err).After(5 * time.Second)
}
