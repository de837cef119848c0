package cli

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"strconv"
	"time"

	"agentd/server"
	"agentd/server/audit"
	"agentd/server/audit/export"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/secret"
	"agentd/store"
)

// chain opens an audit chain for reading: that of the configuration, or the file that --file names. A server that holds it
// is not disturbed. Entries that wait in the database, as those of a server that was killed do, are chained first. Without a
// passphrase, what the entries say stays closed.
func (c *call) chain(ctx context.Context, fn func(*audit.Log) error) error {
	o, err := c.chainOptions()
	if err != nil || c.flags.file != "" || len(o.Passphrase) == 0 {
		return cmp.Or(err, readChain(ctx, o, fn))
	}
	db, err := store.Open(ctx, c.storeOptions(store.Options{Beside: true}))
	if err == nil {
		defer db.Close()
		with := o
		with.Beside, with.Outbox = true, db.Outbox()
		var l *audit.Log
		if l, err = audit.Open(ctx, with); err == nil {
			return errors.Join(fn(l), l.Close())
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(c.stderr, "agentd: entries that wait in the database to be chained may be missing (%v)\n", fault.Innermost(err))
	}
	return readChain(ctx, o, fn)
}

// readChain is [call.chain] for a chain that is found already.
func readChain(ctx context.Context, o audit.Options, fn func(*audit.Log) error) error {
	o.ReadOnly = true
	l, err := audit.Open(ctx, o)
	if errors.Is(err, fs.ErrNotExist) {
		return advised(err, "Switch `audit.enabled` on and start the server, or name the file with --file.")
	}
	if err != nil {
		return err
	}
	return errors.Join(fn(l), l.Close())
}

// chainFiles is where the chain is, without what opens it.
func (c *call) chainFiles() audit.Options {
	o := server.AuditFiles(c.cfg)
	o.Logger, o.Cipher = c.log(), ""
	if c.flags.file != "" {
		o.Path, o.Checkpoints.Path = c.flags.file, c.flags.file+".checkpoints"
	}
	return o
}

// chainOptions is where the chain is, and what opens it.
func (c *call) chainOptions() (audit.Options, error) {
	o := c.chainFiles()
	ref := cmp.Or(c.flags.passphrase, string(c.cfg.Audit.PassphraseRef), string(c.cfg.Storage.Encryption.PassphraseRef))
	if ref == "" {
		return o, nil // it is not needed for everything
	}
	secrets, err := server.SecretsFor(c.cfg, c.log(), ref)
	if err != nil {
		return o, err
	}
	if c.flags.passphrase == "" {
		with, err := server.AuditOptions(c.cfg, secrets)
		o.Passphrase = with.Passphrase
		return o, err
	}
	if o.Passphrase, err = secrets.Resolve(ref); err != nil {
		err = secret.Unresolvable("--passphrase-ref", ref, err)
	}
	return o, err
}

// auditVerdict is the document of `agentd audit verify --json`.
type auditVerdict struct {
	OK      bool         `json:"ok"`
	Path    string       `json:"path"`
	Entries int64        `json:"entries"`
	Broken  *auditBroken `json:"broken,omitempty"`

	Contents      bool        `json:"contents"`
	Waiting       int         `json:"waiting,omitempty"`
	Checkpoints   int         `json:"checkpoints"`
	PrunedThrough int64       `json:"prunedThrough,omitempty"`
	Head          *audit.Head `json:"head,omitempty"`

	Accepted []audit.Acceptance `json:"accepted,omitempty"`
}

type auditBroken struct {
	Seq      int64  `json:"seq"`
	Reason   string `json:"reason"`
	Expected string `json:"expected"`
	Actual   string `json:"actual"`
}

// givenKey is the public key that --public-key names; nil when it names none.
func (c *call) givenKey() (key ed25519.PublicKey, err error) {
	if c.flags.publicKey == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.flags.publicKey)
	if err == nil {
		key, err = audit.ParseKey(text)
	}
	if err != nil {
		return nil, c.cmd.misused("--public-key %s: %v.", c.flags.publicKey, err)
	}
	return key, nil
}

func (c *call) verifyAudit(ctx context.Context) error {
	key, err := c.givenKey()
	if err != nil {
		return err
	}
	o, err := c.chainOptions()
	if err != nil {
		return err
	}
	if c.flags.file == "" {
		db, err := store.Open(ctx, c.storeOptions(store.Options{ReadOnly: true}))
		if err == nil { // else there is none, or it is of an earlier version without an outbox
			defer db.Close()
			o.Outbox = db.Outbox()
		}
	}
	return readChain(ctx, o, func(l *audit.Log) error {
		v, err := l.Verify(ctx, audit.Verification{From: c.flags.fromSeq, To: c.flags.toSeq, PublicKey: key,
			Checkpoints: cmp.Or(c.flags.checkpoints, o.Checkpoints.Path)})
		if err != nil {
			return err
		}
		doc := &auditVerdict{OK: v.OK, Path: l.Path(), Entries: v.Count, Contents: v.Contents, Waiting: v.Waiting, Checkpoints: v.Checkpoints,
			PrunedThrough: v.PrunedThrough, Head: v.Head, Accepted: v.Accepted}
		if !v.OK {
			doc.Broken = &auditBroken{v.BrokenAt, v.Reason, v.Expected, v.Actual}
		}
		return c.show(v.OK, doc, doc.say)
	})
}

func (v *auditVerdict) say(w sheet) {
	put := w.fact
	if v.OK {
		put("chain", "whole")
	} else {
		put("chain", "BROKEN at entry %d (%s)", v.Broken.Seq, v.Broken.Reason)
		put("expected", "%s", cmp.Or(v.Broken.Expected, "-"))
		put("actual", "%s", cmp.Or(v.Broken.Actual, "-"))
	}
	for _, a := range v.Accepted {
		put("accepted", "broken at entry %d (%s), by %s at %s: %s", a.First.Seq, a.First.Reason, a.By, message.Millis(a.At), a.Reason)
	}
	put("file", "%s", v.Path)
	put("entries", "%d", v.Entries)
	if v.PrunedThrough > 0 {
		put("pruned", "up to entry %d", v.PrunedThrough)
	}
	put("checked", "%s", map[bool]string{true: "links and contents", false: "links only, for want of the passphrase"}[v.Contents])
	if v.Waiting > 0 {
		put("waiting", "%d entries in the database, not chained yet", v.Waiting)
	}
	put("checkpoints", "%d", v.Checkpoints)
	if v.Head != nil {
		put("head", "%d %s", v.Head.Size, v.Head.RootHash)
	}
}

func (c *call) listAudit(ctx context.Context) error {
	return c.chain(ctx, func(l *audit.Log) error {
		q := audit.Query{From: c.flags.fromSeq, To: c.flags.toSeq, Action: c.flags.action, ActorID: c.flags.actor, Newest: c.flags.fromSeq == 0, Limit: int(c.flags.limit)}
		page := []*audit.Entry{}
		for e, err := range l.Entries(ctx, q) {
			if err != nil {
				return err
			}
			if page = append(page, e); len(page) == int(c.flags.limit) {
				break
			}
		}
		return c.show(true, map[string]any{"entries": page}, func(w sheet) {
			w.row("SEQ", "TIME", "ACTOR", "ACTION", "DECISION", "TARGET")
			for _, e := range page {
				w.row(strconv.FormatInt(e.Seq, 10), message.Millis(e.TS), cmp.Or(e.Actor.Label, e.Actor.Kind+":"+e.Actor.ID), string(e.Action),
					string(e.Decision), fitting(e.Target, 81))
			}
		})
	})
}

func (c *call) exportAudit(ctx context.Context) error {
	_, err := c.output(ctx, func(ctx context.Context, w io.Writer) error {
		return c.chain(ctx, func(l *audit.Log) error {
			_, err := export.Write(ctx, l, w, c.flags.format, c.flags.fromSeq, c.flags.toSeq)
			return err
		})
	})
	return err
}

func (c *call) acceptAudit(ctx context.Context) error {
	var a audit.Acceptance
	err := c.appending(ctx, false, func(l *audit.Log) (err error) {
		a, err = l.Accept(ctx, c.flags.reason, operator())
		return err
	})
	if fault.Is(err, fault.StoreLocked) {
		return advised(err, "Stop the server, accept the break, and start the server again.")
	}
	if err != nil {
		return err
	}
	return c.report(a, "Accepted the break of the chain at entry %d (%s). Entry %d records it, and every verification reports it.",
		a.First.Seq, a.First.Reason, a.Seq)
}

func (c *call) pruneAudit(ctx context.Context) error {
	before, err := instant(c.flags.before, time.Now())
	if err != nil {
		return c.cmd.misused("--before: %v.", err)
	}
	return c.appending(ctx, true, func(l *audit.Log) error {
		got, err := l.Prune(ctx, before, c.flags.retain, operator())
		if err != nil {
			return advised(err, "Verify the chain with `agentd audit verify`.")
		}
		return c.report(got, "Deleted %d entries; the first is now %d.", got.Deleted, got.FirstSurvivingSeq)
	})
}

// instant reads a date, or a duration before now.
func instant(text string, now time.Time) (time.Time, error) {
	var age expiry
	if age.Set(text) == nil {
		return now.Add(-time.Duration(age)), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return now, errors.New("want a date such as 2026-01-31, or an age such as 90d")
}

// auditKey prints the public key. It needs no passphrase.
func (c *call) auditKey(ctx context.Context) error {
	return readChain(ctx, c.chainFiles(), func(l *audit.Log) error {
		key := audit.KeyOf(l.PublicKey())
		if c.flags.json {
			return c.printJSON(key)
		}
		fmt.Fprintf(c.stderr, "%s %s\n", key.Algorithm, key.Fingerprint)
		_, err := io.WriteString(c.stdout, key.PublicKeyPEM)
		return err
	})
}

// recorded has the audit chain record an operation, and then does it. So the chain knows of everything that is done,
// whatever happens in between. It records a failure, too, and an operation that is refused, which it does not do.
func (c *call) recorded(ctx context.Context, r audit.Record, refused error, do func() error) error {
	if refused != nil {
		do = func() error { return refused }
	}
	if !c.cfg.Audit.Enabled {
		return do()
	}
	begun, failed := false, refused
	err := c.appending(ctx, true, func(l *audit.Log) error {
		if err := l.Append(ctx, entryOf(r, refused)); err != nil || refused != nil {
			return err
		}
		begun = true
		if failed = do(); failed != nil {
			if err := l.Append(context.WithoutCancel(ctx), entryOf(r, failed)); err != nil {
				fmt.Fprintf(c.stderr, "agentd: the audit chain records the operation as done, because its failure could not be recorded (%v)\n", fault.Innermost(err))
			}
		}
		return nil
	})
	switch {
	case err == nil:
	case refused != nil:
		fmt.Fprintf(c.stderr, "agentd: the attempt could not be recorded: %v\n", fault.Innermost(undone(err)))
	case !begun:
		return undone(err)
	default:
		fmt.Fprintf(c.stderr, "agentd: the operation is recorded, but no checkpoint of the audit chain covers it: %v\n", fault.Innermost(err))
	}
	return failed
}

// entryOf is the entry about an operation. With an error, the decision follows from that, unless the record has one.
func entryOf(r audit.Record, why error) audit.Record {
	r.Actor = operator()
	if why == nil {
		r.Decision = audit.Success
		return r
	}
	r.Metadata = maps.Clone(r.Metadata)
	if r.Metadata == nil {
		r.Metadata = map[string]any{}
	}
	r.Metadata["error"] = fault.Of(why).Kind.Code
	switch {
	case r.Decision != "":
	case fault.Is(why, fault.SecretAccessDenied):
		r.Decision = audit.Denied
	default:
		r.Decision = audit.Failed
	}
	return r
}

// undone is the error of an operation that could not be recorded, and so was not done.
func undone(err error) error {
	if f := fault.Of(err); f.Kind != fault.AuditUnavailable && f.Kind != fault.Internal {
		f.Message += " Nothing was done, because it could not be recorded."
		return f
	}
	return fault.New(fault.AuditUnavailable, "The audit chain cannot be written (%v). Nothing was done.", fault.Innermost(err)).Because(err).
		Advise("Check free space and permissions of the folder of `audit.path`, and run the command again.")
}

// appending opens the chain to append to it: as its holder or, when a server holds it and that is allowed, beside that server.
func (c *call) appending(ctx context.Context, beside bool, fn func(*audit.Log) error) error {
	o, err := c.chainOptions()
	if err != nil {
		return err
	}
	if len(o.Passphrase) == 0 {
		return fault.New(fault.EncryptionRequired, "The audit chain is encrypted, and there is no passphrase.").
			Advise("Set `audit.passphraseRef` in the configuration.")
	}
	o.Holder = store.Holder{Command: c.cmd.name}
	l, err := audit.Open(ctx, o)
	if beside && fault.Is(err, fault.StoreLocked) {
		o.Beside = true
		l, err = audit.Open(ctx, o)
	}
	if err != nil {
		return err
	}
	return errors.Join(fn(l), l.Close())
}

// operator is who gives commands.
func operator() audit.Actor {
	return audit.Actor{Kind: audit.ActorCLI, ID: server.Operator()}
}
