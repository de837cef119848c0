package sse_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"agentd/server/fuzztest"
	"agentd/server/sse"
)

func all(r io.Reader, keepCut bool) (out string, err error) {
	e := sse.NewReader(r, 100)
	e.KeepCut = keepCut
	for {
		ev, err := e.Next()
		if err != nil {
			return strings.TrimSuffix(out, " "), err
		}
		out += fmt.Sprintf("%s/%s/%q ", ev.Type, ev.ID, ev.Data)
	}
}

func TestReader(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
		err            error
	}{
		{"fields", "event: a\nid: 7\ndata: x\n\ndata:y\n\n", `a/7/"x" //"y"`, io.EOF},
		{"line ends", "data: 1\r\n\r\ndata: 2\r\rdata: 3\n\n", `//"1" //"2" //"3"`, io.EOF},
		{"several lines of data", "data: a\ndata:\ndata: b\n\n", `//"a\n\nb"`, io.EOF},
		{"comments and other fields", ": hi\nretry: 5\nx\ndata: a\n\n", `//"a"`, io.EOF},
		{"without data", "event: a\n\nid: 1\n\n: c\n\ndata: z\n\n", `//"z"`, io.EOF},
		{"byte order mark", "\xEF\xBB\xBFdata: a\n\n", `//"a"`, io.EOF},
		{"empty data", "data\n\n", `//""`, io.EOF},
		{"long line", "data: " + strings.Repeat("x", 200) + "\n\n", ``, sse.ErrTooLong},
		{"long event", strings.Repeat("data: "+strings.Repeat("x", 60)+"\n", 2) + "\n", ``, sse.ErrTooLong},
		{"cut in a line", "data: a\n\ndata: b", `//"a"`, io.EOF},
		{"cut before the blank line", "data: a\n\ndata: b\n", `//"a"`, io.EOF},
	} {
		for _, r := range []io.Reader{strings.NewReader(tc.in), iotest.OneByteReader(strings.NewReader(tc.in))} {
			if got, err := all(r, false); got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("%s: %s, %v; want %s, %v", tc.name, got, err, tc.want, tc.err)
			}
		}
	}
	for in, want := range map[string]string{"data: a\n\ndata: b": `//"a" //"b"`, "data: b\n": `//"b"`, "event: x\n": ``, "data: a\n\n": `//"a"`} {
		if got, err := all(strings.NewReader(in), true); got != want || err != io.EOF {
			t.Errorf("KeepCut %q: %s, %v; want %s", in, got, err, want)
		}
	}
	boom := errors.New("boom")
	if got, err := all(io.MultiReader(strings.NewReader("data: a\n"), iotest.ErrReader(boom)), true); got != "" || !errors.Is(err, boom) {
		t.Errorf("after a read error: %s, %v; want nothing and the error", got, err)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("event: a\r\ndata: x\r\n\r\n: c\n\ndata"))
	f.Fuzz(func(t *testing.T, in []byte) {
		// Beside 16 KiB to read with, all may be one text.
		fuzztest.Check(t, len(in), func() { read(in) })
		whole, err := all(strings.NewReader(string(in)), false)
		pieces, err2 := all(iotest.OneByteReader(strings.NewReader(string(in))), false)
		if whole != pieces || !errors.Is(err2, err) {
			t.Errorf("%q: %s, %v in one piece; %s, %v byte by byte", in, whole, err, pieces, err2)
		}
	})
}

// read reads all events.
func read(in []byte) {
	r := sse.NewReader(bytes.NewReader(in), 1<<20)
	for {
		if _, err := r.Next(); err != nil {
			return
		}
	}
}

func TestReaderCost(t *testing.T) {
	for name, text := range map[string][]byte{
		"one text":   fuzztest.Fill("data: ", func(int) string { return "x" }, "\n\n"),
		"lines":      fuzztest.Fill("", func(int) string { return "data:\n" }, "\n"),
		"line ends":  fuzztest.Fill("", func(int) string { return "\r" }, "\n"),
		"events":     fuzztest.Fill("", func(int) string { return "data:\n\n" }, ""),
		"types":      fuzztest.Fill("", func(int) string { return "event: abcdefgh\n" }, "data\n\n"),
		"a long cut": fuzztest.Fill("data:", func(int) string { return ":" }, ""),
	} {
		fuzztest.Cost{PerByte: 8}.Check(t, len(text), func() { read(text) })
		if t.Failed() {
			t.Fatal(name)
		}
	}
}
