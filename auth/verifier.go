package auth

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"agentd/server/fault"
	"agentd/server/tracecontext"
	"agentd/store"
)

const (
	maxInFlight = 100
	retryAfter  = time.Second // of overloaded

	ipThreshold = 5
	ipWindow    = time.Minute
	ipLockout   = 5 * time.Minute

	tokenThreshold = 10
	tokenWindow    = 5 * time.Minute
)

// Options are what a [Verifier] works with.
type Options struct {
	Tokens *store.Tokens
	Pepper []byte   // see CheckPepper
	Prefix string   // of this server's tokens
	Envs   []string // that its tokens may have; empty: any

	PerIPFailureThreshold int           // 0: 5
	PerIPLockout          time.Duration // 0: 5 minutes
	Logger                *slog.Logger  // nil: none
}

// A Verifier recognises tokens. It is safe for concurrent use.
//
// [Verifier.Verify] works without [Verifier.Run], which only makes it notice what other processes revoke and writes
// when tokens were last used.
type Verifier struct {
	tokens *store.Tokens
	prefix string
	envs   []string
	log    *slog.Logger

	inFlight     atomic.Int64
	hasher       *hasher
	cache        cache
	lockedIPs    *lockout[netip.Prefix]
	lockedTokens *lockout[string]

	mu       sync.Mutex // guards the two below
	used     map[string]int64
	onRevoke []func(id string)
}

// NewVerifier returns a Verifier. Errors are those of [CheckPepper], and config-invalid for a prefix or an environment
// that no token can have.
func NewVerifier(opts Options) (*Verifier, error) {
	if err := CheckPepper(opts.Pepper); err != nil {
		return nil, err
	}
	if err := checkNames(opts.Prefix, opts.Envs); err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Verifier{
		tokens: opts.Tokens,
		prefix: opts.Prefix,
		envs:   slices.Clone(opts.Envs),
		log:    opts.Logger,
		hasher: newHasher(opts.Pepper),
		lockedIPs: newLockout[netip.Prefix](
			cmp.Or(opts.PerIPFailureThreshold, ipThreshold), ipWindow, cmp.Or(opts.PerIPLockout, ipLockout)),
		lockedTokens: newLockout[string](tokenThreshold, tokenWindow, 0),
		used:         map[string]int64{},
	}, nil
}

// Verify returns the principal of a token that the client at ip sent. The zero ip is one that is not known: its
// failures are not counted, and those of a [Network] are counted together. Faults are those that the package's documentation lists; any other error is the store's.
//
// Five failures from one address, with no more than a minute between each two, lock it out for five minutes: until then its
// failures are auth-locked-out. A token that is good passes all the same: its secret cannot be guessed, so a lockout only
// bounds noise and cost, and must not let one client shut out others of its address. A revoked or expired token is itself locked out at its tenth failure, with no
// more than five minutes between each two, for as long as the process lives. Errors of the store count for nothing.
func (v *Verifier) Verify(ctx context.Context, ip netip.Addr, raw Raw) (Principal, error) {
	defer v.inFlight.Add(-1)
	if v.inFlight.Add(1) > maxInFlight {
		return Principal{}, fault.New(fault.Overloaded, "Too many tokens are being verified.").After(retryAfter)
	}
	var p Principal
	err := v.Attempt(ctx, ip, func() (err error) {
		p, err = v.verify(ctx, raw, time.Now())
		return err
	})
	return p, err
}

// Attempt makes an authentication of the client at ip, by other means than a token, count for the lockout of addresses as
// [Verifier.Verify] describes it. It returns the error of try, or auth-locked-out in its place.
func (v *Verifier) Attempt(ctx context.Context, ip netip.Addr, try func() error) error {
	client := Network(ip)
	left, locked := v.lockedIPs.check(client, time.Now())
	err := try()
	switch {
	case err == nil || !ip.IsValid() || !isFailure(err) && !fault.Is(err, fault.AuthLockedOut):
	case locked:
		return fault.New(fault.AuthLockedOut, "Too many failed authentications from this address.").After(left)
	case isFailure(err) && v.lockedIPs.fail(client):
		tracecontext.Log(ctx, v.log).Warn("address locked out", "ip", ip)
	}
	return err
}

// failures are the faults that count for the lockout of an address.
var failures = []*fault.Kind{fault.AuthInvalid, fault.AuthRevoked, fault.AuthExpired,
	fault.SignatureMissing, fault.SignatureMalformed, fault.SignatureOld, fault.SignatureEarly, fault.SignatureWrong}

func isFailure(err error) bool {
	return slices.ContainsFunc(failures, func(k *fault.Kind) bool { return fault.Is(err, k) })
}

func (v *Verifier) verify(ctx context.Context, raw Raw, now time.Time) (Principal, error) {
	if err := Parse(raw, v.prefix, v.envs); err != nil {
		return Principal{}, err
	}
	hash := v.hasher.sum(raw)
	p, epoch, ok := v.cache.get(hash, now)
	if ok {
		return p, nil
	}
	p, err := v.lookUp(ctx, hash)
	if err != nil {
		return Principal{}, err
	}
	v.cache.put(hash, p, now, epoch)
	v.noteUse(p.TokenID, now)
	return p, nil
}

func (v *Verifier) lookUp(ctx context.Context, hash digest) (Principal, error) {
	text := hex.EncodeToString(hash[:])
	t, err := v.tokens.ByHash(ctx, text)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Principal{}, fmt.Errorf("looking up a token: %w", err)
	}
	if err != nil || subtle.ConstantTimeCompare([]byte(t.Hash), []byte(text)) != 1 {
		return Principal{}, fault.New(fault.AuthInvalid, "The token is unknown.")
	}
	now := time.Now()
	if _, locked := v.lockedTokens.check(t.ID, now); locked {
		return Principal{}, fault.New(fault.AuthLockedOut, "Too many failed authentications with this token.").
			Advise(fault.AuthRevoked.Hint)
	}
	p := Principal{Kind: KindToken, TokenID: t.ID, Root: t.Root, Label: t.Label, Grant: parseGrant(t.Scopes)}
	if t.Expires != 0 {
		p.Expires = time.UnixMilli(t.Expires)
	}
	switch {
	case t.Revoked != 0:
		err = fault.New(fault.AuthRevoked, "The token was revoked.")
	case expired(p.Expires, now):
		err = fault.New(fault.AuthExpired, "The token expired.")
	default:
		return p, nil
	}
	if v.lockedTokens.fail(t.ID) {
		tracecontext.Log(ctx, v.log).Warn("token locked out", "token", t.ID)
	}
	return Principal{}, err
}
