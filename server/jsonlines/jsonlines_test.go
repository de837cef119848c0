package jsonlines_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"agentd/server/jsonlines"
)

func TestRead(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for _, tc := range []struct {
		text    string
		line, n int
		want    []string
		err     error
	}{
		{"a\r\n\n" + long + "\nend", 1 << 20, 1 << 20, []string{"a\r\n", "\n", long + "\n", "end"}, nil},
		{"", 10, 10, nil, nil},
		{"a\n" + long, 1 << 10, 1 << 20, []string{"a\n"}, jsonlines.ErrLine},
		{"a\nb\n", 10, 3, nil, jsonlines.ErrFile},
		{"a\nb\n", 10, 4, []string{"a\n", "b\n"}, nil},
	} {
		var got []string
		var failed error
		for line, err := range jsonlines.Read(strings.NewReader(tc.text), tc.line, tc.n) {
			if failed = err; err == nil {
				got = append(got, string(line))
			}
		}
		if !slices.Equal(got, tc.want) || failed != tc.err {
			t.Errorf("Read(%.20q, %d, %d) = %.40q, %v; want %.40q, %v", tc.text, tc.line, tc.n, got, failed, tc.want, tc.err)
		}
	}
}

// full takes nothing.
type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestWriter(t *testing.T) {
	var b bytes.Buffer
	w := jsonlines.NewWriter(&b, "head")
	w.Write(json.RawMessage("\"body \xff\""))
	lines, sum := w.Lines, w.Checksum()
	if err := w.Close(sum); err != nil || lines != 1 || b.String() != "\"head\"\n\"body \uFFFD\"\n\""+sum+"\"\n" {
		t.Errorf("the file is %q with %d lines in its body, %v", b.String(), lines, err)
	}
	body := jsonlines.NewBody()
	if body.Add([]byte("\"body \uFFFD\"\n")); body.Checksum() != sum {
		t.Errorf("Checksum() = %s, want %s, as of the lines without head and footer", body.Checksum(), sum)
	}
	w = jsonlines.NewWriter(full{}, "head")
	for range 10 {
		w.Write(strings.Repeat("x", 64<<10))
	}
	if err := w.Close("footer"); err != errFull || w.Err != errFull {
		t.Errorf("Close = %v, want the error of the file", err)
	}
}
