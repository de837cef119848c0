package auth_test

import (
	"slices"
	"strings"
	"testing"

	"agentd/auth"
	"agentd/server/fuzztest"
)

func scope(t testing.TB, text string) auth.Scope {
	t.Helper()
	s, err := auth.ParseScope(text)
	if err != nil {
		t.Fatalf("ParseScope(%q) = %v, want none", text, err)
	}
	return s
}

func grant(t testing.TB, texts ...string) (g auth.Grant) {
	t.Helper()
	for _, text := range texts {
		g = append(g, scope(t, text))
	}
	return g
}

func TestParseScope(t *testing.T) {
	long := strings.Repeat("a", 500)
	for _, text := range []string{
		"agents:read", "agents:*", "agents:read:clerk", "agents:read:*", "agents:*:*", "admin:*", "admin:*:x",
		"admin:metrics:read", "a:b", "a-9:b-9", long[:32] + ":read", "agents:" + long, "agents:read:" + long[:128],
		"agents:read:A.b_c-9", "agents:read:..", "agents:read:-",
	} {
		if got := scope(t, text).String(); got != text {
			t.Errorf("ParseScope(%q).String() = %q, want the same", text, got)
		}
	}
	for _, text := range []string{
		"", "agents", ":", "::", ":read", "agents:", "agents::x", "agents:read:", "agents:read:x:", "agents:read:x:y", "a:b:c:d:e",
		"*:read", "*", "*:*", "Agents:read", "agents:Read", "9a:read", "-a:read", "agents:9", "agents:-a", "agents:re*", "agents:**",
		"agents:read:a*", "agents:read:**", "agents:read:a b", "agents:read:é", "agents:read:a/b", " agents:read", "agents:read ", "agents:read\n",
		long[:33] + ":read", "agents:read:" + long[:129], "a_b:read", "agents:a_b", "agents:read:\x00", "agents:r\xff",
	} {
		if got, err := auth.ParseScope(text); err == nil || got != (auth.Scope{}) {
			t.Errorf("ParseScope(%q) = %v, %v, want an error and nothing", text, got, err)
		} else if len(err.Error()) > 300 {
			t.Errorf("ParseScope(%q): the error has %d bytes, want it short", text, len(err.Error()))
		}
	}
}

func TestCovers(t *testing.T) {
	for _, tc := range []struct {
		granted, required string
		want              bool
	}{
		{"admin:*", "agents:invoke:foo", true},
		{"admin:*", "admin:*", true},
		{"admin:*", "secrets:read", true},
		{"admin:*:anything", "agents:invoke:foo", true},
		{"admin:*:anything", "admin:*", true},
		{"admin:metrics:read", "admin:metrics:read", true},
		{"admin:metrics:read", "admin:*", false},
		{"admin:metrics", "admin:metrics:read", true},
		{"admin:metrics", "agents:read", false},

		{"agents:read", "sessions:read", false},
		{"agents:read", "agents:invoke", false},
		{"agents:*", "agents:invoke", true},
		{"agents:*", "agents:invoke:foo", true},
		{"agents:*", "agents:*", true},
		{"agents:read", "agents:*", false},

		{"agents:invoke", "agents:invoke", true},
		{"agents:invoke:*", "agents:invoke", true},
		{"agents:invoke:foo", "agents:invoke", false},

		{"agents:invoke", "agents:invoke:foo", true},
		{"agents:invoke:*", "agents:invoke:foo", true},
		{"agents:invoke:foo", "agents:invoke:foo", true},
		{"agents:invoke:foo", "agents:invoke:bar", false},
		{"agents:invoke:foo", "agents:invoke:foobar", false},
		{"agents:invoke:foo", "agents:invoke:*", false},
		{"agents:invoke", "agents:invoke:*", true},
		{"agents:*:foo", "agents:invoke:foo", true},
		{"agents:*:foo", "agents:invoke:bar", false},
		{"agents:*:foo", "agents:invoke", false},

		{"traces:read", "traces:read:raw", true},
		{"traces:read:sanitized", "traces:read:raw", false},
	} {
		granted, required := scope(t, tc.granted), scope(t, tc.required)
		if got := (auth.Grant{granted}).Covers(required); got != tc.want {
			t.Errorf("Grant{%s}.Covers(%s) = %v, want %v", tc.granted, tc.required, got, tc.want)
		}
		if got := (auth.Grant{scope(t, "x:y"), granted}).Covers(required); got != tc.want {
			t.Errorf("Grant{x:y %s}.Covers(%s) = %v, want %v", tc.granted, tc.required, got, tc.want)
		}
	}
}

func TestNothingCoversAMalformedScope(t *testing.T) {
	for _, required := range []auth.Scope{
		{},
		{Resource: "agents"},
		{Action: "read"},
		{Resource: "agents", Action: "read", Target: "a b"},
		{Resource: "agents", Action: "read", Target: strings.Repeat("a", 129)},
		{Resource: "*", Action: "*"},
	} {
		for _, g := range []auth.Grant{admin.Grant, {required}, grant(t, "agents:read"), {{}}, nil} {
			if g.Covers(required) {
				t.Errorf("%v.Covers(%+v) = true, want false", g, required)
			}
		}
	}
	if required := scope(t, "agents:read"); (auth.Principal{}).Grant.Covers(required) || (auth.Grant{{}}).Covers(required) {
		t.Errorf("the zero principal or scope covers %s, want nothing", required)
	}
}

// A token that minted another never gives more than it has, through any chain of tokens.
func TestCoverageIsTransitive(t *testing.T) {
	var all auth.Grant
	for _, resource := range []string{"admin", "agents"} {
		for _, action := range []string{"*", "read", "invoke"} {
			for _, target := range []string{"", "*", "x", "y"} {
				all = append(all, auth.Scope{Resource: resource, Action: action, Target: target})
			}
		}
	}
	for _, a := range all {
		if !(auth.Grant{a}).Covers(a) {
			t.Errorf("Covers(%s, %[1]s) = false, want true", a)
		}
		for _, b := range all {
			for _, c := range all {
				if (auth.Grant{a}).Covers(b) && (auth.Grant{b}).Covers(c) && !(auth.Grant{a}).Covers(c) {
					t.Errorf("%s covers %s, which covers %s, but Covers(%[1]s, %[3]s) = false", a, b, c)
				}
			}
		}
	}
}

func TestTargets(t *testing.T) {
	for _, tc := range []struct {
		grant string
		all   bool
		ids   []string
	}{
		{"", false, nil},
		{"sessions:read agents:invoke", false, nil},
		{"agents:read", true, nil},
		{"agents:read:*", true, nil},
		{"agents:*", true, nil},
		{"admin:*", true, nil},
		{"admin:*:x", true, nil},
		{"agents:read:b agents:read:a agents:*:c agents:read:b agents:invoke:d sessions:read:e", false, []string{"a", "b", "c"}},
		{"agents:read:b agents:read", true, nil},
	} {
		all, ids := grant(t, strings.Fields(tc.grant)...).Targets("agents", "read")
		if all != tc.all || !slices.Equal(ids, tc.ids) {
			t.Errorf("[%s].Targets(agents, read) = %v, %v, want %v, %v", tc.grant, all, ids, tc.all, tc.ids)
		}
	}
	if all, ids := admin.Grant.Targets("", ""); all || ids != nil {
		t.Errorf(`[admin:*].Targets("", "") = %v, %v, want nothing`, all, ids)
	}
	if all, ids := (auth.Grant{{}}).Targets("agents", "read"); all || ids != nil {
		t.Errorf("[zero].Targets(agents, read) = %v, %v, want nothing", all, ids)
	}
}

func FuzzParseScope(f *testing.F) {
	for _, seed := range []string{"agents:read", "agents:invoke:clerk", "admin:*", "a:*:*", "::", "a:b:", "A:b", "a:b:c:d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fuzztest.Cost{PerByte: 16}.Check(t, len(text), func() { auth.ParseScope(text) }) //nolint:errcheck // it is looked at below
		s, err := auth.ParseScope(text)
		if err != nil {
			if s != (auth.Scope{}) {
				t.Errorf("ParseScope(%q) = %v with an error, want nothing", text, s)
			}
			return
		}
		if got := s.String(); got != text {
			t.Errorf("ParseScope(%q).String() = %q, want the same", text, got)
		}
		if !(auth.Grant{s}).Covers(s) || !admin.Grant.Covers(s) {
			t.Errorf("%q is not covered by itself and admin:*", text)
		}
	})
}
