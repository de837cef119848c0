package auth

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"sync"
	"time"

	"agentd/server/fault"
)

const (
	ticketTTL   = 5 * time.Minute
	ticketBytes = 24
	maxTickets  = 1000
	maxRevoked  = 1000
)

// Tickets are the single-use credentials with which browsers open a WebSocket or an event stream, for they cannot send a token
// there. They are kept in memory only, at most 1000. A Tickets is safe for concurrent use.
type Tickets struct {
	ttl time.Duration

	mu     sync.Mutex // guards the rest
	byHash map[digest]ticket
	issued uint64 // how many, ever
	// revoked are the tokens that were revoked last: a request whose token was verified just before its revocation may
	// ask for a ticket just after it.
	revoked []string
}

// A ticket can still be used: Take removes it, so that none is kept that was used.
type ticket struct {
	principal Principal
	until     time.Time // by the monotonic clock; its token expires by the wall clock
	n         uint64    // the lowest is the oldest
}

func (t ticket) expired(now time.Time) bool {
	return expired(t.until, now) || expired(t.principal.Expires, now)
}

// NewTickets returns a Tickets whose tickets are valid for ttl; 0 is five minutes.
func NewTickets(ttl time.Duration) *Tickets {
	return &Tickets{ttl: cmp.Or(ttl, ticketTTL), byHash: map[digest]ticket{}}
}

// TTL is how long a ticket is valid.
func (t *Tickets) TTL() time.Duration { return t.ttl }

// Issue makes a ticket that stands for p, and returns when it expires: after the time given to [NewTickets], but not past the
// expiry of p. The value is a secret of 32 characters, each of A-Z a-z 0-9 - and _. When there are too many tickets,
// those that have expired make room, or else the oldest. A ticket for a token that has just been revoked is never valid.
func (t *Tickets) Issue(p Principal) (value string, expires time.Time) {
	var secret [ticketBytes]byte
	rand.Read(secret[:]) // never fails: the process ends when the system has no randomness
	value = base64.RawURLEncoding.EncodeToString(secret[:])

	now := time.Now()
	until := now.Add(t.ttl)
	expires = until
	if !p.Expires.IsZero() && p.Expires.Before(expires) {
		expires = p.Expires
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.TokenID != "" && slices.Contains(t.revoked, p.TokenID) {
		return value, expires
	}
	if len(t.byHash) >= maxTickets {
		t.makeRoomLocked(now)
	}
	t.issued++
	t.byHash[sha256.Sum256([]byte(value))] = ticket{p, until, t.issued}
	return value, expires
}

// makeRoomLocked removes the tickets that have expired, or else the oldest.
func (t *Tickets) makeRoomLocked(now time.Time) {
	var oldest digest
	first := t.issued + 1
	for hash, tk := range t.byHash {
		if tk.expired(now) {
			delete(t.byHash, hash)
		} else if tk.n < first {
			oldest, first = hash, tk.n
		}
	}
	if len(t.byHash) >= maxTickets {
		delete(t.byHash, oldest)
	}
}

// Take uses a ticket up and returns whom it stands for. Of calls at the same time with one value, one succeeds. The
// error is auth-invalid, and the same whether a ticket was used, has expired or never was.
func (t *Tickets) Take(value string) (Principal, error) {
	hash := sha256.Sum256([]byte(value)) // the time of a look-up shows something of the hash, not of the value
	t.mu.Lock()
	tk, ok := t.byHash[hash]
	delete(t.byHash, hash)
	t.mu.Unlock()
	if !ok || tk.expired(time.Now()) {
		return Principal{}, fault.New(fault.AuthInvalid, "The ticket is unknown, used or expired.").
			Advise("Request another ticket with `POST /session/ws-ticket` for each connection.")
	}
	return tk.principal, nil
}

// Revoke makes all tickets of a token invalid. It suits [Verifier.OnRevoke].
func (t *Tickets) Revoke(tokenID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for hash, tk := range t.byHash {
		if tk.principal.TokenID == tokenID {
			delete(t.byHash, hash)
		}
	}
	if slices.Contains(t.revoked, tokenID) {
		return
	}
	if len(t.revoked) == maxRevoked {
		t.revoked = slices.Delete(t.revoked, 0, 1)
	}
	t.revoked = append(t.revoked, tokenID)
}
