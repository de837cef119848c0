package event

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
)

// maxNested is how many events an event of a child may be inside another.
const maxNested = 16

// CheckBytes reports binary values of an event that are in no envelope: bare base64 text, or the numbers that an encoder
// makes of bytes. Clients could not tell them from text. An envelope is {"enc":"base64","data":...} or
// {"enc":"url","href":...}. Each of at most 16 levels of events inside others is read anew and needs at most a hundred bytes
// of memory for each byte.
func CheckBytes(e Event) error { return checkBytes(e.Type, e.Payload, 0) }

func checkBytes(typ string, payload json.RawMessage, depth int) error {
	switch typ {
	case FileGenerated:
		var file struct {
			Data json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal(payload, &file); err != nil {
			return err
		}
		return envelope(typ+".data", file.Data)
	case ToolPartial:
		var partial struct {
			Chunk struct {
				Kind string          `json:"kind"`
				Data json.RawMessage `json:"data"`
			} `json:"chunk"`
		}
		if err := json.Unmarshal(payload, &partial); err != nil {
			return err
		}
		if partial.Chunk.Kind != "image" {
			return nil
		}
		return envelope(typ+".chunk.data", partial.Chunk.Data)
	case SubagentEvent:
		if depth == maxNested {
			return fmt.Errorf("events are nested more than %d deep", maxNested)
		}
		var child struct {
			Event json.RawMessage `json:"event"`
		}
		if err := json.Unmarshal(payload, &child); err != nil {
			return err
		}
		inner, err := Parse(child.Event)
		if err != nil {
			return fmt.Errorf("%s.event: %w", typ, err)
		}
		return checkBytes(inner.Type, inner.Payload, depth+1)
	}
	return nil
}

func envelope(place string, data json.RawMessage) error {
	var b struct {
		Enc  string  `json:"enc"`
		Data *string `json:"data"`
		Href string  `json:"href"`
	}
	if len(data) > 0 && data[0] == '{' && json.Unmarshal(data, &b) == nil {
		switch {
		case b.Enc == "url" && b.Href != "":
			return nil
		case b.Enc == "base64" && b.Data != nil:
			if _, err := base64.StdEncoding.DecodeString(*b.Data); err == nil {
				return nil
			}
			return fmt.Errorf("%s is not padded base64 of the standard alphabet", place)
		}
	}
	return fmt.Errorf(`%s is not {"enc": "base64", "data": ...} or {"enc": "url", "href": ...}`, place)
}
