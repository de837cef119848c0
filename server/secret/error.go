package secret

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentd/server/fault"
)

// A Kind says what is wrong with a reference, or why a store or a reference gives nothing. It is stable.
type Kind string

// Kinds of texts that are no references.
const (
	EmptyInput             Kind = "empty-input"
	NakedString            Kind = "naked-string" // no scheme: perhaps the secret itself
	MalformedURI           Kind = "malformed-uri"
	InvalidScheme          Kind = "invalid-scheme"
	UnknownScheme          Kind = "unknown-scheme"
	MissingAuthority       Kind = "missing-authority"
	UnexpectedAuthority    Kind = "unexpected-authority"
	EmptyPath              Kind = "empty-path"
	InvalidPercentEncoding Kind = "invalid-percent-encoding"
)

// Kinds of references without a value, and of stores that refuse.
const (
	ResolutionFailed  Kind = "resolution-failed"
	LiteralForbidden  Kind = "literal-secrets-forbidden"
	AccessDenied      Kind = "secret-access-denied"
	StrictUnavailable Kind = "strict-secrets-unavailable"
	MissingPeer       Kind = "missing-peer-dependency"
)

// An Error tells of a reference or a store. errors.As and fault.Of also find it as a *fault.Error: the kinds of texts that
// are no references are secret-ref-invalid there, with the kind as the member kind, the others have a row of their own.
type Error struct {
	Kind    Kind
	Message string // a clause without a full stop; it holds no secret
	Hint    string // a sentence; may be empty
}

func (e *Error) Error() string { return e.Message }

// As lets errors.As find e as a *fault.Error.
func (e *Error) As(target any) bool {
	f, ok := target.(**fault.Error)
	if !ok {
		return false
	}
	first, size := utf8.DecodeRuneInString(e.Message)
	message := strings.TrimSuffix(string(unicode.ToUpper(first))+e.Message[size:], ".") + "."
	if kind := fault.ByCode(string(e.Kind)); kind != nil {
		*f = fault.New(kind, "%s", message)
	} else {
		*f = fault.New(fault.SecretRefInvalid, "%s", message).With("kind", string(e.Kind))
	}
	(*f).Advise(e.Hint)
	return true
}

func unresolved(message string) *Error { return &Error{Kind: ResolutionFailed, Message: message} }

// Unresolvable is the error of a start whose configuration has a reference without a value: at the dotted path, with the
// reference as people may see it.
func Unresolvable(path, shown string, err error) *fault.Error {
	f := fault.New(fault.SecretUnresolvable, "%s (%s): %v.", path, shown, err).With("path", path)
	if e, ok := errors.AsType[*Error](err); ok {
		f.Advise(e.Hint)
	}
	return f
}
