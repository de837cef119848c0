package proc_test

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"agentd/server/proc"
)

// shown hides nothing.
type shown struct{}

func (shown) Push(piece string) string { return piece }
func (shown) Rest(bool) string         { return "" }

// texts is all of in, read in pieces of size bytes.
func texts(in string, size int) (got string, err error) {
	var each []io.Reader
	for rest := in; rest != ""; rest = rest[min(size, len(rest)):] {
		each = append(each, strings.NewReader(rest[:min(size, len(rest))]))
	}
	var all strings.Builder
	for text, e := range proc.Texts(io.MultiReader(each...), shown{}) {
		all.WriteString(text)
		err = e
	}
	return all.String(), err
}

func TestTextsDoNotDependOnTheCuts(t *testing.T) {
	for _, in := range []string{"", "abc", "grüße, 世界 🎉", "\xff\xfe", "a\xe4\xb8", "\xe4\xb8a\x96", "\xf0\x9f\x8e", "\x80\x80\x80\x80\x80", "\xed\xa0\x80",
		strings.Repeat("世", 20<<10)} {
		for size := 1; size <= min(len(in), 10)+1; size++ {
			if got, err := texts(in, size); got != string([]rune(in)) || err != nil {
				t.Errorf("Texts(%.40q in pieces of %d) = %.40q, %v", in, size, got, err)
			}
		}
	}
}

func TestTextsEndWithTheError(t *testing.T) {
	var all []string
	for text, err := range proc.Texts(io.MultiReader(strings.NewReader("a\xe4"), iotest.ErrReader(io.ErrNoProgress)), shown{}) {
		if err != nil {
			text = err.Error()
		}
		all = append(all, text)
	}
	if got := strings.Join(all, "|"); got != "a|"+io.ErrNoProgress.Error() {
		t.Errorf("Texts() = %q", got)
	}
}

func FuzzTexts(f *testing.F) {
	f.Add("grüße 世界 \xf0\x9f", 1)
	f.Fuzz(func(t *testing.T, in string, size int) {
		if size < 1 {
			return
		}
		if got, err := texts(in, size); got != string([]rune(in)) || err != nil {
			t.Errorf("Texts(%q in pieces of %d) = %q, %v", in, size, got, err)
		}
	})
}
