package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"

	"agentd/server/secret"
)

const planted = "s3cr\"et/p+ss\\wörd"

func TestText(t *testing.T) {
	var r secret.Redactor
	if got := r.Text(planted); got != planted {
		t.Errorf("Text() before anything is known = %q", got)
	}
	pem := "-----BEGIN KEY-----\nQUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo=\nabcdefghijklmnopqrstuvwxyz\n-----END KEY-----"
	for _, v := range []string{planted, "short", "sk-live-abcdef", "sk-live-abcdef-longer", pem, "Bearer tok_0123456789\n"} {
		if !r.Add([]byte(v)) {
			t.Fatalf("Add(%q) = false", v)
		}
	}
	for _, tc := range []struct{ text, want string }{
		{"no secret here", "no secret here"},
		{"short", "short"},
		{"a " + planted + " b " + planted, "a [REDACTED] b [REDACTED]"},
		{"key=sk-live-abcdef;", "key=[REDACTED];"},
		{"key=sk-live-abcdef-longer;", "key=[REDACTED];"},
		{"line abcdefghijklmnopqrstuvwxyz of a key", "line [REDACTED] of a key"},
		{"got tok_0123456789 from you", "got [REDACTED] from you"},
		{"Bearer tok_0123456789", "[REDACTED]"},
		{"q=" + url.QueryEscape(planted), "q=[REDACTED]"},
		{"/" + url.PathEscape(planted), "/[REDACTED]"},
		{"{\"x\":" + quote(planted) + "}", `{"x":"[REDACTED]"}`},
	} {
		if got := r.Text(tc.text); got != tc.want {
			t.Errorf("Text(%q) = %q, want %q", tc.text, got, tc.want)
		}
	}
	// Base64 of whatever the value stands in.
	for _, before := range []string{"", "u", "us", "user:", "üser:"} {
		for _, after := range []string{"", "x", "yz"} {
			for name, enc := range map[string]*base64.Encoding{"std": base64.StdEncoding, "url": base64.RawURLEncoding} {
				text := enc.EncodeToString([]byte(before + planted + after))
				if got := r.Text("Basic " + text); !strings.Contains(got, secret.Redacted) || len(got) > len("Basic ")+len(secret.Redacted)+16 {
					t.Errorf("Text(%s of %q) = %q, want the value hidden", name, before+planted+after, got)
				}
			}
		}
	}
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func TestPiece(t *testing.T) {
	var r secret.Redactor
	r.Add([]byte("0123456789abcdef"))
	for _, tc := range []struct{ text, want string }{
		{"", ""},
		{"text", "text"},
		{"56789abcdef and so on", "[REDACTED] and so on"},
		{"bcdef and so on", "bcdef and so on"}, // fewer than 6 bytes tell little
		{"begins 0123456789ab", "begins [REDACTED]"},
		{"begins 01234", "begins 01234"},
		{"abcdef 0123456789abcdef 012345", "[REDACTED] [REDACTED] [REDACTED]"},
		{"0123456789abcde", "[REDACTED]"},
		{"123456789abcdef", "[REDACTED]"},
	} {
		if got := r.Piece(tc.text); got != tc.want {
			t.Errorf("Piece(%q) = %q, want %q", tc.text, got, tc.want)
		}
	}
	if got := new(secret.Redactor).Piece("x"); got != "x" {
		t.Errorf("Piece() of nobody = %q", got)
	}
}

func TestRedactorBounds(t *testing.T) {
	var r secret.Redactor
	value := func(i int) []byte { return fmt.Appendf(nil, "%d%s", i, strings.Repeat("x", 64<<10-3)) }
	for i := range 100 {
		if !r.Add(value(i)) {
			if i < 16 || !r.Add(value(i-1)) || !r.Add([]byte("tiny")) {
				t.Errorf("Add() refuses value %d, or one that is known", i)
			}
			return
		}
	}
	t.Error("Add() takes values without an end")
}

func TestRedactorTogether(t *testing.T) {
	var r secret.Redactor
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 50 {
				v := fmt.Sprintf("secret-%d-%d", i, j)
				r.Add([]byte(v))
				if got := r.Text("it is " + v); got != "it is [REDACTED]" {
					t.Errorf("Text(%q) = %q", v, got)
				}
			}
		})
	}
	all.Wait()
}

type secretive struct {
	Name string
	Key  []byte
}

type valuer struct{}

func (valuer) LogValue() slog.Value {
	return slog.GroupValue(slog.String("in", "hunter2hunter2"), slog.Int("n", 1))
}

func TestHandler(t *testing.T) {
	for form, make := range map[string]func(*bytes.Buffer) slog.Handler{
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
	} {
		var out bytes.Buffer
		var r secret.Redactor
		r.Add([]byte("hunter2hunter2"))
		r.Add([]byte(planted))
		log := slog.New(r.Handler(make(&out)))
		log.With("early", "hunter2hunter2").WithGroup("g").Warn("said hunter2hunter2", "text", "a hunter2hunter2", "odd", planted,
			"error", fmt.Errorf("wrapped: %w", errors.New("401 hunter2hunter2")), "any", secretive{"hunter2hunter2", nil}, "bytes", secretive{"n", []byte("hunter2hunter2")},
			"map", map[string]any{"k": "hunter2hunter2"}, "valuer", valuer{}, slog.Group("group", "deep", "hunter2hunter2", "n", 7), "fine", errors.New("all is well"), "number", 12)
		got := out.String()
		if strings.Contains(got, "hunter2") || strings.Contains(got, "s3cr") || strings.Contains(got, "aHVudGVyMmh1bnRlc") || strings.Count(got, secret.Redacted) < 9 {
			t.Errorf("%s: %s\nwant every value hidden", form, got)
		}
		for _, part := range []string{"all is well", "12", "wrapped: 401 [REDACTED]", "said [REDACTED]", "deep"} {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %s\nlacks %q", form, got, part)
			}
		}
	}
}

func TestHandlerIsAHandler(t *testing.T) {
	var out bytes.Buffer
	var r secret.Redactor
	err := slogtest.TestHandler(r.Handler(slog.NewJSONHandler(&out, nil)), func() (all []map[string]any) {
		for line := range bytes.Lines(out.Bytes()) {
			var m map[string]any
			if err := json.Unmarshal(line, &m); err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
		return all
	})
	if err != nil {
		t.Error(err)
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("0123456789", "a0123456789b", "6789")
	f.Add("ab ab ab", "ab ab ab ab", "")
	f.Fuzz(func(t *testing.T, value, before, after string) {
		var r secret.Redactor
		if len(value) < 6 || !r.Add([]byte(value)) || strings.Contains(secret.Redacted, value) {
			return
		}
		text := before + value + after
		got := r.Text(text)
		if got == text {
			t.Errorf("Text(%q) hides nothing of %q", text, value)
		}
		for _, form := range []string{quote(value), plainJSON(value), plainJSON(plainJSON(value)), asciiJSON(value), fmt.Sprintf("%+q", value),
			url.QueryEscape(value), strings.ToLower(url.PathEscape(value)), hex.EncodeToString([]byte(value)), base64.StdEncoding.EncodeToString([]byte(value))} {
			text := before + " " + form + " " + after // without the spaces, it could be escaped in two ways
			if strings.ToLower(value) == value && r.Text(text) == text {
				t.Errorf("Text(%q) hides nothing of %q", text, value)
			}
		}
		for cut := range len(value) + 1 {
			if got := r.Piece(value[cut:]); len(value)-cut >= 6 && got != secret.Redacted {
				t.Errorf("Piece(%q) = %q, want the rest of %q hidden", value[cut:], got, value)
			}
			if got := r.Piece(value[:cut]); cut >= 6 && got != secret.Redacted {
				t.Errorf("Piece(%q) = %q, want the beginning of %q hidden", value[:cut], got, value)
			}
		}
		r.Piece(text)
	})
}

func BenchmarkText(b *testing.B) {
	var r secret.Redactor
	for i := range 50 {
		r.Add(fmt.Appendf(nil, "sk-live-%032x", i*7919))
	}
	text := strings.Repeat("2026-01-01 a line of the log that tells nothing in particular; ", 16)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		r.Text(text)
	}
}
