// Package webhook verifies the webhooks that arrive, signs those that leave, and decides when each is sent again.
//
// Four schemes are verified. Each takes HMAC-SHA256 of the bytes that follow, so the body must be the one that arrived, not one
// that was decoded and encoded again:
//
//	standard-webhooks   webhook-id "." webhook-timestamp "." body; webhook-signature has "v1," base64, separated by spaces
//	stripe              t "." body; Stripe-Signature is "t=" seconds, and ",v1=" hex once or more
//	github              body; X-Hub-Signature-256 is "sha256=" hex
//	hmac-sha256         body, or time "." body where there is a header for the time; the headers' names are configured
//
// A [Signer] signs outgoing webhooks by the first of them, whose specification is at https://www.standardwebhooks.com. A [Target]
// decides which of the deliveries that wait for a receiver is tried now, and what an answer means for them.
//
// The package sends nothing, and knows nothing of HTTP but headers and statuses. It stores nothing: the caller keeps the ids of
// events that arrived, because a signature does not stop a request from arriving twice, and the state of deliveries.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"agentd/server/fault"
)

// The names of the schemes.
const (
	Standard = "standard-webhooks"
	Stripe   = "stripe"
	GitHub   = "github"
	HMAC     = "hmac-sha256"
)

// Bounds of what is read and configured.
const (
	Tolerance     = 300 * time.Second // between the signed time and ours, either way
	MaxHeader     = 4096              // bytes of a header's value
	MaxSignatures = 16                // in one header
	MaxID         = 256               // bytes of an event's id
	MaxSecrets    = 8                 // of one hook
	MaxSecret     = 4096              // bytes of a secret
)

// A Scheme says how the requests of a hook are signed. All fields but Name are of hmac-sha256, the only scheme that has them.
type Scheme struct {
	Name            string
	Header          string // has the signature
	Encoding        string // of the signature: hex or base64
	Prefix          string // of the signature, such as "sha256="; may be empty
	TimestampHeader string // has the signed time in seconds since 1970; empty if none is signed
}

// row is what a scheme does: read parses the headers, and event returns the id of the event once the signature is verified.
type row struct {
	read  func(Scheme, headers) (claim, error)
	event func(claim, []byte) (string, error)
}

var rows = map[string]row{
	Standard: {readStandard, func(c claim, _ []byte) (string, error) { return c.id, nil }},
	Stripe:   {readStripe, func(_ claim, body []byte) (string, error) { return idOf(body) }},
	GitHub:   {readGitHub, func(c claim, _ []byte) (string, error) { return digest(c.signatures[0]), nil }},
	HMAC:     {readHMAC, func(_ claim, body []byte) (string, error) { return digest(body), nil }},
}

// Schemes returns the names of the schemes, sorted.
func Schemes() []string { return slices.Sorted(maps.Keys(rows)) }

// Check reports what is wrong with a scheme, with paths that are the names of the configuration.
func (s Scheme) Check() (issues []fault.Issue) {
	bad := func(name, message string) { issues = append(issues, fault.At(message, name)) }
	if _, known := rows[s.Name]; !known {
		bad("scheme", "is none of "+strings.Join(Schemes(), ", "))
		return issues
	}
	for _, f := range []struct {
		name, value  string
		must, header bool
	}{
		{"header", s.Header, true, true},
		{"encoding", s.Encoding, true, false},
		{"prefix", s.Prefix, false, false},
		{"timestampHeader", s.TimestampHeader, false, true},
	} {
		switch {
		case s.Name != HMAC && f.value != "":
			bad(f.name, "is only for the scheme "+HMAC)
		case s.Name == HMAC && f.must && f.value == "":
			bad(f.name, "is missing; the scheme "+HMAC+" needs it")
		case f.header && f.value != "" && !token.MatchString(f.value):
			bad(f.name, "is not the name of a header")
		}
	}
	if s.Name != HMAC {
		return issues
	}
	if s.Encoding != "" && s.Encoding != "hex" && s.Encoding != "base64" {
		bad("encoding", "is neither hex nor base64")
	}
	if len(s.Prefix) > maxName || strings.ContainsFunc(s.Prefix, func(r rune) bool { return r < ' ' || r > '~' }) {
		bad("prefix", "is longer than 64 characters, or has others than printable ASCII")
	}
	if s.Header != "" && strings.EqualFold(s.Header, s.TimestampHeader) {
		bad("timestampHeader", "is the header of the signature")
	}
	return issues
}

// A Verifier checks the signatures of one hook. It is safe for concurrent use, and printing it shows no secret.
type Verifier struct {
	scheme Scheme
	keys   []key
}

// New returns a Verifier that accepts a signature by any of the secrets, at least one and at most [MaxSecrets]. Secrets of
// standard-webhooks are base64 of at least 24 bytes, with or without "whsec_" before it; those of other schemes are taken as
// they are. Errors are config-invalid, with issues under "secretRefs" for secrets.
func New(s Scheme, secrets ...[]byte) (*Verifier, error) {
	keys, issues := keysOf(s.Name == Standard, secrets)
	if issues = append(s.Check(), issues...); len(issues) > 0 {
		return nil, fault.Invalid("The signature of the hook is not configured correctly.", issues...)
	}
	return &Verifier{s, keys}, nil
}

// Verify checks the signature of a request with these headers, whose names are in the form of net/http, and this body. It returns
// the id of the event, which stays the same when the sender repeats a request:
//
//	standard-webhooks   webhook-id
//	stripe              "id" of the body
//	github              SHA-256 of the signature's bytes, in hex, because no header is signed, not even X-GitHub-Delivery
//	hmac-sha256         SHA-256 of the body, in hex
//
// Errors are signature-missing, signature-malformed, signature-old, signature-early and signature-wrong; and config-invalid for a
// body of Stripe that is signed and has no id.
func (v *Verifier) Verify(h map[string][]string, body []byte) (id string, err error) {
	row := rows[v.scheme.Name]
	c, err := row.read(v.scheme, headers(h))
	if err != nil {
		return "", err
	}
	if c.timed {
		switch past := time.Now().Unix() - c.time; {
		case past > int64(Tolerance/time.Second):
			return "", fault.New(fault.SignatureOld, "The request was signed %d s ago, more than %d s.", past, Tolerance/time.Second)
		case past < -int64(Tolerance/time.Second):
			return "", fault.New(fault.SignatureEarly, "The signed time is %d s in the future, more than %d s.", -past, Tolerance/time.Second)
		}
	}
	// Every secret is compared with every signature, so that the time this takes does not show which of them match.
	found := 0
	for _, key := range v.keys {
		mac := key(c.before, body)
		for _, s := range c.signatures {
			found |= subtle.ConstantTimeCompare(mac, s)
		}
	}
	if found != 1 {
		return "", fault.New(fault.SignatureWrong, "None of the hook's secrets makes the request's signature.")
	}
	return row.event(c, body)
}

// key signs a text followed by a body. It is a function, because printing a function does not show the secret that it holds.
type key func(before string, body []byte) []byte

func keyOf(secret []byte) key {
	secret = slices.Clone(secret)
	return func(before string, body []byte) []byte {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(before))
		mac.Write(body)
		return mac.Sum(nil)
	}
}

const minStandard = 24 // bytes of a secret, by the specification

func keysOf(standard bool, secrets [][]byte) (keys []key, issues []fault.Issue) {
	if len(secrets) == 0 || len(secrets) > MaxSecrets {
		issues = append(issues, fault.At(fmt.Sprintf("must name 1 to %d secrets", MaxSecrets), "secretRefs"))
	}
	for i, secret := range secrets {
		if len(secret) == 0 || len(secret) > MaxSecret {
			issues = append(issues, fault.At(fmt.Sprintf("is a secret that is empty or longer than %d bytes", MaxSecret), "secretRefs", i))
			continue
		}
		if standard {
			plain, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(string(secret), "whsec_"))
			if err != nil || len(plain) < minStandard {
				issues = append(issues, fault.At("is a secret that is not base64 of at least 24 bytes, as `openssl rand -base64 32` makes it", "secretRefs", i))
				continue
			}
			secret = plain
		}
		keys = append(keys, keyOf(secret))
	}
	return keys, issues
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// idOf is the id of an event in a body of Stripe.
func idOf(body []byte) (id string, err error) {
	var members map[string]json.RawMessage // a struct would take ID or iD for id
	err = json.Unmarshal(body, &members)
	if err == nil {
		err = json.Unmarshal(members["id"], &id)
	}
	if err != nil || !validID(id) {
		return "", fault.Invalid("The body is signed, but it is not an event of Stripe.", fault.At("must be a text of 1 to 256 visible ASCII characters", "id"))
	}
	return id, nil
}

func validID(id string) bool {
	return id != "" && len(id) <= MaxID && !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' })
}
