package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/crypto/argon2"
)

// An encrypted file is
//
//	magic 00 00 00 01 | 16 bytes of salt | 12 bytes of nonce | ciphertext | 16 bytes of tag
//
// The cipher is AES-256-GCM without additional data, its key Argon2id (RFC 9106) of the passphrase and the salt with the
// parameters below. The plaintext is JSON: {"values": {KEY: value}, "meta": {KEY: {...}}}.
const (
	saltSize   = 16
	nonceSize  = 12
	tagSize    = 16
	headerSize = 4 + saltSize + nonceSize

	kdfTime    = 3
	kdfMemory  = 64 << 10 // KiB
	kdfThreads = 1
	keySize    = 32

	maxBundle = 4 << 20 // bytes, of the whole file
)

var magic = [4]byte{0, 0, 0, 1} // 0x01000000, little-endian

var (
	errNoBundle   = errors.New("is not an encrypted file of secrets")
	errPassphrase = errors.New("cannot be decrypted: the passphrase is wrong, or the file is damaged")
)

// A bundle is the content of an encrypted file, with the key that it is sealed with.
type bundle struct {
	salt   [saltSize]byte
	key    []byte
	values map[string]json.RawMessage
	meta   map[string]meta
}

// meta is what is known about a value. Times are ISO-8601.
type meta struct {
	CreatedAt string `json:"createdAt,omitempty"`
	UpdatedAt string `json:"updatedAt,omitempty"`
}

// newBundle is an empty one.
func newBundle(passphrase []byte) *bundle {
	b := &bundle{values: map[string]json.RawMessage{}, meta: map[string]meta{}}
	rand.Read(b.salt[:]) // never fails
	b.key = derive(passphrase, b.salt)
	return b
}

func derive(passphrase []byte, salt [saltSize]byte) []byte {
	return argon2.IDKey(passphrase, salt[:], kdfTime, kdfMemory, kdfThreads, keySize)
}

// open decrypts a file's content. With the salt of a bundle that was opened before, it takes that one's key.
func open(sealed, passphrase []byte, before *bundle) (*bundle, error) {
	if len(sealed) < headerSize+tagSize || [4]byte(sealed) != magic {
		return nil, errNoBundle
	}
	b := &bundle{salt: [saltSize]byte(sealed[4:])}
	if before != nil && before.salt == b.salt {
		b.key = before.key
	} else {
		b.key = derive(passphrase, b.salt)
	}
	plain, err := b.aead().Open(nil, sealed[4+saltSize:headerSize], sealed[headerSize:], nil)
	if err != nil {
		return nil, errPassphrase
	}
	return b, b.decode(plain)
}

// decode reads the plaintext. Metadata that is not ours is dropped.
func (b *bundle) decode(plain []byte) error {
	var content struct {
		Values map[string]json.RawMessage `json:"values"`
		Meta   map[string]json.RawMessage `json:"meta"`
	}
	if err := json.Unmarshal(plain, &content); err != nil || content.Values == nil {
		return errors.New("holds something that is not a value") // err may quote one
	}
	b.values, b.meta = content.Values, map[string]meta{}
	for key, raw := range content.Meta {
		var m meta
		if _, ok := b.values[key]; ok && json.Unmarshal(raw, &m) == nil {
			b.meta[key] = m
		}
	}
	return nil
}

func (b *bundle) aead() cipher.AEAD {
	block, err := aes.NewCipher(b.key)
	if err != nil {
		panic(err) // the key has the size that derive gives it
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm
}

// seal encrypts the content under a new nonce.
func (b *bundle) seal() ([]byte, error) {
	plain, err := json.Marshal(map[string]any{"values": b.values, "meta": b.meta})
	if err != nil {
		return nil, err
	}
	out := make([]byte, headerSize, headerSize+len(plain)+tagSize)
	copy(out, magic[:])
	copy(out[4:], b.salt[:])
	rand.Read(out[4+saltSize : headerSize]) // never fails
	out = b.aead().Seal(out, out[4+saltSize:headerSize], plain, nil)
	if len(out) > maxBundle {
		return nil, fmt.Errorf("would be larger than %d bytes", maxBundle)
	}
	return out, nil
}

// find returns the text under a key, or under a JSON pointer (RFC 6901) into the values. With an empty name it is the
// only value, where there is one.
func (b *bundle) find(name string) (value []byte, found bool, err error) {
	var raw json.RawMessage
	switch {
	case name == "" && len(b.values) == 1:
		for _, raw = range b.values {
			found = true
		}
	case strings.HasPrefix(name, "/"):
		all, err := json.Marshal(b.values)
		if err != nil {
			return nil, false, errors.New("the values cannot be read")
		}
		raw, found = pointed(all, name[1:])
	default:
		raw, found = b.values[name]
	}
	if !found {
		return nil, false, nil
	}
	var text string
	if json.Unmarshal(raw, &text) != nil || string(raw) == "null" {
		return nil, false, fmt.Errorf("the value of %q is not text", name)
	}
	return []byte(text), true, nil
}

// pointed follows a pointer without its first slash.
func pointed(raw json.RawMessage, pointer string) (json.RawMessage, bool) {
	for token := range strings.SplitSeq(pointer, "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		var object map[string]json.RawMessage
		var list []json.RawMessage
		switch {
		case json.Unmarshal(raw, &object) == nil:
			raw = object[token]
		case json.Unmarshal(raw, &list) == nil:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(list) || strconv.Itoa(i) != token {
				return nil, false
			}
			raw = list[i]
		default:
			return nil, false
		}
		if raw == nil {
			return nil, false
		}
	}
	return raw, true
}

// put sets a value, which is valid UTF-8.
func (b *bundle) put(key, value, now string) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	m := b.meta[key]
	if m.UpdatedAt = now; m.CreatedAt == "" {
		m.CreatedAt = now
	}
	b.values[key], b.meta[key] = raw, m
	return nil
}

// readSealed reads an encrypted file; nil when there is none.
func readSealed(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBundle+1))
	if err == nil && len(b) > maxBundle {
		err = fmt.Errorf("the file %s is larger than %d bytes", path, maxBundle)
	}
	return b, err
}
