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
	"agentd/server/runstate"
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
		fuzztest.Cost{PerByte: 32}.Check(t, len(text)+len(name)+len(args), func() { p.Match(name, json.RawMessage(args)) })
		if strings.ToValidUTF8(text+" "+name+" "+args, "") != text+" "+name+" "+args {
			return // a regular expression looks at characters
		}
		want := globRegexp(p.Tool).MatchString(name)
		if want && p.Arg != "" {
			var given map[string]any
			if json.Unmarshal([]byte(args), &given) != nil {
				var raw map[string]json.RawMessage
				if json.Unmarshal([]byte(args), &raw) == nil {
					return // a number that no float64 holds
				}
			}
			v, there := given[p.Arg]
			s, isText := v.(string)
			if there && !isText {
				var raw map[string]json.RawMessage
				json.Unmarshal([]byte(args), &raw) //nolint:errcheck // it is an object
				s = string(raw[p.Arg])
			}
			want = there && globRegexp(p.Glob).MatchString(s)
		}
		if got := p.Match(name, json.RawMessage(args)); got != want {
			t.Errorf("%+v.Match(%q, %s) = %v, want %v", p, name, args, got, want)
		}
	})
}

func TestPatternCost(t *testing.T) {
	p, err := agent.ParsePattern("x:a=" + strings.Repeat("*a", 2000) + "b")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range fuzztest.JSON() {
		args := []byte(`{"a":` + string(text) + `}`)
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
		var made agent.Imported
		_, err = r.engine.Import(t.Context(), st, agent.ImportOptions{Also: func(_ *store.Tx, m agent.Imported) error {
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
