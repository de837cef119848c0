package cli

import (
	"context"
	"errors"
	"fmt"

	"agentd/server"
	"agentd/server/audit"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/store"
)

// A scribe adds to the audit chain what this command does. Without a chain it does nothing.
type scribe struct {
	log   *audit.Log
	begun *audit.Record // the latest that was recorded as done
}

// begin records something that is about to be done: not after it, so that nothing is done that the chain does not know
// of, whatever happens in between. After an error it must not be done.
func (s *scribe) begin(ctx context.Context, r audit.Record) error {
	if s.log == nil {
		return nil
	}
	r.Actor, r.Decision = operator(), audit.Success
	if err := s.log.Append(ctx, r); err != nil {
		return undone(err)
	}
	s.begun = &r
	return nil
}

// refuse records what is not done, with the decision of the record or, where that is empty, the one that follows from the
// error.
func (s *scribe) refuse(ctx context.Context, r audit.Record, why error) error {
	if s.log == nil {
		return nil
	}
	f := fault.Of(why)
	r.Actor = operator()
	switch {
	case r.Decision != "":
	case f.Kind.Status == 404:
		r.Decision = audit.NotFound
	case f.Kind == fault.SecretAccessDenied:
		r.Decision = audit.Denied
	default:
		r.Decision = audit.Failed
	}
	facts := map[string]any{"error": f.Kind.Code}
	for name, v := range r.Metadata {
		facts[name] = v
	}
	r.Metadata = facts
	return s.log.Append(context.WithoutCancel(ctx), r)
}

// end records the error with which something ended that had begun.
func (s *scribe) end(ctx context.Context, c *call, err error) error {
	if err != nil && s.begun != nil {
		s.begun.Decision = ""
		if failed := s.refuse(ctx, *s.begun, err); failed != nil {
			fmt.Fprintf(c.stderr, "agentd: the audit chain records the operation as done, because its failure could not be recorded (%v)\n", innermost(failed))
		}
	}
	return err
}

// chronicle gives fn a scribe of the configuration's chain. Where the chain cannot be opened, fn is not called.
func (c *call) chronicle(ctx context.Context, cfg *config.Config, fn func(*scribe) error) error {
	if !cfg.Audit.Enabled {
		return fn(&scribe{})
	}
	opened, failed := false, error(nil)
	err := c.appending(ctx, func(l *audit.Log) error {
		s := &scribe{log: l}
		opened, failed = true, s.end(ctx, c, fn(s))
		return nil
	})
	switch {
	case !opened:
		return undone(err)
	case err != nil:
		fmt.Fprintf(c.stderr, "agentd: the operation is recorded, but no checkpoint of the audit chain covers it: %v\n", innermost(err))
	}
	return failed
}

// refused records an attempt that failed before anything was done, and returns its error.
func (c *call) refused(ctx context.Context, cfg *config.Config, r audit.Record, why error) error {
	if err := c.chronicle(ctx, cfg, func(s *scribe) error { return s.refuse(ctx, r, why) }); err != nil {
		fmt.Fprintf(c.stderr, "agentd: the attempt could not be recorded: %v\n", innermost(err))
	}
	return why
}

// undone is the error of a command that could not be recorded, and so was not carried out.
func undone(err error) error {
	if f := fault.Of(err); f.Kind != fault.AuditUnavailable && f.Kind != fault.Internal {
		f.Message += " Nothing was done, because it could not be recorded."
		return f
	}
	return fault.New(fault.AuditUnavailable, "The audit chain cannot be written (%v). Nothing was done.", innermost(err)).Because(err).
		Advise("Check free space and permissions of the folder of `audit.path`, and run the command again.")
}

// appending opens the chain to append to it: as its holder or, when a server holds it, beside that server.
func (c *call) appending(ctx context.Context, fn func(*audit.Log) error) error {
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
	if fault.Is(err, fault.StoreLocked) {
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
