package rest

import (
	"context"
	"net/http"

	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/store"
)

// The stage that makes a request with an Idempotency-Key happen once. It comes after the scope, so that an answer is
// repeated only to a caller who may still ask for it, and after the input has been checked, so that an invalid request takes
// no key.
//
// How a key is tied to its effect is the endpoint's part, by what it does with its Call:
//
//	it starts or resumes a run   Keep, bound, in the transaction of the run; Again answers with the run's outcome
//	it makes or deletes          Keep, in the same transaction
//	it can be made again         nothing: the stage saves a 2xx answer after it

// Keep writes, in the transaction of the request's effect, the answer for its key and its entries in the audit chain. With a
// status in the answer, the request is answered with that once the transaction is durable.
func (c Call) Keep(tx *store.Tx, answer store.KeyRecord, out any) error {
	if err := c.Key.Keep(tx, answer, out); err != nil {
		return err
	}
	return c.Request.Commit(tx, answer.Status)
}

// takesKey reports whether a row honours Idempotency-Key.
func (a *API) takesKey(rt Route) bool {
	return a.Keys != nil && rt.Effects() && !rt.Secret && rt.Access != Signed
}

// readKey is the key of a request for a row, empty when there is none.
func (a *API) readKey(w http.ResponseWriter, r *http.Request, rt Route) (string, error) {
	if !a.takesKey(rt) {
		return "", nil
	}
	key, missing, err := a.Keys.Read(r.Header.Values("Idempotency-Key"))
	if missing {
		w.Header().Set("Idempotency-Status", "header-missing")
	}
	return key, err
}

// keyed answers a request with a key.
func (a *API) keyed(w http.ResponseWriter, r *http.Request, rt Route, c Call, key string, body []byte, input any) error {
	target := r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	var first *store.KeyRecord
	var err error
	c.Key, first, err = a.Keys.Claim(r.Context(), store.KeyRecord{Key: key, Principal: c.Principal.Lineage(), Target: r.Method + " " + target,
		Fingerprint: gate.Fingerprint(r.Method, target, body)})
	switch {
	case err != nil:
		return err
	case first != nil:
		return a.again(w, r, rt, c, first)
	}
	defer c.Key.Done()
	if rt.Again != nil && rt.Endpoint.out == nil { // it writes while its run continues, and has bound the key
		return rt.Endpoint.answer(w, r, c, input)
	}
	c.Key.Hold(w)
	if err := rt.Endpoint.answer(w, r, c, input); err != nil {
		return err
	}
	// It happened, whether or not the client still listens.
	c.Key.SaveHeld(context.WithoutCancel(r.Context()), w, store.KeyRecord{Run: r.PathValue("runId"), Session: rt.session(r)})
	return nil
}

// again gives an answer again.
func (a *API) again(w http.ResponseWriter, r *http.Request, rt Route, c Call, first *store.KeyRecord) error {
	const replayed = "Idempotency-Replayed"
	w.Header().Set(replayed, "true")
	if first.Run == "" {
		return gate.Replay(w, first)
	}
	a.concerns(r.Context(), c, first.Run, "")
	if rt.Again == nil {
		return gate.Replay(w, first)
	}
	err := rt.Again(w, r, c, first)
	if err != nil && !fault.Is(err, fault.RunAborted) && !fault.Is(err, fault.RunFailed) {
		w.Header().Del(replayed)
	}
	return err
}
