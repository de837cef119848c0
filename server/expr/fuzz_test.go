package expr_test

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentd/server/expr"
	"agentd/server/fuzztest"
)

// cost is what an evaluation may spend: copies and garbage beside the values that MaxBytes is for.
var cost = fuzztest.Cost{Base: 8 * expr.MaxBytes, Time: time.Second}

// A recorder is a scope that notes what is read of it.
type recorder struct {
	expr.Map
	reads []expr.Read
}

func (r *recorder) Value(name, key string) (any, bool, error) {
	r.reads = append(r.reads, expr.Read{Var: name, Key: key})
	return r.Map.Value(name, key)
}

// checkError reports an error that has no place in the source, or another code.
func checkError(t *testing.T, src string, err error, codes ...string) {
	t.Helper()
	e, ok := errors.AsType[*expr.Error](err)
	if !ok || e.Message == "" || !slices.Contains(codes, e.Code) || e.Offset < 0 || e.Offset > len(src) || e.Line < 1 || e.Column < 1 {
		t.Errorf("%q gives %#v, want an error with a place in it and a code of %q", src, err, codes)
	}
}

// checkReads reports what an evaluation has read, and its program does not name.
func checkReads(t *testing.T, src string, in *recorder, reads []expr.Read) {
	t.Helper()
	for _, read := range in.reads {
		if !slices.Contains(reads, read) {
			t.Errorf("%q reads %v, and names %v only", src, read, reads)
		}
	}
}

func fuzzScope(t *testing.T, document string) *recorder {
	in := &recorder{Map: scope(t)}
	if v, err := expr.Decode([]byte(document)); err == nil {
		in.Map["input"] = v
	}
	return in
}

func FuzzCompile(f *testing.F) {
	for _, src := range []string{
		condition, "state.order.lines.map(l, l.ok, l.id)", "default(input.a[0].b, {1: 'x', true: -2.5e3}) in [1, 'a']", "json('{}') == {} ? now.getHours('+01:00') : duration('1s')",
		"text(input) + string(1.5) + '''a''' + r'\\' + \"\\u00e9\"", "input.split(',').join('-').matches('(a|b)*' + input)", "has(input.a.b) && !(index % 3 >= -2)", "math.greatest(input) - math.abs(-1)",
		"input.replace('a', input).substring(1, 2).charAt(0).indexOf('', 1)", "[1, 2].exists_one(x, [x].all(y, y > x))", "type(timestamp(0) + duration('1h')) == google.protobuf.Timestamp",
	} {
		f.Add(src, `{"a":[{"b":"c"}],"1":2.5}`)
		f.Add(src, `"a,b,ä"`)
	}
	f.Fuzz(func(t *testing.T, src, document string) {
		cost.Check(t, len(src), func() {
			p, err := expr.Compile(src, vars)
			if err != nil {
				checkError(t, src, err, "")
				return
			}
			in := fuzzScope(t, document)
			v, err := p.Eval(in)
			checkReads(t, src, in, p.Reads())
			if err != nil {
				checkError(t, src, err, expr.CodeFailed, expr.CodeNotSerializable)
				return
			}
			if _, isBool := v.(bool); isBool {
				if _, err := expr.Condition(src, vars); err != nil {
					t.Errorf("%q gives %v, and Condition() = %v", src, v, err)
				}
			}
			text, err := expr.Encode(v)
			if err == nil {
				_, err = expr.Decode(text)
			}
			if e, ok := errors.AsType[*expr.Error](err); err != nil && (!ok || e.Code != expr.CodeNotSerializable) {
				t.Errorf("the JSON of %q is %s, %v", src, text, err)
			}
			if again, err := p.Eval(in); err != nil || !reflect.DeepEqual(again, v) && v == v {
				if other, _ := expr.Encode(again); text != nil && !bytes.Equal(other, text) {
					t.Errorf("%q gives %v and then %v, %v", src, v, again, err)
				}
			}
		})
	})
}

// textAt is the text that the path of an error names.
func textAt(v any, err error) string {
	e, _ := errors.AsType[*expr.Error](err)
	for _, name := range strings.Split(e.Path, "/")[1:] {
		switch of := v.(type) {
		case []any:
			i, _ := strconv.Atoi(name)
			v = of[i]
		case map[string]any:
			v = of[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
		}
	}
	text, _ := v.(string)
	return text
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		`"${ input.a }"`, `"a ${ {'b': '}'} } c $${ d ${1}${now}"`, `{"x":["${ state.order }",{"y/~":"${ 1 / 0 }"}],"z":1}`, `"$$${ 1 }$"`, `"${"`, `"${ 1 "`, `"${ [1].map(x, {x: \"${\"}) } $"`,
	} {
		f.Add(s, `{"a":1.0}`)
	}
	f.Fuzz(func(t *testing.T, raw, document string) {
		v, err := expr.Decode([]byte(raw))
		if err != nil {
			return
		}
		cost.Check(t, len(raw), func() {
			template, err := expr.CompileTemplate(v, vars)
			if err != nil {
				checkError(t, textAt(v, err), err, "")
				return
			}
			in := fuzzScope(t, document)
			got, err := template.Eval(in)
			checkReads(t, raw, in, template.Reads())
			switch {
			case err != nil:
				checkError(t, textAt(v, err), err, expr.CodeFailed, expr.CodeNotSerializable)
			case template.Constant() && len(template.Reads()) > 0:
				t.Errorf("%s is constant, and reads %v", raw, template.Reads())
			case template.Constant() && !bytes.Contains([]byte(raw), []byte("$")) && !reflect.DeepEqual(got, v):
				t.Errorf("%s gives %v, want itself", raw, got)
			}
		})
	})
}

// What Encode writes is read back as the same value, and written in the same way.
func FuzzDecodeEncode(f *testing.F) {
	for _, s := range []string{`{"b":1,"a":[1.0,-0.0,1e400,12345678901234567890,1E5,0.1]}`, `"\ud800\u0000é\"<>&"`, `[true,null,[],{}]`, "9223372036854775808", "-9223372036854775808", `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	for _, text := range fuzztest.JSON() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var v any
		var err error
		// The dearest value is {"":0}: a map for seven bytes.
		fuzztest.Cost{PerByte: 80}.Check(t, len(raw), func() { v, err = expr.Decode(raw) })
		if err != nil {
			return
		}
		text, err := expr.Encode(v)
		if err != nil {
			t.Fatalf("Encode(Decode(%q)) = %v", raw, err)
		}
		again, err := expr.Decode(text)
		if err != nil || !reflect.DeepEqual(again, v) {
			t.Fatalf("Decode(%s) = %v, %v, want %v", text, again, err, v)
		}
		if second, err := expr.Encode(again); !bytes.Equal(second, text) {
			t.Errorf("Encode(Decode(%s)) = %s, %v", text, second, err)
		}
	})
}
