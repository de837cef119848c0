package canonical

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// AppendValue adds the canonical form of a Go value, as [json.Marshal] encodes it. What audit entries are made of is
// written without that detour: texts, integers, booleans, and maps of those. Bytes of a text that are not UTF-8 become U+FFFD.
func (r Rules) AppendValue(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case string:
		return AppendText(dst, strings.ToValidUTF8(v, "\uFFFD")), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case int:
		return r.AppendValue(dst, int64(v))
	case int64:
		if v >= -maxExact && v <= maxExact {
			return strconv.AppendInt(dst, v, 10), nil
		}
	case json.RawMessage:
		return r.Append(dst, v)
	case map[string]any:
		return r.appendMap(dst, v)
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return r.Append(dst, text)
}

func (r Rules) appendMap(dst []byte, members map[string]any) (_ []byte, err error) {
	if r.Depth--; r.Depth < 0 {
		return nil, errors.New("it is nested too deep")
	}
	dst = append(dst, '{')
	for i, name := range slices.SortedFunc(maps.Keys(members), Compare) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendText(dst, strings.ToValidUTF8(name, "\uFFFD")), ':')
		if dst, err = r.AppendValue(dst, members[name]); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}
