package secret_test

import (
	"errors"
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
		{"file://localhost/abs?encoding=hex", secret.Ref{Scheme: "file", Authority: "localhost", Path: "/abs", Query: map[string]string{"encoding": "hex"}}},
		{"file:~/x?warnOnPermissions=0&&encoding=utf8", secret.Ref{Scheme: "file", Path: "~/x", Query: map[string]string{"warnOnPermissions": "0", "encoding": "utf8"}}},
		{"encrypted-file:/p?key=env:K#db/pass?word", secret.Ref{Scheme: "encrypted-file", Path: "/p", Query: map[string]string{"key": "env:K"}, Fragment: "db/pass?word"}},
		{"keyring:me?service=svc", secret.Ref{Scheme: "keyring", Path: "me", Query: map[string]string{"service": "svc"}}},
		{"ref:db/password", secret.Ref{Scheme: "ref", Path: "db/password"}},
		{"literal:a%3Fb:c", secret.Ref{Scheme: "literal", Path: "a?b:c"}},
		{"vault://host/kv/x?version=2#field", secret.Ref{Scheme: "vault", Authority: "host", Path: "/kv/x", Query: map[string]string{"version": "2"}, Fragment: "field"}},
		{"vault://host", secret.Ref{Scheme: "vault", Authority: "host"}},
	} {
		got, err := secret.Parse(tc.text)
		if err != nil || got.Scheme != tc.want.Scheme || got.Authority != tc.want.Authority || got.Path != tc.want.Path ||
			got.Fragment != tc.want.Fragment || !maps.Equal(got.Query, tc.want.Query) {
			t.Errorf("Parse(%q) = %#v, %v, want %#v", tc.text, got, err, tc.want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, tc := range []struct {
		text string
		kind secret.Kind
	}{
		{"", secret.EmptyInput},
		{"  ", secret.EmptyInput},
		{"hunter2hunter2", secret.NakedString},
		{"sk-proj/abc:def", secret.InvalidScheme},
		{":x", secret.InvalidScheme},
		{"1env:X", secret.InvalidScheme},
		{" env:X", secret.InvalidScheme},
		{"hunter2:hunter2", secret.UnknownScheme},
		{"env:A\nB", secret.MalformedURI},
		{"env:A-B", secret.MalformedURI},
		{"env:A?defualt=x", secret.MalformedURI},
		{"env:A#x", secret.MalformedURI},
		{"file:a%00b", secret.MalformedURI},
		{"literal:what?hunter2", secret.MalformedURI},
		{"literal:hunter2#rest", secret.MalformedURI},
		{"literal:" + strings.Repeat("x", 9<<10), secret.MalformedURI},
		{"env:", secret.EmptyPath},
		{"env:?default=x", secret.EmptyPath},
		{"file:", secret.EmptyPath},
		{"file://localhost", secret.EmptyPath},
		{"vault:", secret.EmptyPath},
		{"file://", secret.MissingAuthority},
		{"vault:///x", secret.MissingAuthority},
		{"env://NAME", secret.UnexpectedAuthority},
		{"ref://x", secret.UnexpectedAuthority},
		{"literal://x", secret.UnexpectedAuthority},
		{"keyring://x", secret.UnexpectedAuthority},
		{"file://rel/path", secret.UnexpectedAuthority},
		{"encrypted-file://host/path#k", secret.UnexpectedAuthority},
		{"vault://token:hunter2@host/kv", secret.UnexpectedAuthority},
		{"vault://hunter2%40host/kv", secret.UnexpectedAuthority},
		{"encrypted-file:/p?key=hunter2hunter2#k", secret.NakedString},
		{"encrypted-file:/p?key=literal:hunter2#k", secret.MalformedURI},
		{"encrypted-file:/p?key=encrypted-file:/q%3Fkey=env:A#k", secret.MalformedURI},
		{"encrypted-file:/p?key=env:A%253Fdefault#k", secret.MalformedURI},
		{"env:A?default=%zz", secret.InvalidPercentEncoding},
		{"file:a%4", secret.InvalidPercentEncoding},
		{"file:a%", secret.InvalidPercentEncoding},
		{"file:%g0", secret.InvalidPercentEncoding},
		{"encrypted-file:/p#%-1", secret.InvalidPercentEncoding},
	} {
		_, err := secret.Parse(tc.text)
		e, ok := errors.AsType[*secret.Error](err)
		if !ok || e.Kind != tc.kind {
			t.Errorf("Parse(%.40q) = %v, want kind %s", tc.text, err, tc.kind)
			continue
		}
		if strings.Contains(e.Error(), "hun") || strings.Contains(e.Error(), " characters that") || len(e.Error()) > 300 {
			t.Errorf("Parse(%.40q) = %v, want nothing of the text", tc.text, err)
		}
		f := fault.Of(err)
		if f.Kind != fault.SecretRefInvalid || f.Extra["kind"] != string(tc.kind) || f.NextStep() == "" || !strings.HasSuffix(f.Message, ".") {
			t.Errorf("Of(Parse(%.40q)) = %v %q with %v, want secret-ref-invalid, a sentence and the kind", tc.text, f.Kind.Code, f.Message, f.Extra)
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
		"vault://h/p?token=hunter2":                  "vault://h/p?token=***",
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
			if _, ok := errors.AsType[*secret.Error](err); !ok {
				t.Errorf("Parse(%q) = %v, want an *Error", text, err)
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
