package expr_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"agentd/server/expr"
)

func TestTemplate(t *testing.T) {
	for raw, want := range map[string]any{
		`"${ state.order.total }"`:               int64(120),
		`"${ input.whole }"`:                     2.0,
		`" ${ input.whole }"`:                    " 2.0",
		`"${state.lines}${state.note}"`:          "[1,2,3]null",
		`"a $${x} $ $5 {} ${ {'b': '}'}.b }"`:    "a ${x} $ $5 {} }",
		`"$$${1}"`:                               "$${1}",
		`"${ '${' + \"}\" }"`:                    "${}",
		`"at ${ now }"`:                          "at 2026-11-22T18:00:00Z",
		`"${ now }"`:                             scope(t)["now"],
		`""`:                                     "",
		`{"a":["${ index }",1,null],"${b}":2}`:   map[string]any{"a": []any{int64(4), int64(1), nil}, "${b}": int64(2)},
		`"${ {1: true, 'a': [1.5]} } "`:          `{"1":true,"a":[1.5]} `,
		`"${ // }\n 1 }"`:                        int64(1),
		`"${ input.orderId }${ input.orderId }"`: "a1a1",
	} {
		template, err := expr.CompileTemplate(decode(t, raw), vars)
		if err != nil {
			t.Errorf("CompileTemplate(%s) = %v", raw, err)
			continue
		}
		if got, err := template.Eval(scope(t)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Eval(%s) = %#v, %v, want %#v", raw, got, err, want)
		}
	}
	for raw, want := range map[string]string{
		`{"a/b":[1,"x\n${ 1 + }"]}`:     "/a~1b/1: 2:8: } stands where a value is expected.",
		`"${ 1"`:                        "1:5: The expression ends where an operator or } is expected.",
		`"${ 1 2 }"`:                    "1:6: A literal stands where an operator or } is expected.",
		`"${}"`:                         "1:3: } stands where a value is expected.",
		`"${ '}"`:                       "1:4: The text does not end.",
		`{"a":"é ${ state.lines[7] }"}`: "/a: 1:17: There is no element 7 in a list of 3.",
		`["a ${ type(1) }"]`:            "/0: 1:5: JSON has nothing for a type.",
	} {
		template, err := expr.CompileTemplate(decode(t, raw), vars)
		if err == nil {
			_, err = template.Eval(scope(t))
		}
		if err == nil || err.Error() != want {
			t.Errorf("%s gives %v, want %s", raw, err, want)
		}
	}
}

func TestReads(t *testing.T) {
	template, err := expr.CompileTemplate(decode(t, `["${ state.order.total + state['note'] }","${ input } ${ state[input.a].map(index, index + item) } ${ has(error.code) ? default(session, now) : state.order }"]`),
		expr.Vars{"state": {"order", "note"}, "input": nil, "error": nil, "session": nil, "now": nil, "item": nil})
	if err != nil {
		t.Fatal(err)
	}
	want := []expr.Read{{"error", "code"}, {"input", ""}, {"input", "a"}, {"item", ""}, {"now", ""}, {"session", ""}, {"state", ""}, {"state", "note"}, {"state", "order"}}
	if got := template.Reads(); !reflect.DeepEqual(got, want) {
		t.Errorf("Reads() = %v, want %v", got, want)
	}
	if template.Constant() {
		t.Error("Constant() = true")
	}
	for _, raw := range []string{`{"a":["$${x}",1]}`, `"x"`, `{}`} {
		if template, err := expr.CompileTemplate(decode(t, raw), nil); err != nil || !template.Constant() || len(template.Reads()) > 0 {
			t.Errorf("CompileTemplate(%s) is not constant, %v", raw, err)
		}
	}
}

func TestCondition(t *testing.T) {
	for src, want := range map[string]string{
		"1 + index":                   "1:1: A condition is true or false, and this is an int or a double.",
		"[1]":                         "1:1: A condition is true or false, and this is a list.",
		"has(state.note) ? 'a' : 'b'": "1:1: A condition is true or false, and this is a string.",
		"state.order":                 "1:1: A condition is true or false, and this gave a map.",
		"dyn('true')":                 "1:1: A condition is true or false, and this gave a string.",
		"state.order.total > 100":     "",
		"default(state.note, true)":   "",
	} {
		p, err := expr.Condition(src, vars)
		if err == nil {
			_, err = p.Test(scope(t))
		}
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("Condition(%s) = %v, want %q", src, err, want)
		}
	}
}

// A failing scope is an error at the place that reads it.
func TestScopeError(t *testing.T) {
	p, err := expr.Compile("true || 1 > input.a", expr.Vars{"input": nil})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := p.Eval(failing{}); v != true || err != nil {
		t.Errorf("Eval() = %v, %v, want true: || absorbs errors", v, err)
	}
	p, _ = expr.Compile("1 > input.a", expr.Vars{"input": nil})
	if _, err = p.Eval(failing{}); err == nil || err.Error() != "1:11: input is damaged" {
		t.Errorf("Eval() = %v", err)
	}
}

// A macro has its scope asked once for what each place in it reads.
func TestScopeOnce(t *testing.T) {
	template, err := expr.CompileTemplate(decode(t, `["${ state.lines.map(x, input.count + [x].filter(y, has(input.x) || default(input.y, 1) == y)[0]) }","${ input.count }"]`), vars)
	if err != nil {
		t.Fatal(err)
	}
	in := &recorder{Map: scope(t)}
	in.Map["state"] = map[string]any{"lines": []any{int64(1), int64(1)}}
	if got, err := template.Eval(in); err != nil || !reflect.DeepEqual(got, []any{[]any{int64(4), int64(4)}, int64(3)}) {
		t.Errorf("Eval() = %v, %v", got, err)
	}
	want := []expr.Read{{"state", "lines"}, {"input", "count"}, {"input", "x"}, {"input", "y"}, {"input", "count"}}
	if !reflect.DeepEqual(in.reads, want) {
		t.Errorf("the evaluation reads %v, want %v", in.reads, want)
	}
}

type failing struct{}

func (failing) Value(name, _ string) (any, bool, error) {
	return nil, false, errors.New(name + " is damaged")
}

func TestEncode(t *testing.T) {
	for _, tc := range []struct {
		v    any
		want string
	}{
		{map[string]any{"\ufffd": int64(1), "\U0001f600": 1e21, "<&>": -0.5}, `{"<&>":-0.5,"😀":1e+21,"�":1}`},
		{map[any]any{true: nil, int64(2): 100.0, "a": time.Duration(1500000001)}, `{"2":100.0,"a":"1.500000001s","true":null}`},
		{[]any{time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600)), time.Duration(-1 << 63), 1e-7}, `["2026-01-02T02:04:05.000006Z","-9223372036.854775808s",1e-07]`},
	} {
		if got, err := expr.Encode(tc.v); err != nil || string(got) != tc.want {
			t.Errorf("Encode(%v) = %s, %v, want %s", tc.v, got, err, tc.want)
		}
	}
	nan := 0.0
	for want, v := range map[string]any{
		"JSON has no number for NaN.":                                []any{nan / nan},
		"JSON has nothing for a type.":                               expr.Type("int"),
		`Two keys of a map have the text "1".`:                       map[any]any{int64(1): 1.0, "1": 2.0},
		"JSON has nothing for a value that expressions do not know.": 1,
	} {
		_, err := expr.Encode(v)
		if e, ok := errors.AsType[*expr.Error](err); !ok || e.Code != expr.CodeNotSerializable || e.Message != want {
			t.Errorf("Encode(%v) = %v, want %s", v, err, want)
		}
	}
}
