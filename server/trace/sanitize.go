package trace

import (
	"encoding/json"

	"agentd/server/message"
	"agentd/server/span"
)

// A Tier is how far something may be shown. The zero Tier is the strictest floor.
type Tier int

const (
	TierPublic Tier = iota
	TierInternal
	TierSecret
)

// tierOf is the tier of an attribute by its tag. A tag that nobody knows is taken for the highest.
func tierOf(tag string, tagged bool) Tier {
	switch {
	case !tagged || tag == "internal":
		return TierInternal
	case tag == "public":
		return TierPublic
	}
	return TierSecret
}

// A Reason says why a span is skipped.
type Reason string

const (
	ReasonSensitivity Reason = "sensitivity"         // it has an attribute that is tagged above the floor
	ReasonRedaction   Reason = "redaction-violation" // what would be shown of it looks like a secret
)

// Sanitize is the span for readers who may see what is at most at the floor. Of a span with an attribute that is tagged
// above the floor nothing is shown. Attributes without a tag and the status message count as internal.
//
// What is left is searched for secrets: see [HoldsSecret]. A span in which there is one is skipped as a whole. Whoever
// called that public was wrong, so nothing else that they say of the span is believed; and a reader learns from the
// span's id that there is something to clean up, which a value that is silently taken out would hide.
func Sanitize(s *span.Span, floor Tier) (SpanRecord, Reason) {
	out := recordOf(s)
	out.Attributes, out.Sensitivity = map[string]any{}, nil
	if floor < TierInternal {
		out.StatusMessage = ""
	}
	for name, value := range s.Attributes {
		tag, tagged := s.Sensitivity[name]
		switch tier := tierOf(tag, tagged); {
		case tier <= floor:
			out.Attributes[name] = value
			if tagged {
				if out.Sensitivity == nil {
					out.Sensitivity = map[string]string{}
				}
				out.Sensitivity[name] = tag
			}
		case tagged:
			return SpanRecord{}, ReasonSensitivity
		}
	}
	if HoldsSecret(out.Name) || HoldsSecret(out.StatusMessage) || holdsSecret(out.Attributes) {
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
		for _, item := range v {
			if holdsSecret(item) {
				return true
			}
		}
		return false
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
