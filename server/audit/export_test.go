package audit

import (
	"context"

	"agentd/store"
)

// FoundCheaply makes an empty chain whose passphrase is derived with little memory, for tests that open many.
func FoundCheaply(ctx context.Context, path, cipher string, passphrase []byte) error {
	file, err := store.OpenAudit(ctx, store.Options{Path: path}, nil)
	if err != nil {
		return err
	}
	defer file.Close()
	s := newSealing(cipher)
	s.Memory, s.Passes = 8, 1
	_, err = found(ctx, file, s, passphrase, 0)
	return err
}
