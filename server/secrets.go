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
	"agentd/store"
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

// pepper is the key of token hashes. Where the database can only be read, no token can be made, and any key will do.
func (s *Server) pepper(secrets *secret.Resolver) ([]byte, error) {
	if s.access != Read {
		return pepper(s.cfg, secrets)
	}
	key := make([]byte, 32)
	_, err := rand.Read(key)
	return key, err
}

// NewIssuer opens what the token commands need: the store must be open already.
func NewIssuer(cfg *config.Config, log *slog.Logger, db *store.DB, revoked func(string)) (*auth.Issuer, error) {
	secrets, err := SecretsFor(cfg, log, string(cfg.Auth.PepperRef))
	if err != nil {
		return nil, err
	}
	key, err := pepper(cfg, secrets)
	if err != nil {
		return nil, err
	}
	return auth.NewIssuer(auth.IssuerOptions{Tokens: db.Tokens(), Pepper: key, Prefix: cfg.Auth.TokenPrefix, Envs: cfg.Auth.TokenEnvironments, Revoked: revoked})
}

// pepper resolves and checks the key of token hashes.
func pepper(cfg *config.Config, secrets *secret.Resolver) ([]byte, error) {
	if cfg.Auth.PepperRef == "" {
		return nil, fault.New(fault.PepperMissing, "auth.pepperRef is not set.")
	}
	b, err := secrets.Resolve(string(cfg.Auth.PepperRef))
	if err != nil {
		return nil, secret.Unresolvable("auth.pepperRef", cfg.Auth.PepperRef.String(), err)
	}
	return b, auth.CheckPepper(b)
}
