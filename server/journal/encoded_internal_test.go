package journal

import (
	"fmt"
	"testing"

	"agentd/store"
)

func TestEncodingsAreBounded(t *testing.T) {
	var e encodings
	held := func() (n, size int) {
		for _, m := range []map[encodingKey]encoding{e.recent, e.earlier} {
			for _, v := range m {
				n, size = n+1, size+len(v.json)
			}
		}
		return n, size
	}
	asked := encodingKey{"asked", true}
	e.keep(asked, encoding{0, 1, []byte("{}")}, 0)
	for i := range 40_000 {
		body := make([]byte, i%100)
		if i%1000 == 0 {
			body = make([]byte, maxEncoding)
		}
		e.keep(encodingKey{fmt.Sprint(i), i%2 == 0}, encoding{0, 1, body}, 0)
		if v, _ := e.get(asked); v.version != 1 {
			t.Fatalf("what is asked for all the time is gone after %d others", i)
		}
		if i%1000 > 0 {
			continue
		}
		if n, size := held(); size > 2*maxEncodings || n > 2*maxEncodings/entrySize {
			t.Fatalf("%d entries of %d bytes are held, want at most %d and %d", n, size, 2*maxEncodings/entrySize, 2*maxEncodings)
		}
	}
	e.keep(encodingKey{"long", true}, encoding{0, 1, make([]byte, maxEncoding+1)}, 0)
	if v, _ := e.get(encodingKey{"long", true}); v.json != nil {
		t.Error("an encoding that is too long is held")
	}
}

func TestEncodingsForget(t *testing.T) {
	var e encodings
	erased := []*store.Run{{ID: "erased"}}
	for _, whole := range []bool{true, false} {
		at := encodingKey{"erased", whole}
		_, began := e.get(at)
		e.keep(at, encoding{0, 1, []byte("{}")}, began)
		if v, _ := e.get(at); v.json == nil {
			t.Fatal("it is not kept")
		}
		e.forget(erased)
		if v, _ := e.get(at); v.json != nil {
			t.Error("it is held after it was forgotten")
		}
		e.keep(at, encoding{0, 1, []byte("{}")}, began)
		if v, _ := e.get(at); v.json != nil {
			t.Error("what was read before it was forgotten is kept after")
		}
	}
	if e.size != 0 {
		t.Errorf("size = %d, want 0", e.size)
	}
}
