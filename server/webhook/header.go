package webhook

import (
	"encoding/base64"
	"encoding/hex"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"

	"agentd/server/fault"
)

// A claim is what the headers say of a request, before anything of it is checked.
type claim struct {
	id         string // webhook-id
	timed      bool   // whether a time is signed
	time       int64  // that time, in seconds since 1970
	before     string // what is signed before the body
	signatures [][]byte
}

// headers are the headers of a request, with names in the form of net/http.
type headers map[string][]string

// one returns the value of a header that must occur once: of several values, the sender may have signed another than the one read.
func (h headers) one(name string) (string, error) {
	values := textproto.MIMEHeader(h).Values(name)
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return "", fault.New(fault.SignatureMissing, "The header %s is missing.", name)
	case len(values) > 1:
		return "", malformed("The header %s occurs more than once.", name)
	case len(values[0]) > MaxHeader:
		return "", malformed("The header %s is longer than %d bytes.", name, MaxHeader)
	}
	return values[0], nil
}

func malformed(format string, args ...any) error {
	return fault.New(fault.SignatureMalformed, format, args...)
}

const (
	hexSize    = 64 // characters of a signature
	base64Size = 44
)

// seconds permits one form of each time, because the sender signs the text, not the number: 1 to 11 digits, to the year 5138.
var seconds = regexp.MustCompile(`^[1-9][0-9]{0,10}$`)

// at adds a signed time, as it is written in a header.
func (c *claim) at(name, text string) error {
	if !seconds.MatchString(text) {
		return malformed("The time in %s is not a number of seconds since 1970.", name)
	}
	c.timed = true
	c.before += text + "."
	c.time, _ = strconv.ParseInt(text, 10, 64) // 11 digits always fit
	return nil
}

// sign adds a signature of 32 bytes.
func (c *claim) sign(name, encoding, text string) (err error) {
	var signature []byte
	size := hexSize
	if encoding == "base64" {
		size = base64Size
		signature, err = base64.StdEncoding.Strict().DecodeString(text)
	} else {
		signature, err = hex.DecodeString(text)
	}
	switch {
	case err != nil || len(text) != size:
		return malformed("A signature in %s is not %d characters of %s.", name, size, encoding)
	case len(c.signatures) == MaxSignatures:
		return malformed("The header %s has more than %d signatures.", name, MaxSignatures)
	}
	c.signatures = append(c.signatures, signature)
	return nil
}

// The headers of Standard Webhooks.
const (
	idHeader        = "Webhook-Id"
	timeHeader      = "Webhook-Timestamp"
	signatureHeader = "Webhook-Signature"
)

// readStandard ignores signatures of other versions than v1. It refuses a point in the id: with one, somebody could move the borders
// between id, time and body without changing the signed text.
func readStandard(_ Scheme, h headers) (c claim, err error) {
	if c.id, err = h.one(idHeader); err != nil {
		return c, err
	}
	if !validID(c.id) || strings.Contains(c.id, ".") {
		return c, malformed("The header %s is not 1 to %d visible ASCII characters without a point.", idHeader, MaxID)
	}
	c.before = c.id + "."
	at, err := h.one(timeHeader)
	if err != nil {
		return c, err
	}
	if err := c.at(timeHeader, at); err != nil {
		return c, err
	}
	text, err := h.one(signatureHeader)
	if err != nil {
		return c, err
	}
	for one := range strings.SplitSeq(text, " ") {
		version, signature, _ := strings.Cut(one, ",")
		if version != "v1" {
			continue
		}
		if err := c.sign(signatureHeader, "base64", signature); err != nil {
			return c, err
		}
	}
	return c, c.signed(signatureHeader)
}

// readStripe ignores members other than t and v1, such as v0, which Stripe sends in tests.
func readStripe(_ Scheme, h headers) (c claim, err error) {
	const name = "Stripe-Signature"
	text, err := h.one(name)
	if err != nil {
		return c, err
	}
	for part := range strings.SplitSeq(text, ",") {
		switch key, value, _ := strings.Cut(part, "="); {
		case key == "t" && c.timed:
			return c, malformed("The header %s has more than one time.", name)
		case key == "t":
			err = c.at(name, value)
		case key == "v1":
			err = c.sign(name, "hex", value)
		}
		if err != nil {
			return c, err
		}
	}
	if !c.timed {
		return c, malformed("The header %s has no time.", name)
	}
	return c, c.signed(name)
}

// signed checks that a header that may have signatures of several versions has one of v1.
func (c *claim) signed(name string) error {
	if len(c.signatures) == 0 {
		return malformed("The header %s has no signature of version v1.", name)
	}
	return nil
}

func readGitHub(_ Scheme, h headers) (claim, error) {
	return readHMAC(Scheme{Header: "X-Hub-Signature-256", Encoding: "hex", Prefix: "sha256="}, h)
}

func readHMAC(s Scheme, h headers) (c claim, err error) {
	if s.TimestampHeader != "" {
		at, err := h.one(s.TimestampHeader)
		if err != nil {
			return c, err
		}
		if err := c.at(s.TimestampHeader, at); err != nil {
			return c, err
		}
	}
	text, err := h.one(s.Header)
	if err != nil {
		return c, err
	}
	text, found := strings.CutPrefix(text, s.Prefix)
	if !found {
		return c, malformed("The header %s does not begin with %q.", s.Header, s.Prefix)
	}
	return c, c.sign(s.Header, s.Encoding, text)
}

const maxName = 64 // characters of a header's name, and of a prefix

// token is what the name of a header may be (RFC 9110, section 5.6.2).
var token = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")
