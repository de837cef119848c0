package workflow

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"agentd/server/canonical"
	"agentd/server/fault"
	"agentd/server/message"
)

// State is what the channels of a thread hold, as JSON. It never changes: each superstep makes another one.
type State struct{ values map[string]json.RawMessage }

// JSON returns the value of a channel; nil when it has none.
func (s State) JSON(key string) json.RawMessage { return slices.Clone(s.values[key]) }

// Decode stores the value of a channel in what into points to. A channel without a value is null.
func (s State) Decode(key string, into any) error {
	raw := s.values[key]
	if raw == nil {
		raw = jsonNull
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("channel %q: %w", key, err)
	}
	return nil
}

// Text returns the value of a channel that is a text, else "".
func (s State) Text(key string) string { return scalar[string](s, key) }

// Number returns the value of a channel that is a number, else 0.
func (s State) Number(key string) float64 { return scalar[float64](s, key) }

// Bool returns the value of a channel that is true or false, else false.
func (s State) Bool(key string) bool { return scalar[bool](s, key) }

// MarshalJSON writes the state as an object.
func (s State) MarshalJSON() ([]byte, error) { return json.Marshal(s.values) }

// scalar is the zero value for a value of another type.
func scalar[T string | float64 | bool](s State, key string) (v T) {
	_ = s.Decode(key, &v)
	return v
}

var jsonNull = json.RawMessage("null")

// maxDepth is how deep lists and objects of a value may lie inside each other.
const maxDepth = 200

// plain encodes a value that becomes part of a state. place says where it stands: a channel, or <node:x> and the like. What
// is not plain JSON is refused: NaN, infinities, functions, Go channels, cycles.
func plain(place string, v any) (_ json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil { // of a method of the value
			err = unserializable(place, fmt.Errorf("%v", p))
		}
	}()
	raw, err := message.Encode(v)
	if err == nil && canonical.Deeper(raw, maxDepth) >= 0 {
		err = fmt.Errorf("it is nested deeper than %d", maxDepth)
	}
	if err != nil {
		return nil, unserializable(place, err)
	}
	return raw, nil
}

func unserializable(place string, err error) error {
	var typ *json.UnsupportedTypeError
	var val *json.UnsupportedValueError
	reason := "it cannot be encoded"
	switch {
	case errors.As(err, &typ):
		reason = fmt.Sprintf("it holds a value of the type %v", typ.Type)
	case errors.As(err, &val):
		reason = val.Str
	}
	return fault.New(fault.StateNotSerializable, "The value of %s is not plain JSON: %s.", place, reason).Because(err)
}
