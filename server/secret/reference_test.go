package secret_test

import (
	"maps"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/secret"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		text string
		want secret.Ref
	}{
		{"env:NAME", secret.Ref{Scheme: "env", Path: "NAME"}},
		{"ENV:N?default=a+b%2Bc&default=%FF", secret.Ref{Scheme: "env", Path: "N", Query: map[string]string{"default": "\xFF"}}},
		{"env:N?default=a+b%2Bc", secret.Ref{Scheme: "env", Path: "N", Query: map[string]string{"default": "a b+c"}}},
		{"env:N?default=", secret.Ref{Scheme: "env", Path: "N", Query: map[string]string{"default": ""}}},
		{"file:rel/a b+c", secret.Ref{Scheme: "file", Path: "rel/a b+c"}},
		{"file:///abs%23x", secret.Ref{Scheme: "file", Path: "/abs#x"}},
		{"file://localhost/abs?encoding=hex", secret.Ref{Scheme: "file", Path: "/abs", Query: map[string]string{"encoding": "hex"}}},
		{"file:~/x?warnOnPermissions=0&&encoding=utf8", secret.Ref{Scheme: "file", Path: "~/x", Query: map[string]string{"warnOnPermissions": "0", "encoding": "utf8"}}},
		{"encrypted-file:/p?key=env:K#db/pass?word", secret.Ref{Scheme: "encrypted-file", Path: "/p", Query: map[string]string{"key": "env:K"}, Fragment: "db/pass?word"}},
		{"ref:db/password", secret.Ref{Scheme: "ref", Path: "db/password"}},
		{"literal:a%3Fb:c", secret.Ref{Scheme: "literal", Path: "a?b:c"}},
	} {
		got, err := secret.Parse(tc.text)
		if err != nil || got.Scheme != tc.want.Scheme || got.Path != tc.want.Path ||
			got.Fragment != tc.want.Fragment || !maps.Equal(got.Query, tc.want.Query) {
			t.Errorf("Parse(%q) = %#v, %v, want %#v", tc.text, got, err, tc.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct {
		text string
		kind string
	}{
		{"", "empty-input"},
		{"  ", "empty-input"},
		{"hunter2hunter2", "naked-string"},
		{"sk-proj/abc:def", "invalid-scheme"},
		{":x", "invalid-scheme"},
		{"1env:X", "invalid-scheme"},
		{" env:X", "invalid-scheme"},
		{"hunter2:hunter2", "unknown-scheme"},
		{"env:A\nB", "malformed-uri"},
		{"env:A-B", "malformed-uri"},
		{"env:A?defualt=x", "malformed-uri"},
		{"env:A#x", "malformed-uri"},
		{"file:a%00b", "malformed-uri"},
		{"literal:what?hunter2", "malformed-uri"},
		{"literal:hunter2#rest", "malformed-uri"},
		{"literal:" + strings.Repeat("x", 9<<10), "malformed-uri"},
		{"env:", "empty-path"},
		{"env:?default=x", "empty-path"},
		{"file:", "empty-path"},
		{"file://localhost", "empty-path"},
		{"file://", "missing-authority"},
		{"env://NAME", "unexpected-authority"},
		{"ref://x", "unexpected-authority"},
		{"literal://x", "unexpected-authority"},
		{"file://rel/path", "unexpected-authority"},
		{"file://token:hunter2@host/kv", "unexpected-authority"},
		{"encrypted-file://host/path#k", "unexpected-authority"},
		{"encrypted-file:/p?key=hunter2hunter2#k", "naked-string"},
		{"encrypted-file:/p?key=literal:hunter2#k", "malformed-uri"},
		{"encrypted-file:/p?key=encrypted-file:/q%3Fkey=env:A#k", "malformed-uri"},
		{"encrypted-file:/p?key=env:A%253Fdefault#k", "malformed-uri"},
		{"env:A?default=%zz", "invalid-percent-encoding"},
		{"file:a%4", "invalid-percent-encoding"},
		{"file:a%", "invalid-percent-encoding"},
		{"file:%g0", "invalid-percent-encoding"},
		{"encrypted-file:/p#%-1", "invalid-percent-encoding"},
	} {
		_, err := secret.Parse(tc.text)
		f := fault.Of(err)
		if f == nil || f.Kind != fault.SecretRefInvalid || f.Extra["kind"] != tc.kind || f.NextStep() == "" || !strings.HasSuffix(f.Message, ".") {
			t.Errorf("Parse(%.40q) = %v, want secret-ref-invalid, a sentence and the kind %s", tc.text, err, tc.kind)
			continue
		}
		if strings.Contains(f.Message, "hun") || strings.Contains(f.Message, " characters that") || len(f.Message) > 300 {
			t.Errorf("Parse(%.40q) = %v, want nothing of the text", tc.text, err)
		}
	}
}

func TestShow(t *testing.T) {
	for text, want := range map[string]string{
		"env:A?default=hunter2":                      "env:A?default=***",
		"FILE:x?encoding=hex":                        "FILE:x?encoding=hex",
		"literal:hunter2":                            "literal:***",
		"encrypted-file:p?key=env:K%3Fdefault=pw#k":  "encrypted-file:p?key=env:K?default=***#k",
		"encrypted-file:p?key=hunter2-hunter2#k":     `(no reference)`,
		"vault://hunter2@h/p":                        `(no reference)`,
		"hunter2":                                    `(no reference)`,
		"a very long passphrase without any scheme.": `(no reference)`,
	} {
		if got := secret.Show(text); got != want {
			t.Errorf("Show(%q) = %s, want %s", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"env:A?default=b", "file:~/x?encoding=hex", "encrypted-file:///p?key=file%3Ax#a~1b", "vault://h:1/x?a=b", "literal:%", "x", "://", "env:%41?&=&%=+"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fuzztest.Check(t, len(text), func() { secret.Parse(text) }) //nolint:errcheck // it is looked at below
		fuzztest.Check(t, len(text), func() { secret.Show(text) })
		ref, err := secret.Parse(text)
		shown := secret.Show(text)
		if err != nil {
			if !fault.Is(err, fault.SecretRefInvalid) && !fault.Is(err, fault.MissingPeerDependency) {
				t.Errorf("Parse(%q) = %v, want secret-ref-invalid", text, err)
			}
			return
		}
		if ref.Scheme == "literal" && shown != "literal:***" {
			t.Errorf("Show(%q) = %q", text, shown)
		}
		if d := ref.Query["default"]; len(d) > 8 && strings.Contains(shown, d) && !strings.Contains(ref.Path+"?default=***", d) {
			t.Errorf("Show(%q) = %q, want the default hidden", text, shown)
		}
		again, err := secret.Parse(text)
		if err != nil || again.Path != ref.Path || strings.ToLower(ref.Scheme) != ref.Scheme {
			t.Errorf("Parse(%q) = %#v, then %#v, %v", text, ref, again, err)
		}
	})
}
