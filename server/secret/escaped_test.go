package secret_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode/utf16"

	"agentd/server/secret"
)

// plainJSON is what an encoder makes of a text that leaves <, > and & as they are.
func plainJSON(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(s) //nolint:errcheck // a text always encodes
	return strings.TrimSpace(b.String())
}

// asciiJSON is what an encoder makes of a text that escapes all but ASCII, as Python's does.
func asciiJSON(s string) string {
	var b strings.Builder
	for _, r := range quote(s) {
		if r < 0x80 {
			b.WriteRune(r)
		} else {
			for _, half := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&b, `\u%04x`, half)
			}
		}
	}
	return b.String()
}

func TestTextEscaped(t *testing.T) {
	const odd = "s3cr\"et/<p+ss> wörd'!&"
	var r secret.Redactor
	r.Add([]byte(odd))
	for name, text := range map[string]string{
		"JSON without HTML":  plainJSON(odd),
		"JSON in JSON":       plainJSON(plainJSON(odd)),
		"JSON three times":   quote(quote(quote(odd))),
		"ASCII JSON":         asciiJSON(odd),
		"JSON of PHP":        strings.ReplaceAll(quote(odd), "/", `\/`),
		"quoted by Go":       fmt.Sprintf("%q", odd),
		"quoted as ASCII":    fmt.Sprintf("%+q", odd),
		"lower case":         strings.ToLower(url.PathEscape("s3cr\"et/<p+ss> w") + url.PathEscape("örd'!&")),
		"a path":             (&url.URL{Path: "/" + odd}).String(),
		"a user":             url.UserPassword("u", odd).String(),
		"encodeURIComponent": strings.NewReplacer("%27", "'", "%21", "!").Replace(url.PathEscape(odd)),
		"a query in JSON":    plainJSON("https://h/?q=" + url.QueryEscape(odd)),
		"hex":                hex.EncodeToString([]byte(odd)),
		"HEX":                strings.ToUpper(hex.EncodeToString([]byte(odd))),
	} {
		got := r.Text("before " + text + " after")
		if !strings.Contains(got, secret.Redacted) || strings.Contains(got, "s3cr") || strings.Contains(got, "rd'") || !strings.HasPrefix(got, "before ") || !strings.HasSuffix(got, " after") {
			t.Errorf("%s: Text(%q) = %q, want the value hidden", name, text, got)
		}
	}
}

func TestTextOverlap(t *testing.T) {
	var r secret.Redactor
	r.Add([]byte("user:password1234"))
	r.Add([]byte("1234-the-other-one"))
	if got, want := r.Text("x user:password1234-the-other-one y"), "x [REDACTED] y"; got != want {
		t.Errorf("Text() of two values that overlap = %q, want %q", got, want)
	}
}

// TestPieceEscaped cuts through escapes.
func TestPieceEscaped(t *testing.T) {
	const odd = `01234"<ö>/456789`
	var r secret.Redactor
	r.Add([]byte(odd))
	for name, text := range map[string]string{"JSON": asciiJSON(odd), "JSON in JSON": plainJSON(plainJSON(odd)), "percent": url.QueryEscape(odd)} {
		text = strings.Trim(text, `\"`)
		for cut := range len(text) + 1 {
			if got := r.Piece("before " + text[:cut]); strings.Contains(got, `01234%22`) || strings.Contains(got, `01234\"<`) || cut == len(text) && got != "before [REDACTED]" {
				t.Errorf("%s: Piece(%q) = %q, want the beginning of the value hidden", name, "before "+text[:cut], got)
			}
			if got := r.Piece(text[cut:] + " after"); len(text)-cut >= 6 && (strings.Contains(got, "456789")) {
				t.Errorf("%s: Piece(%q) = %q, want the rest of the value hidden", name, text[cut:]+" after", got)
			}
		}
	}
}

func TestPieceWithin(t *testing.T) {
	var r secret.Redactor
	r.Add([]byte("ABCDEFGHIJKLM-shared-part-NOPQRSTUVWXYZ"))
	r.Add([]byte("-shared-part-"))
	for _, text := range []string{"GHIJKLM-shared-part-NOPQRSTUVWXYZ", "ABCDEFGHIJKLM-shared-part-NOPQRS", "HIJKLM-shared-part-NOPQRS", "HIJKLM"} {
		if got := r.Piece(text); got != secret.Redacted {
			t.Errorf("Piece(%q) = %q, want all of it hidden", text, got)
		}
	}
}
