package secret

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

func testBundle(values string) *bundle {
	b := &bundle{key: bytes.Repeat([]byte{7}, keySize), salt: [saltSize]byte{1, 2, 3}}
	if err := b.decode([]byte(values)); err != nil {
		panic(err)
	}
	return b
}

func TestBundleRoundTrip(t *testing.T) {
	b := testBundle(`{"values": {"a": "x", "odd": {"list": ["u", {"w~/": "deep"}]}}, "meta": {"a": {"createdAt": "t0", "more": 1}, "gone": {}, "odd": 3}}`)
	first, err := b.seal()
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.seal()
	if err != nil || bytes.Equal(first[4+saltSize:], second[4+saltSize:]) {
		t.Errorf("seal() twice = the same, %v; want another nonce", err)
	}
	if got := hex.EncodeToString(first[:4+3]); got != "00000001010203" {
		t.Errorf("seal() begins with %s, want the magic and the salt", got)
	}
	got, err := open(first, nil, b)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "x", "/a": "x", "/odd/list/0": "u", "/odd/list/1/w~0~1": "deep"} {
		if v, found, err := got.find(name); string(v) != want || !found || err != nil {
			t.Errorf("find(%q) = %q, %v, %v, want %q", name, v, found, err, want)
		}
	}
	for _, name := range []string{"", "b", "/b", "/odd/list/2", "/odd/list/-1", "/odd/list/00", "/a/b", "/", "//"} {
		if v, found, err := got.find(name); found || err != nil {
			t.Errorf("find(%q) = %q, %v, %v, want nothing", name, v, found, err)
		}
	}
	for _, name := range []string{"odd", "/odd", "/odd/list"} {
		if _, _, err := got.find(name); err == nil {
			t.Errorf("find(%q) gives no error, want one: it is no text", name)
		}
	}
	if got.meta["a"].CreatedAt != "t0" || len(got.meta) != 1 {
		t.Errorf("meta = %v, want that of a alone", got.meta)
	}
}

func TestBundleDamage(t *testing.T) {
	b := testBundle(`{"values": {"a": "hunter2hunter2"}}`)
	sealed, err := b.seal()
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 0x40
		if i >= 4 && i < 4+saltSize { // which changes the key
			continue
		}
		if _, err := open(bad, nil, b); err == nil {
			t.Errorf("a file with byte %d changed opens", i)
		}
	}
	for n := range len(sealed) {
		if _, err := open(sealed[:n], nil, b); err == nil {
			t.Errorf("the first %d bytes of a file open", n)
		}
	}
	for _, plain := range []string{"", "{}", "[]", `{"values": 1}`, `{"values": {"a": "hunter2"`} {
		if err := new(bundle).decode([]byte(plain)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("decode(%q) = %v, want an error without values", plain, err)
		}
	}
}

// TestBundleVector holds the format to a file that was sealed by another implementation of it.
func TestBundleVector(t *testing.T) {
	sealed, err := os.ReadFile("testdata/vector.kse")
	if err != nil {
		t.Fatal(err)
	}
	b, err := open(sealed, []byte("correct horse battery staple"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if v, found, err := b.find("db/password"); string(v) != "päss\nword" || !found || err != nil {
		t.Errorf("find(db/password) = %q, %v, %v", v, found, err)
	}
}

func FuzzBundle(f *testing.F) {
	b := testBundle(`{"values": {"a": "x"}, "meta": {"a": {}}}`)
	sealed, err := b.seal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed, []byte(`{"values": {"a": "x"}, "meta": {}}`), "/a/b~1c")
	f.Add(sealed[:headerSize+tagSize], []byte(`{"values": {"a": [1, {"b": null}]}}`), "/a/1/b")
	f.Add([]byte{0, 0, 0, 1}, []byte(`{"values": null}`), "")
	f.Fuzz(func(t *testing.T, raw, plain []byte, name string) {
		if len(raw) >= headerSize { // another salt would have another key, which is slow to derive
			raw = slices.Concat(raw[:4], b.salt[:], raw[4+saltSize:])
		}
		if opened, err := open(raw, nil, b); err == nil && opened.values == nil {
			t.Error("open() gives no values and no error")
		}
		got := &bundle{key: b.key}
		if got.decode(plain) != nil {
			return
		}
		v, found, err := got.find(name)
		if found && err == nil && len(v) > len(plain) {
			t.Errorf("find(%q) in %q = %q, longer than all", name, plain, v)
		}
		out, err := got.seal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := open(out, nil, got)
		if err != nil || len(again.values) != len(got.values) {
			t.Errorf("open(seal(%q)) = %v, %v", plain, again, err)
		}
		a, _ := json.Marshal(again.values)
		if !json.Valid(a) {
			t.Errorf("values %q", a)
		}
	})
}
