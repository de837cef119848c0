package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"agentd/server"
	"agentd/server/audit"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/store"
)

// recorded has the audit chain record an operation, and then does it. So the chain knows of everything that is done,
// whatever happens in between. It records a failure, too, and an operation that is refused, which it does not do.
func (c *call) recorded(ctx context.Context, cfg *config.Config, r audit.Record, refused error, do func() error) error {
	if refused != nil {
		do = func() error { return refused }
	}
	if !cfg.Audit.Enabled {
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
