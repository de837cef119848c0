package cli

import (
	"cmp"
	"context"
	"errors"

	"agentd/server/audit"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/secret"
)

// alter sets a secret or, without a value, deletes it, once the audit chain has an entry of that. It reports whether
// there was one before; only secret:set makes one where there was none.
func (c *call) alter(ctx context.Context, action audit.Action, value []byte) (secret.Store, bool, error) {
	key := c.args[0]
	cfg, store, err := c.secretStore()
	if err != nil {
		return nil, false, err
	}
	entry := secretEntry(action, key, store)
	if c.flags.reveal {
		entry.Metadata["revealed"] = true
	}
	if err := store.Check(key, value); err != nil {
		if fault.Is(err, fault.SecretAccessDenied) {
			err = c.refused(ctx, cfg, entry, err)
		}
		return store, false, err
	}
	_, found, err := store.Get(key)
	set := func() error {
		if value != nil {
			return store.Set(key, value)
		}
		_, err := store.Delete(key)
		return err
	}
	switch {
	case err != nil:
		return store, false, err
	case !found && action != audit.SecretSet:
		entry.Decision = audit.NotFound
		c.refused(ctx, cfg, entry, noSecret(store, key)) //nolint:errcheck // the caller tells that there is none
		return store, false, nil
	case !opensChain(cfg, key):
		return store, found, c.chronicle(ctx, cfg, func(s *scribe) error {
			if err := s.begin(ctx, entry); err != nil {
				return err
			}
			return set()
		})
	case found:
		return store, true, c.refused(ctx, cfg, entry, fault.New(fault.SecretAccessDenied, "The secret %q is the passphrase of the audit chain. Without it, nobody can read the chain.", key).
			Advise("Keep the secret. For a new chain, set `audit.passphraseRef` to another secret and `audit.path` to another file."))
	}
	// Without this secret there is no chain to record in, or none that opens.
	if err := set(); err != nil {
		return store, false, err
	}
	if err := c.chronicle(ctx, cfg, func(s *scribe) error { return s.begin(ctx, entry) }); err != nil {
		_, undo := store.Delete(key)
		return store, false, errors.Join(err, undo)
	}
	return store, false, nil
}

// secretEntry is the entry about a secret, which does not hold its value.
func secretEntry(action audit.Action, key string, store secret.Store) audit.Record {
	return audit.Record{Action: action, Target: "secret:" + key, Metadata: map[string]any{"store": store.Name()}}
}

// opensChain reports whether a secret of the active store is the passphrase of the audit chain.
func opensChain(cfg *config.Config, key string) bool {
	ref, err := secret.Parse(string(cmp.Or(cfg.Audit.PassphraseRef, cfg.Storage.Encryption.PassphraseRef)))
	if err != nil || !cfg.Audit.Enabled {
		return false
	}
	return ref.Scheme == "ref" && ref.Path == key ||
		ref.Scheme == "encrypted-file" && ref.Fragment == key && cfg.Resolve(ref.Path) == cfg.SecretsPath()
}

// revealing records that a value is about to be shown, or why there is none. A value must not be shown after an error.
func (c *call) revealing(ctx context.Context, cfg *config.Config, entry audit.Record, found bool, why error) error {
	if !found {
		entry.Decision = audit.NotFound
		c.refused(ctx, cfg, entry, why) //nolint:errcheck // the caller tells
		return nil
	}
	return c.chronicle(ctx, cfg, func(s *scribe) error { return s.begin(ctx, entry) })
}
