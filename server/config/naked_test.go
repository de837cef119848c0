package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/shape"
)

// at makes a configuration with a value at a path as [config.Fields] writes it.
func at(f shape.Row, value any) map[string]any {
	var v any = value
	if strings.HasPrefix(f.Type, "map of") {
		v = map[string]any{"X": map[string]any{"ref": value}}
	}
	parts := strings.Split(f.Path, ".")
	for i := len(parts) - 1; i >= 0; i-- {
		switch parts[i] {
		case "<id>":
			if m, ok := v.(map[string]any); ok && len(f.Kinds) > 0 {
				m["kind"] = f.Kinds[0]
			}
			v = map[string]any{"x": v}
		case "<n>":
			v = []any{v}
		default:
			v = map[string]any{parts[i]: v}
		}
	}
	return v.(map[string]any)
}

// A secret that stands where a reference to it should is in no error, nor is its length.
func TestNakedSecretsAreNotShown(t *testing.T) {
	tail := strings.Repeat("ζ9", 20)
	fields := 0
	for _, f := range config.Fields() {
		if !strings.HasSuffix(f.Type, "reference") {
			continue
		}
		fields++
		for _, secret := range []string{"ψ" + tail, "ψξ-" + tail, "ψ:" + tail, "ψξ", "x" + tail + "://ψ", "env:ψ" + tail, "literal:a?ψ" + tail, "vault://ψ:ψ@" + tail,
			"encrypted-file:/p?key=ψ" + tail, "file:a%ψ" + tail, "env:A?ψ=" + tail} {
			text, err := json.Marshal(at(f, secret))
			if err != nil {
				t.Fatal(err)
			}
			_, err = config.Parse(text, config.Options{Dir: t.TempDir()})
			e, ok := errors.AsType[*fault.Error](err)
			if !ok || len(e.Issues) == 0 {
				t.Errorf("Parse(%s) = %v, want problems", text, err)
				continue
			}
			if said := fmt.Sprint(err, e.Message, e.Hint, e.Issues, e.Extra); strings.ContainsAny(said, "ψξζ") || strings.Contains(said, fmt.Sprint(len([]rune(secret)))+" char") {
				t.Errorf("Parse(%s) shows the secret:\n%s", text, said)
			}
			if strings.Contains(f.Path, "<") {
				continue
			}
			_, err = config.Parse([]byte("{}"), config.Options{Dir: t.TempDir(), Env: []string{variable(f.Path) + "=" + secret}})
			if said := fmt.Sprint(err); err == nil || strings.ContainsAny(said, "ψξζ") {
				t.Errorf("%s=%s: %s, want a problem without it", variable(f.Path), secret, said)
			}
		}
	}
	if fields < 9 {
		t.Errorf("%d fields take a reference, want all of them", fields)
	}
}
