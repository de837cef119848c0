package agent_test

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/message"
	"agentd/server/runstate"
	"agentd/server/takeover"
	"agentd/store"
)

// globRegexp is a glob as a regular expression.
func globRegexp(glob string) *regexp.Regexp {
	parts := strings.Split(glob, "*")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`)
}

// FuzzPattern reads patterns of permissions, and holds what they match to regular expressions.
func FuzzPattern(f *testing.F) {
	f.Add("shell:command=rm *", "shell", `{"command":"rm -rf /"}`)
	f.Add("*:path=/etc/*/x*", "read_*", `{"path":"/etc/a/b/xy","Path":1}`)
	f.Add("a*b*:n=1*", "a--b", `{"n":1e3}`)
	f.Add("x:=y", "x", `{"":"y"}`)
	f.Add("x:a=", "x", `{"a":""}`)
	f.Add("*a*a*a*a*a*b", strings.Repeat("a", 60), `null`)
	f.Fuzz(func(t *testing.T, text, name, args string) {
		p, err := agent.ParsePattern(text)
		if err != nil {
			if strings.Contains(err.Error(), text) && len(text) > 40 {
				t.Errorf("ParsePattern(%q) = %v", text, err)
			}
			return
		}
		again := p.Tool
		if p.Arg != "" {
			again += ":" + p.Arg + "=" + p.Glob
		}
		if again != text || p.Tool == "" {
			t.Errorf("ParsePattern(%q) = %+v", text, p)
		}
		canonical, err := message.Arguments(json.RawMessage(args))
		if err != nil {
			return // the call is refused
		}
		fuzztest.Cost{PerByte: 32}.Check(t, len(text)+len(name)+len(args), func() { p.Match(name, canonical) })
		if strings.ToValidUTF8(text+" "+name+" "+args, "") != text+" "+name+" "+args {
			return // a regular expression looks at characters
		}
		values, exact := []any{}, false
		if p.Arg != "" {
			var given map[string]any
			json.Unmarshal(canonical, &given) //nolint:errcheck // of what is no object, nothing matches
			for member, v := range given {
				if strings.EqualFold(member, p.Arg) {
					values, exact = append(values, v), exact || member == p.Arg
				}
			}
		}
		matches := func(v any) bool {
			s, isText := v.(string)
			if !isText {
				b, _ := message.Encode(v)
				b, _ = message.Arguments(b)
				s = string(b)
			}
			return globRegexp(p.Glob).MatchString(s)
		}
		named := globRegexp(p.Tool).MatchString(name)
		some, all := p.Arg == "", p.Arg == "" || exact
		for _, v := range values {
			some = some || matches(v)
			for _, leaf := range leaves(v) {
				some, all = some || matches(leaf), all && matches(leaf)
			}
		}
		if got := p.Match(name, canonical); got != (named && some) {
			t.Errorf("%+v.Match(%q, %s) = %v", p, name, canonical, got)
		}
		if got := p.Covers(name, canonical); got != (named && all) {
			t.Errorf("%+v.Covers(%q, %s) = %v", p, name, canonical, got)
		}
	})
}

// leaves is what lists hold; any other value, and a list that holds nothing, is its own only leaf.
func leaves(v any) (out []any) {
	var walk func(any)
	walk = func(v any) {
		if list, ok := v.([]any); ok {
			for _, e := range list {
				walk(e)
			}
			return
		}
		out = append(out, v)
	}
	walk(v)
	if out == nil {
		return []any{v}
	}
	return out
}

func TestPatternCost(t *testing.T) {
	p, err := agent.ParsePattern("x:a=" + strings.Repeat("*a", 2000) + "b")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range fuzztest.JSON() {
		args, err := message.Arguments([]byte(`{"a":` + string(text) + `}`))
		if err != nil {
			continue
		}
		fuzztest.Cost{PerByte: 32, Base: 256 << 10}.Check(t, len(args), func() { p.Match("x", args) })
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

// FuzzImport takes over whatever can be read as a run's state, up to the end of the transaction that would make it so.
func FuzzImport(f *testing.F) {
	for _, version := range []string{"1.0", "1.1", "1.2", "1.9-future"} {
		b, err := os.ReadFile("../runstate/testdata/run-state-" + version + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	register, _ := strangers(f)
	r := newRig(f, register)
	undo := errors.New("undo")
	f.Fuzz(func(t *testing.T, doc []byte) {
		st, err := runstate.Read(doc)
		if err != nil {
			return
		}
		id := st.ID
		var made takeover.Imported
		_, err = takeover.Import(t.Context(), r.engine, st, takeover.Options{Also: func(_ *store.Tx, m takeover.Imported) error {
			made = m
			return undo
		}})
		switch f := fault.Of(err); {
		case err == undo:
			if made.RunID != id || made.Status == "" || made.Children < 0 {
				t.Errorf("Import(%s) = %+v", doc, made)
			}
		case f == nil || f.Kind != fault.RunStateUnfit || len(f.Issues) == 0 || len(f.Issues) > 101:
			t.Errorf("Import(%s) = %v, want run-state-unfit with issues", doc, err)
		}
		if _, err := r.engine.Identify(t.Context(), id); !fault.Is(err, fault.RunNotFound) {
			t.Errorf("Import(%s) leaves a run: %v", doc, err)
		}
	})
}
