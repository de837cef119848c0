package secret_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"agentd/server/secret"
)

// flow is what is shown of a text that comes in pieces of the given length.
func flow(r *secret.Redactor, text string, size int) string {
	f := r.Flow()
	var b strings.Builder
	for len(text) > 0 {
		n := min(size, len(text))
		b.WriteString(f.Push(text[:n]))
		text = text[n:]
	}
	b.WriteString(f.Rest(false))
	return b.String()
}

func wrapped(value string, width int, end string) string {
	text := base64.StdEncoding.EncodeToString([]byte(value))
	var lines []string
	for len(text) > width {
		lines, text = append(lines, text[:width]), text[width:]
	}
	return strings.Join(append(lines, text), end)
}

func TestTextInLines(t *testing.T) {
	const value = "correct-horse-battery-staple-correct-horse-battery-staple-correct-horse-battery-staple"
	var r secret.Redactor
	r.Add([]byte(value))
	for _, end := range []string{"\n", "\r\n", "\n    ", "\n\t"} {
		for _, width := range []int{19, 64, 76} {
			text := "key:" + end + "x" + wrapped("u:"+value+"!", width, end) + end + "rest"
			if got := r.Text(text); strings.Count(got, secret.Redacted) != 1 || len(got) > 40 || !strings.HasSuffix(got, "rest") {
				t.Errorf("Text(%q) = %q", text, got)
			}
			quoted, _ := json.Marshal(text)
			if got := r.Text(string(quoted)); strings.Count(got, secret.Redacted) != 1 || len(got) > 60 || !json.Valid([]byte(got)) {
				t.Errorf("Text(%s) = %s", quoted, got)
			}
		}
	}
	if text := "correct-horse-battery-\n\nstaple"; r.Text(text) != text {
		t.Errorf("Text(%q) = %q, want it as it is", text, r.Text(text))
	}
}

func TestFlow(t *testing.T) {
	var r secret.Redactor
	r.Add([]byte("hunter2hunter2"))
	r.Add([]byte("hunter2hunter2-long"))
	r.Add([]byte(`pa"ss wörd`))
	for _, tc := range []struct{ text, want string }{
		{"plain text, 50% of it\\", "plain text, 50% of it\\"},
		{"a hunter2hunter2 b", "a [REDACTED] b"},
		{"a hunter2hunter2-long b", "a [REDACTED] b"},
		{"hunter2hunter2-lon", "[REDACTED]-lon"},
		{"hunter2hunter", "hunter2hunter"},
		{"hunhunter2hunter2hunter2hunter2", "hun[REDACTED]"},
		{`{"a":"pa\"ss w\u00f6rd"}`, `{"a":"[REDACTED]"}`},
		{"x=68756e7465723268756e74657232&y=hunter2%68unter2", "x=[REDACTED]&y=[REDACTED]"},
		{wrapped("hunter2hunter2", 5, "\n") + "\n\nend", "[REDACTED]I=\n\nend"},
		{wrapped("hunter2hunter2", 5, "\r\n") + "\r\n\r\nend", "[REDACTED]I=\r\n\r\nend"},
	} {
		for size := 1; size <= len(tc.text); size++ {
			if got := flow(&r, tc.text, size); got != tc.want {
				t.Errorf("Flow(%q) in pieces of %d = %q, want %q", tc.text, size, got, tc.want)
			}
		}
	}
	f := r.Flow()
	if got := f.Push("as it comes "); got != "as it comes " {
		t.Errorf("Push = %q, want all of it at once", got)
	}
	if got := f.Push("hunter2hun"); got != "" {
		t.Errorf("Push = %q, want it to be held back", got)
	}
	if got := f.Rest(true); got != secret.Redacted {
		t.Errorf("Rest of what was cut off = %q", got)
	}
	var none *secret.Redactor
	if f := none.Flow(); f.Push("hunter2hunter2") != "hunter2hunter2" || f.Rest(true) != "" || none.Text("x") != "x" || none.Piece("x") != "x" {
		t.Error("without a Redactor something is hidden")
	}
}

func FuzzFlow(f *testing.F) {
	f.Add("hunter2hunter2", "a hunter2hunter2 b", uint8(3))
	f.Add("pa\"ss\\wörd", `"pa\"ss\\w\u00f6rd"%70a`, uint8(1))
	f.Add("linelineline", "bGluZWxp\nbmVs\n aW5l", uint8(2))
	f.Fuzz(func(t *testing.T, value, text string, size uint8) {
		var r secret.Redactor
		r.Add([]byte(value))
		got := flow(&r, text, int(size)+1)
		if len(value) >= 6 && !strings.Contains(secret.Redacted, value) && strings.Contains(strings.ReplaceAll(got, secret.Redacted, "\x00\x01"), value) {
			t.Errorf("Flow(%q) in pieces of %d = %q shows %q", text, int(size)+1, got, value)
		}
		if whole := flow(&r, text, len(text)+1); whole != r.Text(text) {
			t.Errorf("Flow(%q) in one piece = %q, want %q", text, whole, r.Text(text))
		}
	})
}
