package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"agentd/server"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/secret"
)

// maxSecret bounds what is read of stdin for a value, in bytes. Stores take less.
const maxSecret = 1 << 20

// secretStore is the active store of the configuration.
func (c *call) secretStore() (secret.Store, error) {
	secrets, _, err := server.Secrets(c.cfg, c.log(), nil)
	return secrets.Store, err
}

func (c *call) setSecret(ctx context.Context) error {
	value, err := c.givenValue("--value", c.flags.value)
	if err != nil {
		return err
	}
	if value == nil {
		return c.cmd.misused("the value is missing: give --from-stdin or --value.")
	}
	return c.keep(ctx, audit.SecretSet, value)
}

// givenValue is the value that a flag or stdin gives; nil when neither does.
func (c *call) givenValue(flag, text string) ([]byte, error) {
	if !c.flags.fromStdin {
		if text == "" {
			return nil, nil
		}
		return []byte(text), nil
	}
	if text != "" {
		return nil, c.cmd.misused("%s and --from-stdin cannot be combined.", flag)
	}
	b, err := io.ReadAll(io.LimitReader(c.stdin, maxSecret))
	if err != nil {
		return nil, fault.Invalid(fmt.Sprintf("The value cannot be read from stdin: %v.", err)).Advise("Send it again.")
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if s == "" {
		return nil, fault.Invalid("There is no value on stdin.").Advise("Send the value, for example `agentd secrets set KEY --from-stdin < FILE`.")
	}
	return []byte(s), nil
}

// keep sets a secret.
func (c *call) keep(ctx context.Context, action audit.Action, value []byte) error {
	store, absent, err := c.alter(ctx, action, value)
	if err = cmp.Or(err, absent); err != nil {
		return err
	}
	doc := struct {
		Key   string `json:"key"`
		Store string `json:"store"`
		Value string `json:"value,omitempty"`
	}{Key: c.args[0], Store: store.Name()}
	if !c.flags.json {
		fmt.Fprintf(c.stderr, "Stored the secret %s in the %s.\n", doc.Key, doc.Store)
	}
	return c.disclose(value, nil, &doc, &doc.Value, "")
}

// alter sets a secret or, without a value, deletes it, once the audit chain has an entry of that. Only secret:set makes a
// secret where there was none; for the other actions absent reports that.
func (c *call) alter(ctx context.Context, action audit.Action, value []byte) (store secret.Store, absent, err error) {
	key := c.args[0]
	store, err = c.secretStore()
	if err != nil {
		return nil, nil, err
	}
	entry := secretEntry(action, key, store)
	if c.flags.reveal {
		entry.Metadata["revealed"] = true
	}
	if err := store.Check(key, value); fault.Is(err, fault.SecretAccessDenied) {
		return store, nil, c.recorded(ctx, entry, err, nil)
	} else if err != nil {
		return store, nil, err
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
		return store, nil, err
	case !found && action != audit.SecretSet:
		entry.Decision = audit.NotFound
		return store, c.recorded(ctx, entry, noSecret(store, key), nil), nil
	case !c.opensChain(key):
		return store, nil, c.recorded(ctx, entry, nil, set)
	case found:
		refused := fault.New(fault.SecretAccessDenied, "The secret %q is the passphrase of the audit chain. Without it, nobody can read the chain.", key).
			Advise("Keep the secret. For a new chain, set `audit.passphraseRef` to another secret and `audit.path` to another file.")
		return store, nil, c.recorded(ctx, entry, refused, nil)
	}
	// Without this secret there is no chain to record in, or none that opens.
	if err := set(); err != nil {
		return store, nil, err
	}
	if err := c.recorded(ctx, entry, nil, nothing); err != nil {
		_, undo := store.Delete(key)
		return store, nil, errors.Join(err, undo)
	}
	return store, nil, nil
}

// nothing is the work of an operation that consists in its record.
func nothing() error { return nil }

// secretEntry is the entry about a secret, which does not hold its value.
func secretEntry(action audit.Action, key string, store secret.Store) audit.Record {
	return audit.Record{Action: action, Target: "secret:" + key, Metadata: map[string]any{"store": store.Name()}}
}

// opensChain reports whether a secret of the active store is the passphrase of the audit chain.
func (c *call) opensChain(key string) bool {
	ref, err := secret.Parse(string(cmp.Or(c.cfg.Audit.PassphraseRef, c.cfg.Storage.Encryption.PassphraseRef)))
	if err != nil || !c.cfg.Audit.Enabled {
		return false
	}
	return ref.Scheme == "ref" && ref.Path == key ||
		ref.Scheme == "encrypted-file" && ref.Fragment == key && c.cfg.Resolve(ref.Path) == c.cfg.SecretsPath()
}

// revealing records with --reveal that a value is about to be shown, or why there is none. A value must not be shown after
// an error.
func (c *call) revealing(ctx context.Context, entry audit.Record, absent error) error {
	if !c.flags.reveal {
		return nil
	}
	if absent != nil {
		entry.Decision = audit.NotFound
	}
	if err := c.recorded(ctx, entry, absent, nothing); absent == nil {
		return err
	}
	return nil // the caller reports that there is no value
}

// disclose shows what a command did with a value: as JSON a document, where it puts the value at shown, and otherwise the
// value alone, or a sentence in its place. The value is shown only with --reveal. absent says why there is none.
func (c *call) disclose(value []byte, absent error, doc any, shown *string, sentence string) error {
	switch {
	case c.flags.json && c.flags.reveal && !utf8.Valid(value):
		return fault.New(fault.ResolutionFailed, "The value is not text, and JSON cannot hold it.").Advise("Omit --json to get the bytes.")
	case c.flags.json:
		if c.flags.reveal {
			*shown = string(value)
		}
		return c.show(absent == nil, doc, nil)
	case absent != nil:
		return absent
	case c.flags.reveal:
		sentence = string(value) + "\n"
	}
	_, err := io.WriteString(c.stdout, sentence)
	return err
}

func (c *call) getSecret(ctx context.Context) error {
	key := c.args[0]
	store, err := c.secretStore()
	if err != nil {
		return err
	}
	value, found, err := store.Get(key)
	if err != nil {
		return err
	}
	var absent error
	if !found {
		absent = noSecret(store, key)
	}
	if err := c.revealing(ctx, secretEntry(audit.SecretReveal, key, store), absent); err != nil {
		return err
	}
	doc := struct {
		Key   string `json:"key"`
		Found bool   `json:"found"`
		Value string `json:"value,omitempty"`
	}{Key: key, Found: found}
	return c.disclose(value, absent, &doc, &doc.Value, fmt.Sprintf("The %s has %s (%d bytes). Add --reveal to see it.\n", store.Name(), key, len(value)))
}

func noSecret(store secret.Store, key string) error {
	return fault.New(fault.ResolutionFailed, "The %s has no secret %q.", store.Name(), key).Advise("List the secrets with `agentd secrets list`.")
}

func (c *call) listSecrets(context.Context) error {
	store, err := c.secretStore()
	if err != nil {
		return err
	}
	all, err := store.List()
	if err != nil {
		return err
	}
	return c.show(true, struct {
		Store   string         `json:"store"`
		Secrets []secret.Entry `json:"secrets"`
	}{store.Name(), all}, func(w sheet) {
		if store.Name() == "env" {
			fmt.Fprintln(c.stderr, "The store is the environment, which cannot be listed.")
			return
		}
		w.row("KEY", "CREATED", "UPDATED")
		for _, e := range all {
			w.row(e.Key, e.CreatedAt, e.UpdatedAt)
		}
	})
}

func (c *call) deleteSecret(ctx context.Context) error {
	key := c.args[0]
	store, absent, err := c.alter(ctx, audit.SecretDelete, nil)
	switch {
	case err != nil:
		return err
	case c.flags.json:
		return c.show(absent == nil, struct {
			Key     string `json:"key"`
			Deleted bool   `json:"deleted"`
		}{key, absent == nil}, nil)
	case absent == nil:
		fmt.Fprintf(c.stderr, "Deleted the secret %s from the %s.\n", key, store.Name())
	}
	return absent
}

func (c *call) rotateSecret(ctx context.Context) error {
	value, err := c.givenValue("--new-value", c.flags.newValue)
	if err != nil {
		return err
	}
	if value == nil {
		random := make([]byte, 32)
		rand.Read(random) // never fails: the process ends when the system has no randomness
		value = hex.AppendEncode(nil, random)
	}
	return c.keep(ctx, audit.SecretRotate, value)
}

func (c *call) tryRef(ctx context.Context) error {
	ref, err := secret.Parse(c.args[0])
	if err != nil {
		return err
	}
	secrets, err := server.SecretsFor(c.cfg, c.log(), c.args[0])
	if err != nil {
		return err
	}
	value, absent := secrets.Resolve(c.args[0])
	if err := c.revealing(ctx, audit.Record{Action: audit.SecretReveal, Target: "secret:" + ref.String()}, absent); err != nil {
		return err
	}
	doc := struct {
		URI      string `json:"uri"`
		Scheme   string `json:"scheme"`
		Resolved bool   `json:"resolved"`
		Length   *int   `json:"length,omitempty"` // in bytes
		Value    string `json:"value,omitempty"`
		Error    string `json:"error,omitempty"`
		Message  string `json:"message,omitempty"`
		Hint     string `json:"hint,omitempty"`
	}{URI: ref.String(), Scheme: ref.Scheme, Resolved: absent == nil}
	if absent == nil {
		doc.Length = new(len(value))
	} else {
		f := fault.Of(absent)
		doc.Error, doc.Message, doc.Hint = f.Kind.Code, f.Message, f.NextStep()
	}
	return c.disclose(value, absent, &doc, &doc.Value, fmt.Sprintf("%s has a value of %d bytes. Add --reveal to see it.\n", ref, len(value)))
}
