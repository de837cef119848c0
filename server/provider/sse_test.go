package provider

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// datas reads all events, each followed by a bar, and the error that ends them.
func datas(r io.Reader) (string, error) {
	var b strings.Builder
	stream := newEvents(r)
	for {
		data, err := stream.next()
		if err != nil {
			return b.String(), err
		}
		b.Write(data)
		b.WriteByte('|')
	}
}

func TestEvents(t *testing.T) {
	for in, want := range map[string]string{
		"":                                "",
		"\n\n\n":                          "",
		"data: a\n\ndata: b\n\n":          "a|b|",
		"data: a\r\n\r\ndata: b\r\n\r\n":  "a|b|",
		"data: a\n\ndata: b":              "a|b|",
		"data:a\n\ndata:  b\n\n":          "a| b|",
		"data: a\ndata: b\ndata\n\n":      "a\nb\n|",
		"data:\n\n":                       "|",
		": ping\n\nevent: x\nid: 1\n\n":   "",
		": ping\ndata: a\n: pong\n\n":     "a|",
		"event: x\ndata: a\nretry: 9\n\n": "a|",
		"database: a\n\n":                 "",
	} {
		for _, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in))} {
			if got, err := datas(r); got != want || err != io.EOF {
				t.Errorf("events(%q) = %q, %v, want %q", in, got, err, want)
			}
		}
	}
	broken := io.MultiReader(strings.NewReader("data: a\n\ndata: {\"half"), iotest.ErrReader(io.ErrUnexpectedEOF))
	if got, err := datas(broken); got != "a|" || err != io.ErrUnexpectedEOF {
		t.Errorf("events(cut) = %q, %v, want the whole event and the reader's error", got, err)
	}
}

func FuzzEvents(f *testing.F) {
	for _, s := range []string{"data: a\n\ndata: b\r\n\r\n", ": x\ndata\ndata:\n\ndata: z", "\r\n\r\n\r", "data: [DONE]\n\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		whole, err := datas(strings.NewReader(in))
		pieces, errPieces := datas(iotest.OneByteReader(strings.NewReader(in)))
		if whole != pieces || err != errPieces {
			t.Errorf("events(%q) = %q, %v at once and %q, %v in bytes", in, whole, err, pieces, errPieces)
		}
		if crlf, _ := datas(strings.NewReader(strings.ReplaceAll(in, "\n", "\r\n"))); !strings.Contains(in, "\r") && crlf != whole {
			t.Errorf("events(%q) = %q with LF and %q with CRLF", in, whole, crlf)
		}
	})
}
