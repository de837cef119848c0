package server

import (
	"cmp"
	"crypto/rand"
	"log/slog"
	"strings"

	"agentd/auth"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/secret"
)

// Secrets makes what resolves the references of a configuration, and activates the store of secrets. The redactor gets to
// know every value; it may be nil. Errors: strict-secrets-unavailable, resolution-failed.
func Secrets(cfg *config.Config, log *slog.Logger, known *secret.Redactor) (*secret.Resolver, secret.Report, error) {
	r := &secret.Resolver{Dir: cfg.Dir, Warn: log.Warn, Known: known}
	var report secret.Report
	var err error
	r.Store, report, err = secret.Activate(cfg.Secrets.Source, cfg.Secrets.Strict, cfg.SecretsPath(), r)
	return r, report, err
}

// SecretsFor is Secrets for one reference: it activates the store only where that is asked, because opening an encrypted
// file is slow on purpose.
func SecretsFor(cfg *config.Config, log *slog.Logger, ref string) (*secret.Resolver, error) {
	if r, err := secret.Parse(ref); err != nil || r.Scheme != "ref" {
		return &secret.Resolver{Dir: cfg.Dir, Warn: log.Warn}, nil
	}
	r, _, err := Secrets(cfg, log, nil)
	return r, err
}

// secrets is [Secrets] for a server. Where no agent runs, the store is activated only if the key of token hashes or the
// passphrase of the audit chain is in it.
func (s *Server) secrets() (*secret.Resolver, secret.Report, error) {
	kept := func(ref config.Ref, used bool) bool { return used && strings.HasPrefix(string(ref), "ref:") }
	if c := s.cfg; s.runs() || kept(c.Auth.PepperRef, c.Auth.Kind == "token" && s.access != Read) ||
		kept(cmp.Or(c.Audit.PassphraseRef, c.Storage.Encryption.PassphraseRef), c.Audit.Enabled) {
		return Secrets(c, s.log, s.known)
	}
	return &secret.Resolver{Dir: s.cfg.Dir, Warn: s.log.Warn, Known: s.known}, secret.Report{}, nil
}

// runs reports whether agents can run.
func (s *Server) runs() bool { return s.access == serving || s.access == Run }

// pepper resolves and checks the key of token hashes. Where the database can only be read, no token can be made, and any
// key will do.
func (s *Server) pepper(secrets *secret.Resolver) ([]byte, error) {
	ref := s.cfg.Auth.PepperRef
	switch {
	case s.access == Read:
		key := make([]byte, 32)
		_, err := rand.Read(key)
		return key, err
	case ref == "":
		return nil, fault.New(fault.PepperMissing, "auth.pepperRef is not set.")
	}
	b, err := secrets.Resolve(string(ref))
	if err != nil {
		return nil, secret.Unresolvable("auth.pepperRef", ref.String(), err)
	}
	return b, auth.CheckPepper(b)
}
