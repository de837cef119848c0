package trace

import (
	"encoding/json"
	"slices"

	"agentd/server/message"
	"agentd/server/span"
)

// A Reason says why a span is skipped.
type Reason string

const (
	ReasonSensitivity Reason = "sensitivity"         // it has an attribute with a tag other than public
	ReasonRedaction   Reason = "redaction-violation" // a part that would be shown looks like a secret
)

// Sanitize returns what everybody may see of a span: the public attributes. It leaves out attributes without a tag and the
// status message, which count as internal. It skips a span that has an attribute with another tag.
//
// It also skips a span that holds a secret in what is left; see [HoldsSecret]. Whoever called that public was wrong, so
// nothing else of the span is trusted; and its id shows a reader that there is something to clean up, which a value that
// is silently taken out would hide.
func Sanitize(s *span.Span) (SpanRecord, Reason) {
	out := recordOf(s)
	out.StatusMessage, out.Attributes, out.Sensitivity = "", map[string]any{}, nil
	for name, value := range s.Attributes {
		switch tag, tagged := s.Sensitivity[name]; {
		case tag == "public":
			out.Attributes[name] = value
			if out.Sensitivity == nil {
				out.Sensitivity = map[string]string{}
			}
			out.Sensitivity[name] = tag
		case tagged:
			return SpanRecord{}, ReasonSensitivity
		}
	}
	if HoldsSecret(out.Name) || holdsSecret(out.Attributes) {
		return SpanRecord{}, ReasonRedaction
	}
	return out, ""
}

// holdsSecret is HoldsSecret for a JSON value, the names of its members included.
func holdsSecret(v any) bool {
	switch v := v.(type) {
	case nil, bool, int, int64, float64, json.Number:
		return false
	case string:
		return HoldsSecret(v)
	case []any:
		return slices.ContainsFunc(v, holdsSecret)
	case map[string]any:
		for name, item := range v {
			if HoldsSecret(name) || holdsSecret(item) {
				return true
			}
		}
		return false
	}
	b, err := message.Encode(v) // a type of the program's own: it is shown as this text
	return err != nil || HoldsSecret(string(b))
}
