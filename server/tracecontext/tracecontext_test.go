package tracecontext_test

import (
	"net/http"
	"strings"
	"testing"

	"agentd/server/tracecontext"
)

const (
	trace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	parent = "00f067aa0ba902b7"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		what    string
		parents []string
		want    string // the traceparent that is sent on; empty: there is no trace
	}{
		{"sampled", []string{"00-" + trace + "-" + parent + "-01"}, "00-" + trace + "-" + parent + "-01"},
		{"not sampled", []string{"00-" + trace + "-" + parent + "-00"}, "00-" + trace + "-" + parent + "-00"},
		{"unknown flags", []string{"00-" + trace + "-" + parent + "-fe"}, "00-" + trace + "-" + parent + "-00"},
		{"all flags", []string{"00-" + trace + "-" + parent + "-ff"}, "00-" + trace + "-" + parent + "-01"},
		{"space around", []string{" 00-" + trace + "-" + parent + "-01\t"}, "00-" + trace + "-" + parent + "-01"},
		{"later version", []string{"cc-" + trace + "-" + parent + "-01"}, "00-" + trace + "-" + parent + "-01"},
		{"later version with more", []string{"cc-" + trace + "-" + parent + "-01-what-the-future"}, "00-" + trace + "-" + parent + "-01"},
		{"later version that runs on", []string{"cc-" + trace + "-" + parent + "-01.what"}, ""},
		{"version 00 with more", []string{"00-" + trace + "-" + parent + "-01-more"}, ""},
		{"version ff", []string{"ff-" + trace + "-" + parent + "-01"}, ""},
		{"none", nil, ""},
		{"two", []string{"00-" + trace + "-" + parent + "-01", "00-" + trace + "-" + parent + "-01"}, ""},
		{"empty", []string{""}, ""},
		{"upper case", []string{"00-" + strings.ToUpper(trace) + "-" + parent + "-01"}, ""},
		{"trace of zeros", []string{"00-" + strings.Repeat("0", 32) + "-" + parent + "-01"}, ""},
		{"span of zeros", []string{"00-" + trace + "-0000000000000000-01"}, ""},
		{"short", []string{"00-" + trace[1:] + "-" + parent + "-01"}, ""},
		{"flags of one digit", []string{"00-" + trace + "-" + parent + "-1"}, ""},
		{"flags that are no digits", []string{"00-" + trace + "-" + parent + "-0x"}, ""},
		{"other separator", []string{"00_" + trace + "-" + parent + "-01"}, ""},
	} {
		got := tracecontext.Of(http.Header{tracecontext.Parent: c.parents, tracecontext.State: {"a=1"}})
		if got.String() != c.want || (got.State != "") != (c.want != "") {
			t.Errorf("%s: Of gives %q with state %q, want %q", c.what, got, got.State, c.want)
		}
	}
}

func TestState(t *testing.T) {
	long := func(key string, n int) string { return key + "=" + strings.Repeat("x", n-len(key)-1) }
	many := func(n int) string {
		var members []string
		for i := range n {
			members = append(members, "k"+string(rune('a'+i/26))+string(rune('a'+i%26))+"=1")
		}
		return strings.Join(members, ",")
	}
	for _, c := range []struct {
		what  string
		lines []string
		want  string
	}{
		{"one", []string{"rojo=00f067aa0ba902b7"}, "rojo=00f067aa0ba902b7"},
		{"several lines, spaces and empty members", []string{"a=1 , ,\tb=2", "c=3,"}, "a=1,b=2,c=3"},
		{"tenant and all characters", []string{"0t_-*/@sys=!~ x"}, "0t_-*/@sys=!~ x"},
		{"32 members", []string{many(32)}, many(32)},
		{"33 members", []string{many(33)}, ""},
		{"a key twice", []string{"a=1,b=2,a=3"}, ""},
		{"upper case", []string{"A=1"}, ""},
		{"no value", []string{"a"}, ""},
		{"empty value", []string{"a="}, ""},
		{"= in the value", []string{"a=b=c"}, ""},
		{"not ASCII", []string{"a=é"}, ""},
		{"a line break", []string{"a=1\nb"}, ""},
		{"a key that is too long", []string{strings.Repeat("k", 257) + "=1"}, ""},
		{"a value that is too long", []string{"k=" + strings.Repeat("1", 257)}, ""},
		{"512 bytes", []string{long("a", 200) + "," + long("b", 200) + "," + long("c", 110)}, long("a", 200) + "," + long("b", 200) + "," + long("c", 110)},
		{"long members go first", []string{long("a", 200) + ",b=2," + long("c", 200) + "," + long("d", 120)}, long("a", 200) + ",b=2," + long("d", 120)},
		{"then those at the end", []string{long("a", 128) + "," + long("b", 128) + "," + long("c", 128) + "," + long("d", 128) + ",e=1"},
			long("a", 128) + "," + long("b", 128) + "," + long("c", 128)},
	} {
		h := http.Header{tracecontext.Parent: {"00-" + trace + "-" + parent + "-01"}, tracecontext.State: c.lines}
		if got := tracecontext.Of(h).State; c.what != "512 bytes" && got != c.want || len(got) > 512 {
			t.Errorf("%s: the state is %q of %d bytes, want %q", c.what, got, len(got), c.want)
		}
	}
}

// A header that the configuration gives stays, and what is carried without a span says nothing.
func TestInject(t *testing.T) {
	c := tracecontext.Of(http.Header{tracecontext.Parent: {"00-" + trace + "-" + parent + "-01"}, tracecontext.State: {"a=1"}})
	h := http.Header{}
	tracecontext.From(tracecontext.With(t.Context(), c)).Inject(h)
	if h.Get("traceparent") != c.String() || h.Get("tracestate") != "a=1" {
		t.Errorf("Inject sets %v", h)
	}
	own := http.Header{tracecontext.Parent: {"own"}}
	c.Inject(own)
	if len(own) != 1 || own.Get("traceparent") != "own" {
		t.Errorf("Inject replaces a header of the configuration: %v", own)
	}
	none := http.Header{}
	tracecontext.From(t.Context()).Inject(none)
	tracecontext.Context{TraceID: trace}.Inject(none)
	if len(none) != 0 {
		t.Errorf("Inject without a span sets %v", none)
	}
}

// Whatever the headers, what is sent on is valid, and reads as the same.
func FuzzTrace(f *testing.F) {
	f.Add("00-"+trace+"-"+parent+"-01", "a=1,b=2")
	f.Add("cc-"+trace+"-"+parent+"-00-x", "fw529a3039@dt=FfAAAABBBB,"+strings.Repeat("x", 300))
	f.Add("ff-"+trace+"-"+parent+"-01", ",,,")
	f.Fuzz(func(t *testing.T, parent, state string) {
		c := tracecontext.Of(http.Header{tracecontext.Parent: {parent}, tracecontext.State: {state}})
		h := http.Header{}
		c.Inject(h)
		if len(h) == 0 {
			if c != (tracecontext.Context{}) {
				t.Errorf("Of(%q, %q) = %+v, and Inject sets nothing", parent, state, c)
			}
			return
		}
		if got := tracecontext.Of(h); got != c || len(c.State) > 512 || len(h.Get("traceparent")) != 55 {
			t.Errorf("Of(%q, %q) = %+v, and what Inject makes of it %v reads as %+v", parent, state, c, h, got)
		}
	})
}
