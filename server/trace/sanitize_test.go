package trace_test

import (
	"strings"
	"testing"

	"agentd/server/message"
	"agentd/server/span"
	"agentd/server/trace"
)

func TestSanitize(t *testing.T) {
	const key = "sk-proj-abcdefghijklmnopqrst"
	type attributes = map[string]any
	type tags = map[string]string
	for name, c := range map[string]struct {
		span span.Span
		want string // JSON of the record, or the reason
	}{
		"nothing":        {span: span.Span{Name: "n"}, want: `{}`},
		"public":         {span: span.Span{Attributes: attributes{"a": 1}, Sensitivity: tags{"a": "public"}}, want: `{"a":1}`},
		"untagged":       {span: span.Span{Attributes: attributes{"a": 1, "b": 2}, Sensitivity: tags{"a": "public"}}, want: `{"a":1}`},
		"status message": {span: span.Span{StatusMessage: "of a person"}, want: `{}`},
		"internal":       {span: span.Span{Attributes: attributes{"a": 1, "b": 2}, Sensitivity: tags{"a": "public", "b": "internal"}}, want: "sensitivity"},
		"secret":         {span: span.Span{Attributes: attributes{"b": 2}, Sensitivity: tags{"b": "secret"}}, want: "sensitivity"},
		"unknown tag":    {span: span.Span{Attributes: attributes{"b": 2}, Sensitivity: tags{"b": "Public"}}, want: "sensitivity"},
		"empty tag":      {span: span.Span{Attributes: attributes{"b": 2}, Sensitivity: tags{"b": ""}}, want: "sensitivity"},
		"tag of nothing": {span: span.Span{Sensitivity: tags{"b": "secret"}}, want: `{}`},

		"a key in public":           {span: span.Span{Attributes: attributes{"a": "with " + key}, Sensitivity: tags{"a": "public"}}, want: "redaction-violation"},
		"a key in the name":         {span: span.Span{Name: key}, want: "redaction-violation"},
		"a key as an attribute":     {span: span.Span{Attributes: attributes{key: 1}, Sensitivity: tags{key: "public"}}, want: "redaction-violation"},
		"a key deep in public":      {span: span.Span{Attributes: attributes{"a": []any{attributes{"b": key}}}, Sensitivity: tags{"a": "public"}}, want: "redaction-violation"},
		"a key as a member":         {span: span.Span{Attributes: attributes{"a": attributes{key: nil}}, Sensitivity: tags{"a": "public"}}, want: "redaction-violation"},
		"a key in a list of texts":  {span: span.Span{Attributes: attributes{"a": []string{key}}, Sensitivity: tags{"a": "public"}}, want: "redaction-violation"},
		"a key that is not shown":   {span: span.Span{StatusMessage: key, Attributes: attributes{"a": key}}, want: `{}`},
		"what has no JSON":          {span: span.Span{Attributes: attributes{"a": func() {}}, Sensitivity: tags{"a": "public"}}, want: "redaction-violation"},
		"sensitivity comes first":   {span: span.Span{Name: key, Attributes: attributes{"a": 1}, Sensitivity: tags{"a": "secret"}}, want: "sensitivity"},
		"nested values that may go": {span: span.Span{Attributes: attributes{"a": []any{true, nil, 1.5, "x"}}, Sensitivity: tags{"a": "public"}}, want: `{"a":[true,null,1.5,"x"]}`},
	} {
		c.span.ID = "0000000130000000"
		c.span.Message = new(7)
		got, reason := trace.Sanitize(&c.span)
		if text := string(reason); reason != "" {
			if text != c.want || got.ID != "" {
				t.Errorf("%s: Sanitize() = %+v, %s, want %s", name, got, text, c.want)
			}
			continue
		}
		b, err := message.Encode(got.Attributes)
		if err != nil || string(b) != c.want {
			t.Errorf("%s: Sanitize() has the attributes %s, %v, want %s", name, b, err, c.want)
		}
		for a := range got.Sensitivity {
			if _, ok := got.Attributes[a]; !ok {
				t.Errorf("%s: Sanitize() has the tag of %q, which it does not show", name, a)
			}
		}
		if got.StatusMessage != "" || got.ID != c.span.ID {
			t.Errorf("%s: Sanitize() = %+v, want the id and no status message", name, got)
		}
	}
}

func TestHoldsSecret(t *testing.T) {
	// Assembled, so that no scanner of repositories takes them for real.
	digits := strings.Repeat("0aZ9", 13)
	for _, text := range []string{
		"svc_" + "live_v1_" + digits[:49],
		"my-corp2_" + "test_v1_" + digits[:49],
		"svc_" + "live_v1_" + digits[:35] + "...", // cut off
		`{"token":"svc_` + `local_v1_` + digits[:49] + `"}`,
		"https://host/?key=a_" + "b_v1_" + digits[:49],
		"Authorization: Bearer " + digits[:20],
		"BEARER\t" + "abc.def-ghi_jkl~mno+pqr/stu==",
		"curl -H 'authorization: bearer " + digits + "'",
		"sk-" + digits[:48],
		"sk-proj-" + "abc_def-ghi_jkl-mno",
		"sk-ant-" + "api03-abcdefghijkl",
		"key=sk_" + "live_" + digits[:24],
		"OPENAI_sk-" + digits[:32],
		"AKIA" + "IOSFODNN7EXAMPLE",
		"x=ASIA" + "IOSFODNN7EXAMPLE;",
		"AWS_AKIA" + "IOSFODNN7EXAMPLE",
		"-----BEGIN " + "PRIVATE KEY-----\nMII",
		"-----BEGIN " + "RSA PRIVATE KEY-----",
		"-----BEGIN " + "ENCRYPTED PRIVATE KEY-----",
		"-----BEGIN " + "OPENSSH PRIVATE KEY-----",
		"-----BEGIN " + "PGP PRIVATE KEY BLOCK-----",
		"eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxIn0" + ".c2lnbmF0dXJl",
		"token=eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxIn0" + ".c2lnbmF0dXJl&x",
	} {
		if !trace.HoldsSecret(text) {
			t.Errorf("HoldsSecret(%q) = false, want true", text)
		}
		if padded := "before " + text + " after"; !trace.HoldsSecret(padded) {
			t.Errorf("HoldsSecret(%q) = false, want true", padded)
		}
	}
	for _, text := range []string{
		"", "gpt-4o-mini", "search", "claude-sonnet-4-5-20250929", "meta-llama/Llama-3.3-70B-Instruct-Turbo",
		"svc_live_v1_...", "migrate_users_v1_to_v2", "table_name_v1_backup", "snake_case_v1_is_fine",
		"the bearer of bad news", "Bearer authentication", "use bearer responsibilities wisely", "forbearer abcdefghijklmnopqrstuvwxyz", "Bearer ",
		"sk-learn", "sk-SK", "task-0123456789012345678901234", "risk_0123456789012345678901234", "sk_buff", "scikit sk-learn-pipeline-with-a-long-name",
		"AKIA", "AKIA123", "AKIAIOSFODNN7EXAMPLEANDMORE", "BAKIAIOSFODNN7EXAMPLE", "akiaiosfodnn7example",
		"-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", "BEGIN PRIVATE KEY", "a private key",
		"eyJ", "eyJhbGciOiJIUzI1NiJ9", "www.eyJournal.com", "a.b.c", "1.2.3-beta.4",
		"0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", strings.Repeat("0af9", 16), "2025-01-01T00:00:00.000Z",
	} {
		if trace.HoldsSecret(text) {
			t.Errorf("HoldsSecret(%q) = true, want false", text)
		}
	}
}

func FuzzHoldsSecret(f *testing.F) {
	f.Add("name", "value")
	f.Add("", "-----BEGIN ")
	f.Fuzz(func(t *testing.T, before, after string) {
		const secret = " AKIA" + "IOSFODNN7EXAMPLE "
		if !trace.HoldsSecret(before + secret + after) {
			t.Errorf("HoldsSecret(%q + an AWS access key id + %q) = false, want true", before, after)
		}
	})
}
