package message

import (
	"encoding/json"
	"strings"
	"sync"
	"unicode/utf8"
)

// Encode is the one JSON encoder of transcripts and events: compact, without HTML escaping and without a final
// newline.
func Encode(v any) ([]byte, error) { return EncodeAfter("", v) }

// EncodeAfter is what Encode makes of a value, with a text in front of it.
func EncodeAfter(front string, v any) ([]byte, error) {
	e := encoders.Get().(*encoder)
	e.front = front
	err := e.json.Encode(v)
	out := e.out
	e.front, e.out = "", nil
	encoders.Put(e)
	return out, err
}

// AppendText adds to b what Encode makes of a text.
func AppendText(b []byte, s string) []byte {
	plain := utf8.ValidString(s) && !strings.Contains(s, "\u2028") && !strings.Contains(s, "\u2029")
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= ' ' && s[i] != '"' && s[i] != '\\'
	}
	if plain {
		return append(append(append(b, '"'), s...), '"')
	}
	quoted, _ := Encode(s)
	return append(b, quoted...)
}

// encoders are shared, so that what is encoded needs one piece of memory of its size.
var encoders = sync.Pool{New: func() any {
	e := new(encoder)
	e.json = json.NewEncoder(e)
	e.json.SetEscapeHTML(false)
	return e
}}

// encoder keeps a copy of what its JSON encoder writes, which is one piece with a newline at its end.
type encoder struct {
	json  *json.Encoder
	front string
	out   []byte
}

func (e *encoder) Write(p []byte) (int, error) {
	p = p[:len(p)-1]
	e.out = append(append(make([]byte, 0, len(e.front)+len(p)), e.front...), p...)
	return len(p) + 1, nil
}
