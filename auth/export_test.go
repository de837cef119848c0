package auth

import "encoding/hex"

// Hash is what the store keeps of a token.
func Hash(pepper []byte, raw Raw) string {
	sum := newHasher(pepper).sum(raw)
	return hex.EncodeToString(sum[:])
}
