package idem

import (
	"bytes"
	"crypto/sha256"

	"agentd/server/canonical"
)

// form is the canonical form of a body, which each JSON text has that is not nested too deep.
var form = canonical.Rules{Depth: 64, Loose: true}

// Fingerprint is the SHA-256 of a request: method, a space, its target, a line feed and the canonical form of its body.
// The target is the path with the query, if there is one.
//
// The canonical form of JSON is that of package canonical, so that it does not depend on the program that wrote the body. Anything
// else counts as one JSON text; so does JSON that is nested deeper than 64, and no body at all, as the empty one. Up to
// fifty bytes of memory are needed for each byte.
func Fingerprint(method, target string, body []byte) [sha256.Size]byte {
	b := make([]byte, 0, len(method)+len(target)+len(body)+4)
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, target...)
	b = append(b, '\n')
	return sha256.Sum256(appendCanonical(b, body))
}

// appendCanonical appends the canonical form of a body.
func appendCanonical(to, body []byte) []byte {
	if body = bytes.TrimSpace(body); len(body) == 0 {
		return append(to, `""`...)
	}
	if out, err := form.Append(to, body); err == nil {
		return out
	}
	return canonical.AppendText(to, string(body))
}
