package audit

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"agentd/server/fault"
	"agentd/store"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/chacha20poly1305"
)

// Names of the chain's values.
const (
	valueSealing = "sealing"     // a sealing, as JSON
	valuePublic  = "public_key"  // Ed25519, 32 bytes
	valuePrivate = "private_key" // the seed, sealed
	valueHead    = "checkpoint"  // the latest line of the checkpoint file
	valueEdge    = "edge"        // the edge of the tree that this line signs
	valueAccepts = "accepted"    // the lines of checkpoints with which breaks were accepted
	valueBroken  = "broken"      // a Break that was found and not accepted, as JSON; empty: none
	valueStub    = "stub"        // where the chain was pruned, as JSON
	valueChained = "chained"     // the last row of the outbox that was chained and the size of the chain then, sealed
)

// sealing says how the contents of a file are sealed. It is no secret.
type sealing struct {
	Cipher  string `json:"cipher"`
	KDF     string `json:"kdf"`
	Salt    []byte `json:"salt"`
	Memory  uint32 `json:"memoryKiB"`
	Passes  uint32 `json:"passes"`
	Threads uint8  `json:"threads"`
}

// newSealing takes what RFC 9106 section 4 recommends second, for where memory is scarce, with one thread.
func newSealing(cipher string) sealing {
	s := sealing{Cipher: cipher, KDF: "argon2id", Salt: make([]byte, 16), Memory: 64 << 10, Passes: 3, Threads: 1}
	rand.Read(s.Salt) //nolint:errcheck // it never fails
	return s
}

// keys are what a passphrase opens a chain with.
type keys struct {
	contents cipher.AEAD // seals the rows
	values   cipher.AEAD // seals the private key, and valueChained
	outbox   cipher.AEAD // seals entries that wait to be chained
	private  ed25519.PrivateKey
}

// derive makes the keys of a file. It limits what the file may ask for to four times our memory and five times our passes, so
// that a file from somebody else takes neither all memory nor all day.
func (s *sealing) derive(passphrase []byte) (*keys, error) {
	if s.KDF != "argon2id" || len(s.Salt) < 8 || s.Memory < 8 || s.Memory > 256<<10 || s.Passes < 1 || s.Passes > 15 || s.Threads != 1 {
		return nil, unusable("its passphrase is not derived in a way that this version knows")
	}
	master := argon2.IDKey(passphrase, s.Salt, s.Passes, s.Memory, s.Threads, 32)
	debug.FreeOSMemory() // the 64 MiB are not needed again
	k := &keys{}
	var err error
	if k.contents, err = s.aead(master, "audit contents"); err == nil {
		k.values, err = s.aead(master, "audit values")
	}
	if err == nil {
		k.outbox, err = s.aead(master, "audit outbox")
	}
	return k, err
}

func (s *sealing) aead(master []byte, use string) (cipher.AEAD, error) {
	key, err := hkdf.Expand(sha256.New, master, use, 32)
	if err != nil {
		return nil, err
	}
	switch s.Cipher {
	case "chacha20": // XChaCha20-Poly1305: its nonces are long enough to be drawn at random for ever
		return chacha20poly1305.NewX(key)
	case "aes256gcm": // NIST SP 800-38D section 8.3: at most 2^32 random nonces, and so rows, under one key
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		return cipher.NewGCM(block)
	}
	return nil, fault.Invalid(fmt.Sprintf("There is no audit cipher %q.", s.Cipher), fault.At("is chacha20 or aes256gcm", "audit", "cipher"))
}

// seal returns a fresh nonce and the ciphertext.
func seal(a cipher.AEAD, plain, bound []byte) []byte {
	out := make([]byte, a.NonceSize(), a.NonceSize()+len(plain)+a.Overhead())
	rand.Read(out) //nolint:errcheck // it never fails
	return a.Seal(out, out, plain, bound)
}

// open is the inverse of seal. It appends to dst.
func open(a cipher.AEAD, dst, sealed, bound []byte) ([]byte, error) {
	n := a.NonceSize()
	if len(sealed) < n+a.Overhead() {
		return nil, errSealed
	}
	return a.Open(dst, sealed[:n], sealed[n:], bound)
}

var errSealed = fault.New(fault.AuditUnusable, "An encrypted value is too short.")

// appendBound adds the associated data of a row: a sealed part fits only the row that it was made for.
func appendBound(dst []byte, seq int64, hash []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, uint64(seq)), hash...)
}

// sealChained makes a [valueChained]. Only with the size of the chain, an older one does not fit later.
func (k *keys) sealChained(row, size int64) []byte {
	plain := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(row)), uint64(size))
	return seal(k.values, plain, []byte(valueChained))
}

// openChained is the inverse of sealChained; ok is false if there is no value, or somebody else has made it.
func (k *keys) openChained(value []byte) (row, size int64, ok bool) {
	plain, err := open(k.values, nil, value, []byte(valueChained))
	if err != nil || len(plain) != 16 {
		return 0, 0, false
	}
	return int64(binary.BigEndian.Uint64(plain)), int64(binary.BigEndian.Uint64(plain[8:])), true
}

// found makes the values of a new chain and returns its keys. Of the outbox, the rows up to chained belong to another one.
func found(ctx context.Context, file *store.Audit, s sealing, passphrase []byte, chained int64) (*keys, error) {
	k, err := s.derive(passphrase)
	if err != nil {
		return nil, err
	}
	var public ed25519.PublicKey
	if public, k.private, err = ed25519.GenerateKey(nil); err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	sealed := seal(k.values, k.private.Seed(), []byte(valuePrivate))
	return k, file.Update(ctx, func(tx *store.Tx) error {
		return file.Set(tx, map[string][]byte{valueSealing: text, valuePublic: public, valuePrivate: sealed, valueChained: k.sealChained(chained, 0)})
	})
}

// unlock checks a passphrase against the values of a chain. A public key that does not belong to the private key was written
// by somebody without the passphrase.
func unlock(s *sealing, public, private, passphrase []byte) (*keys, error) {
	k, err := s.derive(passphrase)
	if err != nil {
		return nil, err
	}
	seed, err := open(k.values, nil, private, []byte(valuePrivate))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fault.New(fault.AuditPassphrase, "The passphrase does not match the audit chain.")
	}
	k.private = ed25519.NewKeyFromSeed(seed)
	if !bytes.Equal(k.private.Public().(ed25519.PublicKey), public) {
		return nil, unusable("its public key is not that of its private key")
	}
	return k, nil
}

func unusable(format string, args ...any) *fault.Error {
	return fault.New(fault.AuditUnusable, "The audit chain cannot be used: %s.", fmt.Sprintf(format, args...))
}
