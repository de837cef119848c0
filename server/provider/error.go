package provider

import (
	"errors"
	"time"

	"agentd/server/fault"
)

// An ErrorKind says why a call failed. Its text is the code of the [fault.Kind] of the same name.
type ErrorKind string

const (
	RateLimit      ErrorKind = "rate-limit"
	Capacity       ErrorKind = "capacity"
	ContextLength  ErrorKind = "context-length"
	Transient      ErrorKind = "transient"
	InvalidRequest ErrorKind = "invalid-request"
	Unauthorized   ErrorKind = "unauthorized"
	ContentFilter  ErrorKind = "content-filter"
	OutboundDenied ErrorKind = "outbound-denied" // the server was not even dialled
	Unknown        ErrorKind = "unknown"
)

// passing reports whether the same request can succeed a little later.
func (k ErrorKind) passing() bool { return k == RateLimit || k == Capacity || k == Transient }

// An Error is a call of a model that failed. errors.As and fault.Of also find it as a *fault.Error.
type Error struct {
	Kind       ErrorKind
	Message    string        // for people: no credentials, at most 300 characters of what the server wrote
	Status     int           // HTTP status of the answer, or the one that an error inside a stream names; 0 if none
	RetryAfter time.Duration // how long the server asked to wait, at most 24 hours; 0 if it did not
	Cause      error         // for the log only
}

// Error is for logs: it includes the cause.
func (e *Error) Error() string {
	s := string(e.Kind) + ": " + e.Message
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap gives errors.Is and errors.As the cause.
func (e *Error) Unwrap() error { return e.Cause }

// As lets errors.As find e as a *fault.Error.
func (e *Error) As(target any) bool {
	f, ok := target.(**fault.Error)
	if ok {
		*f = e.Fault()
	}
	return ok
}

// Fault is e in the vocabulary of the rest of the program.
func (e *Error) Fault() *fault.Error {
	kind := fault.ByCode(string(e.Kind))
	if kind == nil {
		kind = fault.Unknown
	}
	f := fault.New(kind, "%s", e.Message).After(e.RetryAfter).Because(e.Cause)
	if cause, ok := errors.AsType[*fault.Error](e.Cause); ok && cause.Kind == kind {
		f.Advise(cause.Hint)
	}
	return f
}
