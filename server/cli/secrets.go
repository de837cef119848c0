package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"agentd/server"
	"agentd/server/audit"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/secret"
)

// maxSecret bounds what is read of stdin for a value, in bytes. Stores take less.
const maxSecret = 1 << 20

// secretStore is the active store of the configuration.
func (c *call) secretStore() (*config.Config, secret.Store, error) {
	cfg, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	secrets, _, err := server.Secrets(cfg, c.log(), nil)
	return cfg, secrets.Store, err
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

// keep sets a secret, has that recorded, and tells so.
func (c *call) keep(ctx context.Context, action audit.Action, value []byte) error {
	store, found, err := c.alter(ctx, action, value)
	if err != nil {
		return err
	}
	key := c.args[0]
	if !found && action != audit.SecretSet {
		return noSecret(store, key)
	}
	if c.flags.json {
		shown, err := c.revealed(value)
		if err != nil {
			return err
		}
		return c.printJSON(struct {
			Key   string `json:"key"`
			Store string `json:"store"`
			Value string `json:"value,omitempty"`
		}{key, store.Name(), shown})
	}
	fmt.Fprintf(c.stderr, "Stored the secret %s in the %s.\n", key, store.Name())
	return c.reveal(value)
}

// revealed is a value for JSON, if it was asked for.
func (c *call) revealed(value []byte) (string, error) {
	switch {
	case !c.flags.reveal:
		return "", nil
	case !utf8.Valid(value):
		return "", fault.New(fault.ResolutionFailed, "The value is not text, and JSON cannot hold it.").Advise("Omit --json to get the bytes.")
	}
	return string(value), nil
}

// reveal writes a value to stdout if it was asked for.
func (c *call) reveal(value []byte) error {
	if !c.flags.reveal {
		return nil
	}
	_, err := fmt.Fprintf(c.stdout, "%s\n", value)
	return err
}

func (c *call) getSecret(ctx context.Context) error {
	key := c.args[0]
	cfg, store, err := c.secretStore()
	if err != nil {
		return err
	}
	value, found, err := store.Get(key)
	if err != nil {
		return err
	}
	if c.flags.reveal {
		if err := c.revealing(ctx, cfg, secretEntry(audit.SecretReveal, key, store), found, noSecret(store, key)); err != nil {
			return err
		}
	}
	if c.flags.json {
		shown, err := c.revealed(value)
		if err != nil {
			return err
		}
		return c.printFound(found, struct {
			Key   string `json:"key"`
			Found bool   `json:"found"`
			Value string `json:"value,omitempty"`
		}{key, found, shown})
	}
	if !found {
		return noSecret(store, key)
	}
	if !c.flags.reveal {
		_, err = fmt.Fprintf(c.stdout, "The %s has %s (%d bytes). Add --reveal to see it.\n", store.Name(), key, len(value))
		return err
	}
	return c.reveal(value)
}

// printFound prints a document about a secret, and fails when there is none.
func (c *call) printFound(found bool, doc any) error {
	if err := c.printJSON(doc); err != nil || found {
		return err
	}
	return exitCode(exitFailed)
}

func noSecret(store secret.Store, key string) error {
	return fault.New(fault.ResolutionFailed, "The %s has no secret %q.", store.Name(), key).Advise("List the secrets with `agentd secrets list`.")
}

func (c *call) listSecrets(context.Context) error {
	_, store, err := c.secretStore()
	if err != nil {
		return err
	}
	all, err := store.List()
	if err != nil {
		return err
	}
	if c.flags.json {
		return c.printJSON(struct {
			Store   string         `json:"store"`
			Secrets []secret.Entry `json:"secrets"`
		}{store.Name(), all})
	}
	if store.Name() == "env" {
		fmt.Fprintln(c.stderr, "The store is the environment, which cannot be listed.")
		return nil
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tCREATED\tUPDATED")
	for _, e := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\n", printable(e.Key), cmp.Or(printable(e.CreatedAt), "-"), cmp.Or(printable(e.UpdatedAt), "-"))
	}
	return w.Flush()
}

func (c *call) deleteSecret(ctx context.Context) error {
	key := c.args[0]
	store, found, err := c.alter(ctx, audit.SecretDelete, nil)
	if err != nil {
		return err
	}
	if c.flags.json {
		return c.printFound(found, struct {
			Key     string `json:"key"`
			Deleted bool   `json:"deleted"`
		}{key, found})
	}
	if !found {
		return noSecret(store, key)
	}
	fmt.Fprintf(c.stderr, "Deleted the secret %s from the %s.\n", key, store.Name())
	return nil
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
	cfg, err := c.load()
	if err != nil {
		return err
	}
	secrets, err := server.SecretsFor(cfg, c.log(), c.args[0])
	if err != nil {
		return err
	}
	value, err := secrets.Resolve(c.args[0])
	if c.flags.reveal {
		if e := c.revealing(ctx, cfg, audit.Record{Action: audit.SecretReveal, Target: "secret:" + ref.String()}, err == nil, err); e != nil {
			return e
		}
	}
	if err != nil && !c.flags.json {
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
	}{URI: ref.String(), Scheme: ref.Scheme, Resolved: err == nil}
	if err != nil {
		f := fault.Of(err)
		doc.Error, doc.Message, doc.Hint = f.Kind.Code, f.Message, f.NextStep()
		return c.printFound(false, doc)
	}
	if c.flags.json {
		if doc.Value, err = c.revealed(value); err != nil {
			return err
		}
		doc.Length = new(len(value))
		return c.printJSON(doc)
	}
	if !c.flags.reveal {
		_, err = fmt.Fprintf(c.stdout, "%s has a value of %d bytes. Add --reveal to see it.\n", ref, len(value))
		return err
	}
	return c.reveal(value)
}
