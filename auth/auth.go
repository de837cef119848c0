// Package auth is who is calling and what their grant covers: tokens, scopes, lockout.
//
// An [Issuer] mints, lists and revokes tokens. A [Verifier] turns a token into a [Principal], whose [Grant] is asked
// before anything is done. Of a token only a keyed hash is stored. The stages of a verification, each with the fault
// that it answers:
//
//	in flight <= 100   overloaded
//	address not locked auth-locked-out, with the time to wait
//	parse              auth-invalid
//	hash, cache  ------------------------------------> principal
//	look up            auth-invalid
//	token not locked   auth-locked-out
//	not revoked        auth-revoked
//	not expired        auth-expired
//	remember in cache -------------------------------> principal
package auth

import "time"

// A Kind is how a principal was recognised. The zero Kind is nobody.
type Kind string

// The kinds of principal.
const (
	KindToken     Kind = "token"
	KindAnonymous Kind = "anonymous" // auth.kind=none
)

// A Principal is who is calling. The zero value is nobody, with a grant that covers nothing.
type Principal struct {
	Kind    Kind
	TokenID string    // empty unless Kind is KindToken
	Label   string    // of the token; may be empty
	Grant   Grant     // shared among the requests of a token: not to be changed
	Expires time.Time // zero: never
}

// Anonymous is the principal of every request when authentication is off. Its grant is admin:*.
func Anonymous() Principal {
	return Principal{Kind: KindAnonymous, Grant: Grant{{Resource: "admin", Action: wildcard}}}
}
