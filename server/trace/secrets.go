package trace

import (
	"regexp"
	"slices"
)

// secrets are the forms of secrets that are known by sight. The expressions run in time linear in the text. Each asks for
// as much as a secret of its kind always has, so that words about secrets are none.
var secrets = []*regexp.Regexp{
	// <prefix>_<env>_v1_<secret>, as package auth mints them, also when cut off. Any prefix: it can be configured.
	regexp.MustCompile(`[a-z0-9]_[a-z0-9-]{1,16}_v1_[0-9A-Za-z]{32}`),
	// RFC 6750, section 2.1. Shorter words are prose, such as "bearer authentication".
	regexp.MustCompile(`(?i)(?:^|[^0-9a-z])bearer[ \t]+[0-9a-z._~+/-]{20}`),
	// Keys of model providers and payment services: sk-..., sk-proj-..., sk-ant-api03-..., sk_live_...
	regexp.MustCompile(`(?:^|[^0-9A-Za-z])sk[-_](?:(?:proj|svcacct|admin|ant|or|live|test)[-_][0-9A-Za-z_-]{16}|[0-9A-Za-z]{24})`),
	// Of users and of sessions.
	regexp.MustCompile(`(?:^|[^0-9A-Za-z])(?:AKIA|ASIA)[0-9A-Z]{16}(?:$|[^0-9A-Za-z])`),
	// RFC 7468, sections 10 and 11, and the older forms of OpenSSL, OpenSSH and OpenPGP.
	regexp.MustCompile(`-----BEGIN (?:[0-9A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----`),
	// RFC 7519: three parts in base64url, of which the first is a JSON object and so begins with {".
	regexp.MustCompile(`(?:^|[^0-9A-Za-z])eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8}`),
}

// HoldsSecret reports whether something in a text has the form of a secret: a token of this program, a bearer header, an
// sk- key, an AWS access key id, a private key in PEM or a JWT.
func HoldsSecret(text string) bool {
	return slices.ContainsFunc(secrets, func(form *regexp.Regexp) bool { return form.MatchString(text) })
}
