package gate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentd/auth"
	"agentd/server/fault"
	"agentd/server/message"
)

// Fail renders an error as the JSON answer {error, message, hint, issues, ...}. An unclassified error is logged with
// the request id, and the answer says internal, without its cause. If the answer has begun, Fail cuts it off instead, so that the
// client does not take it for whole.
func (g *Gate) Fail(w http.ResponseWriter, r *http.Request, err error) {
	challenge := true
	if rec, ok := w.(*recorder); ok {
		if rec.row != nil && rec.row.Signed {
			challenge = false
		}
		if rec.status != 0 && rec.room == 0 {
			if r.Context().Err() == nil {
				g.opts.Logger.Warn("answer cut off", "request", rec.q.ID, "path", r.URL.Path, "error", err)
			}
			panic(http.ErrAbortHandler)
		}
		if rec.status != 0 {
			rec.discard()
		}
		if fault.Is(err, fault.ScopeDenied) {
			rec.scope = err
		}
	}
	if r.Context().Err() != nil && errors.Is(err, context.Cause(r.Context())) {
		w.WriteHeader(499) // the client has left; nobody reads this but the metrics
		return
	}
	f := fault.Of(err)
	status := f.Kind.Status
	if status == 0 { // a kind that answers no request has no business here
		f = fault.New(fault.Internal, "The server could not complete the request.").Because(err)
		status = f.Kind.Status
	}
	msg := f.Message
	if f.Kind == fault.Internal {
		msg = fmt.Sprintf("The server could not complete request %s.", Of(r).ID)
	}
	if f.Kind == fault.ConfigInvalid && !strings.HasPrefix(msg, "The request") { // its code names the configuration, too
		msg = "The request is not valid. " + msg
	}
	switch {
	case f.Kind == fault.ServerDraining: // nothing is wrong
		g.opts.Logger.Info("request refused", "request", Of(r).ID, "path", r.URL.Path, "error", f.Kind.Code)
	case status >= 500 && f.Kind != fault.RunFailed:
		g.opts.Logger.Error("request failed", "request", Of(r).ID, "path", r.URL.Path, "error", f)
	}
	body := map[string]any{"error": f.Kind.Code, "message": msg}
	maps.Copy(body, f.Extra)
	if hint := f.NextStep(); hint != "" {
		body["hint"] = hint
	}
	if f.Issues != nil {
		issues := slices.Clone(f.Issues)
		for i := range issues {
			if issues[i].Path == nil { // the whole input; clients want a list all the same
				issues[i].Path = []any{}
			}
		}
		body["issues"] = issues
	}
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((f.RetryAfter+999_999_999)/1_000_000_000), 10))
	}
	if status == http.StatusUnauthorized && challenge {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	JSON(w, status, body)
}

// A client may take answerTimeout to read a piece of an answer. Without this limit, one that stops reading would keep the
// answer in memory. It is longer than bodyTimeout, because net/http reads the rest of the body before it sends an answer.
const (
	answerPiece   = 64 << 10
	answerTimeout = bodyTimeout + 10*time.Second
)

// JSON writes a value as the whole answer. It is encoded before the first header is written.
func JSON(w http.ResponseWriter, status int, v any) {
	b, err := message.Encode(v)
	if err != nil {
		panic(fmt.Sprintf("gate: answer does not encode: %v", err))
	}
	w.Header().Set("Content-Type", "application/json")
	Write(w, status, append(b, '\n'))
}

// Write writes a whole answer whose other headers are set.
func Write(w http.ResponseWriter, status int, body []byte) {
	if status != http.StatusNoContent {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	w.Write(body) //nolint:errcheck // the client has left
}

// Covered is the scope stage: an error unless the principal's grant covers what is required.
func Covered(p auth.Principal, required auth.Scope) error {
	if p.Kind == auth.KindAnonymous || p.Grant.Covers(required) {
		return nil
	}
	return fault.New(fault.ScopeDenied, "The request requires the scope %s.", required).With("required", required.String())
}
