package auth

import (
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"slices"
	"strings"

	"agentd/server/fault"
)

// The parts of a token, of which there are four: prefix_env_v1_secret.
const (
	version        = "v1"
	secretBytes    = 32
	secretLength   = 43 // base62 digits of secretBytes bytes
	checksumLength = 6  // base62 digits of 32 bits
	maxNameLength  = 16 // of a prefix and of an environment
)

// base62 is the alphabet of secret and checksum: digits, upper case, lower case.
const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// Raw is a whole token, which is a secret. Formatting and logging it shows no part of it; string(raw) and its JSON are
// the token itself. Keep it out of unexported fields: package fmt cannot call its methods there.
type Raw string

// String hides the token.
func (Raw) String() string { return "[token]" }

// Format hides the token from every verb of package fmt.
func (r Raw) Format(f fmt.State, _ rune) { io.WriteString(f, r.String()) } //nolint:errcheck // fmt keeps no errors

// LogValue hides the token from package slog.
func (r Raw) LogValue() slog.Value { return slog.StringValue(r.String()) }

// Parse checks a token's form without a look-up: prefix_env_v1_secret, where the secret is 43 base62 characters and,
// directly behind them, 6 base62 characters of their CRC-32/IEEE. The prefix must be the one given and env one of
// envs; with no envs, it is any lower-case letter and up to 15 of a-z 0-9 and -. Every error is auth-invalid.
func Parse(raw Raw, prefix string, envs []string) error {
	text := string(raw)
	if text == "" {
		return malformed("it is empty")
	}
	if strings.Count(text, "_") != 3 {
		return malformed("it has not the four parts prefix_env_v1_secret")
	}
	gotPrefix, rest, _ := strings.Cut(text, "_")
	env, rest, _ := strings.Cut(rest, "_")
	gotVersion, tail, _ := strings.Cut(rest, "_")
	switch {
	case gotPrefix != prefix || !isName(prefix, maxNameLength):
		return malformed("its prefix is not the one of this server")
	case !envAllowed(env, envs):
		return malformed("its environment is not one of this server's")
	case gotVersion != version:
		return malformed("its version is not " + version)
	case len(tail) != secretLength+checksumLength:
		return malformed("its secret is too short or too long")
	}
	for i := range len(tail) {
		if !isBase62(tail[i]) {
			return malformed("its secret has a character that is not a letter or digit")
		}
	}
	if sum := checksum(tail[:secretLength]); tail[secretLength:] != string(sum[:]) {
		return malformed("its checksum does not match")
	}
	return nil
}

func malformed(why string) error {
	return fault.New(fault.AuthInvalid, "The token is malformed: %s.", why)
}

// Mint makes a token with 32 random bytes. The error is config-invalid: prefix or env has a form that no token can have.
func Mint(prefix, env string) (Raw, error) {
	if err := checkNames(prefix, []string{env}); err != nil {
		return "", err
	}
	var secret [secretBytes]byte
	rand.Read(secret[:]) // never fails: the process ends when the system has no randomness
	return assemble(prefix, env, secret), nil
}

func assemble(prefix, env string, secret [secretBytes]byte) Raw {
	digits := encode(secret)
	sum := checksum(string(digits[:]))
	return Raw(prefix + "_" + env + "_" + version + "_" + string(digits[:]) + string(sum[:]))
}

// encode writes the big-endian number as base62 digits, padded on the left with 0.
func encode(number [secretBytes]byte) (digits [secretLength]byte) {
	for i := range slices.Backward(digits[:]) {
		rest := 0
		for j, b := range number {
			rest = rest<<8 | int(b)
			number[j] = byte(rest / 62)
			rest %= 62
		}
		digits[i] = base62[rest]
	}
	return digits
}

// checksum is the CRC-32/IEEE of the secret in base62. The loop is crc32.ChecksumIEEE for a string; that one takes a
// slice, which would be copied to the heap for each verification.
func checksum(secret string) (digits [checksumLength]byte) {
	crc := ^uint32(0)
	for i := range len(secret) {
		crc = crc32.IEEETable[byte(crc)^secret[i]] ^ crc>>8
	}
	crc = ^crc
	for i := range slices.Backward(digits[:]) {
		digits[i] = base62[crc%62]
		crc /= 62
	}
	return digits
}

func envAllowed(env string, envs []string) bool {
	return isName(env, maxNameLength) && (len(envs) == 0 || slices.Contains(envs, env))
}

// checkNames reports every prefix and environment that no token can have.
func checkNames(prefix string, envs []string) error {
	const want = "%q is not a lower-case letter and up to 15 of a-z 0-9 and -"
	var issues []fault.Issue
	if !isName(prefix, maxNameLength) {
		issues = append(issues, fault.At(fmt.Sprintf(want, prefix), "auth", "tokenPrefix"))
	}
	for i, env := range envs {
		if !isName(env, maxNameLength) {
			issues = append(issues, fault.At(fmt.Sprintf(want, env), "auth", "tokenEnvironments", i))
		}
	}
	if issues != nil {
		return fault.Invalid("The form of tokens is not valid.", issues...)
	}
	return nil
}
