package event

import (
	"encoding/json"
	"strings"

	"agentd/server/message"
)

// schemaKinds are the JSON Schemas of the kinds that a row of the catalogue may name.
var schemaKinds = map[string]string{
	"": `{"type":"string"}`, "int": `{"type":"integer"}`, "number": `{"type":"number"}`, "bool": `{"type":"boolean"}`,
	"object": `{"type":"object"}`, "any": `{}`,
}

// OpenAPISchema is the union of the payloads in the catalogue, told apart by their type.
func (Event) OpenAPISchema() json.RawMessage {
	var union []any
	for _, t := range catalogue {
		properties := map[string]any{"type": map[string]string{"const": t.Name}}
		required := []string{"type"}
		for part := range strings.SplitSeq(t.Fields, ", ") {
			name, kind, _ := strings.Cut(part, ":")
			name, optional := strings.CutSuffix(name, "?")
			if !optional {
				required = append(required, name)
			}
			schema, ok := schemaKinds[kind]
			if !ok {
				schema = `{"$ref":"#/components/schemas/` + kind + `"}`
			}
			properties[name] = json.RawMessage(schema)
		}
		union = append(union, map[string]any{"title": t.Name, "description": t.When, "type": "object", "required": required, "properties": properties})
	}
	b, err := message.Encode(map[string]any{"oneOf": union,
		"description": "What happened in a run. Agents may publish events of other types; clients ignore those that they do not know."})
	if err != nil {
		panic(err) // the catalogue is ours
	}
	return b
}
