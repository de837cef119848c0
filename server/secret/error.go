package secret

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentd/server/fault"
)

// failed is a fault with a clause as its message, which it makes a sentence.
func failed(kind *fault.Kind, clause string, args ...any) *fault.Error {
	text := fmt.Sprintf(clause, args...)
	first, size := utf8.DecodeRuneInString(text)
	return fault.New(kind, "%c%s.", unicode.ToUpper(first), text[size:])
}

// Clause is the message of an error of this package as a part of a sentence.
func Clause(err error) string {
	text := strings.TrimSuffix(fault.Of(err).Message, ".")
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToLower(first)) + text[size:]
}

// invalid is the error of a text that is not a valid reference; form is the value of its member kind, which is stable.
func invalid(form, clause string, args ...any) error {
	return failed(fault.SecretRefInvalid, clause, args...).With("kind", form)
}

// failure makes an error that is a clause a resolution-failed; it keeps faults and nil.
func failure(err error) error {
	if _, classified := errors.AsType[*fault.Error](err); err == nil || classified {
		return err
	}
	return failed(fault.ResolutionFailed, "%v", err)
}

// Unresolvable is the error of a start whose configuration has a reference without a value: at the dotted path, with the
// reference as people may see it.
func Unresolvable(path, shown string, err error) *fault.Error {
	return fault.New(fault.SecretUnresolvable, "%s (%s): %s.", path, shown, Clause(err)).With("path", path).Advise(fault.Of(err).Hint)
}
