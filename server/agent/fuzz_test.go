package agent_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"agentd/server/agent"
	"agentd/server/fuzztest"
	"agentd/server/message"
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
