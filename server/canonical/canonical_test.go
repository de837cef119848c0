package canonical

import (
	"cmp"
	"slices"
	"testing"
	"unicode/utf16"
)

func TestNumber(t *testing.T) {
	for want, f := range map[string]float64{ // RFC 8785 appendix B, and where the forms change
		"0": 0, "5e-324": 5e-324, "1.7976931348623157e+308": 1.7976931348623157e308, "9007199254740992": 9007199254740992,
		"295147905179352830000": 295147905179352830000, "9.999999999999997e+22": 9.999999999999997e22, "1e+21": 1e21, "999999999999999900000": 999999999999999900000,
		"9.999999999999997e-7": 9.999999999999997e-7, "0.000001": 1e-6, "-1.5": -1.5, "1e-10": 1e-10, "1e+100": 1e100,
	} {
		if got := string(appendNumber(nil, f)); got != want {
			t.Errorf("AppendNumber(%g) = %s, want %s", f, got, want)
		}
	}
}

// Compare is the order of UTF-16 units.
func FuzzCompare(f *testing.F) {
	for _, s := range []string{"", "a", "\U0001f600", "\ue000", "\uffff", "é", "\ud7ff"} {
		f.Add(s, "\ue000b")
		f.Add("a\U00010000", "a"+s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		a, b = string([]rune(a)), string([]rune(b)) // valid UTF-8
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		if got := Compare(a, b); cmp.Compare(got, 0) != want {
			t.Errorf("Compare(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}
