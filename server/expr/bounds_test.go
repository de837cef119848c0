package expr_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"agentd/server/expr"
	"agentd/server/fuzztest"
)

// Every bound holds where it is reached, and not one below.
func TestBounds(t *testing.T) {
	nested := func(open, inside, shut string) func(int) string {
		return func(n int) string { return strings.Repeat(open, n) + inside + strings.Repeat(shut, n) }
	}
	for name, tc := range map[string]struct {
		most    int
		of      func(int) string
		message string
	}{
		"source":       {expr.MaxSource, func(n int) string { return "'" + strings.Repeat("a", n-2) + "'" }, "at most 8192 bytes"},
		"parentheses":  {expr.MaxNesting - 1, nested("(", "1", ")"), "at most 100 levels"},
		"lists":        {expr.MaxNesting - 1, nested("[", "1", "]"), "at most 100 levels"},
		"maps":         {expr.MaxNesting - 1, nested("{1:", "1", "}"), "at most 100 levels"},
		"indices":      {expr.MaxNesting - 1, nested("[0][", "0", "]"), "at most 100 levels"},
		"arguments":    {expr.MaxNesting - 1, nested("dyn(", "1", ")"), "at most 100 levels"},
		"macros":       {expr.MaxNesting - 1, nested("[0].map(x, ", "x", ")"), "at most 100 levels"},
		"alternatives": {expr.MaxNesting - 1, nested("true ? (", "1", ") : 2"), "at most 100 levels"},
		"pattern":      {expr.MaxPattern, func(n int) string { return "'a'.matches('" + strings.Repeat("a?", n/2) + "')" }, "at most 1000 bytes"},
		"made pattern": {expr.MaxPattern, func(n int) string { return "'a'.matches('' + '" + strings.Repeat("a?", n/2) + "')" }, "at most 1000 bytes"},
	} {
		eval := func(n int) error {
			p, err := expr.Compile(tc.of(n), nil)
			if err == nil {
				_, err = p.Eval(nil)
			}
			return err
		}
		if err := eval(tc.most); err != nil {
			t.Errorf("%s: %d fail: %v", name, tc.most, err)
		}
		if err := eval(tc.most + 2); err == nil || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s: %d give %v, want an error with %q", name, tc.most+2, err, tc.message)
		}
	}
	if _, err := expr.Compile("'a'.matches('(a{50}){20}b{1,20}')", nil); err != nil {
		t.Errorf("a pattern of few states fails: %v", err)
	}
	if _, err := expr.Compile("'a'.matches('"+strings.Repeat("a{999}", 6)+"')", nil); err == nil || !strings.Contains(err.Error(), "5000 states") {
		t.Errorf("a pattern of 6000 states gives %v", err)
	}
}

// JSON of many small objects takes far more memory than it has bytes: about 400 bytes each.
func TestMemoryOfJSON(t *testing.T) {
	most := expr.MaxValue / 400
	list := func(n int) []byte { return []byte("[" + strings.Repeat(`{"":0},`, n) + "0]") }
	if _, err := expr.Decode(list(most / 2)); err != nil {
		t.Errorf("Decode(%d small objects) = %v", most/2, err)
	}
	if _, err := expr.Decode(list(most * 3 / 2)); err == nil || !strings.Contains(err.Error(), "too much memory") {
		t.Errorf("Decode(%d small objects) = %v, want it refused", most*3/2, err)
	}
}

// A zone that an expression has made is not looked for if no zone has such a name.
func TestLengthOfZones(t *testing.T) {
	p, err := expr.Compile("timestamp(0).getHours(zone)", expr.Vars{"zone": nil})
	if err != nil {
		t.Fatal(err)
	}
	for length, sound := range map[int]bool{64: true, 65: false} { // hosts with files of zones take any number of slashes
		name := "Europe" + strings.Repeat("/", length-len("EuropeParis")) + "Paris"
		if _, err := time.LoadLocation(name); err != nil {
			t.Skip("this host has no files of zones")
		}
		if _, err := p.Eval(expr.Map{"zone": name}); (err == nil) != sound {
			t.Errorf("a zone of %d bytes = %v", length, err)
		}
	}
}

// A long expression is not deep: it compiles, and its parts are evaluated one after the other.
func TestLong(t *testing.T) {
	for _, src := range []string{
		"1" + strings.Repeat("+1", 4000), "1" + strings.Repeat("*1", 4000), "true" + strings.Repeat("||true", 1300), "true" + strings.Repeat("&&true", 1300), "1" + strings.Repeat("==1", 2500),
		strings.Repeat("!", 8000) + "true", strings.Repeat("-", 8000) + "1", strings.Repeat("true?1:", 1100) + "2", "x" + strings.Repeat(".a", 4000),
		"x" + strings.Repeat("[0]", 2700), "''" + strings.Repeat(".trim()", 1100), "[1]" + strings.Repeat(".map(x,x)", 900), "[" + strings.Repeat("1,", 4000) + "]", "//" + strings.Repeat(" ", 8000) + "\n1",
	} {
		p, err := expr.Compile(src, expr.Vars{"x": nil})
		if err != nil {
			t.Errorf("Compile(%.20s...) = %v", src, err)
			continue
		}
		if _, err := p.Eval(expr.Map{"x": "no map"}); err != nil && !strings.HasPrefix(src, "x") && !strings.HasPrefix(src, "1==") {
			t.Errorf("Eval(%.20s...) = %v", src, err)
		}
	}
}

// Nothing that an expression can do with large values takes long or much memory.
func TestCost(t *testing.T) {
	big := strings.Repeat("abcdefgh", 4<<20/8)
	many := make([]any, 250_000)
	object := map[string]any{}
	for i := range many {
		many[i] = strings.Repeat("x", 100)
		object[fmt.Sprint(i)] = many[i]
	}
	long := map[string]any{}
	for i := range 1000 {
		long[strings.Repeat("k", 8000)+fmt.Sprint(i)] = int64(i)
	}
	in := expr.Map{"long": long, "zeros": strings.Repeat("0", 4<<20), "durations": strings.Repeat("0s", 2<<20), "s": big, "l": many, "m": object, "json": "[" + strings.Repeat(`{"":0},`, 200_000) + "0]", "deep": strings.Repeat("[", 501) + strings.Repeat("]", 501)}
	deep, err := expr.Decode([]byte(strings.Repeat("[", 499) + strings.Repeat("]", 499)))
	if err != nil {
		t.Fatal(err)
	}
	wide := maps.Clone(object)
	wide[""] = deep
	in["wide"] = wide
	vars := expr.Vars{"long": nil, "zeros": nil, "durations": nil, "wide": nil, "s": nil, "l": nil, "m": nil, "json": nil, "deep": nil}
	keys := ""
	for i := range 600 {
		keys += fmt.Sprintf("%d:0,", i)
	}
	loop := func(body string) string { return "l.map(x, " + body + ")" }
	for src, bound := range map[string]string{
		"s + s + s":                                   "",
		"s + s + s + s + s":                           "bytes",
		loop("s + x"):                                 "bytes",
		loop("l + l"):                                 "bytes",
		loop("l.map(y, y)"):                           "operations",
		loop("l.all(y, y == x)"):                      "operations",
		loop("l == l"):                                "operations",
		loop("m == m"):                                "operations",
		loop("s == s + ''"):                           "bytes",
		loop("s < s"):                                 "operations",
		loop("'a' in l"):                              "operations",
		loop("s.contains('zz')"):                      "operations",
		loop("s.startsWith(s)"):                       "operations",
		loop("s.endsWith(s)"):                         "operations",
		loop("s.indexOf('zz')"):                       "operations",
		loop("s.lastIndexOf('zz')"):                   "operations",
		loop("s.size()"):                              "operations",
		loop("s.charAt(4000000)"):                     "operations",
		loop("s.substring(4000000)"):                  "operations",
		loop("s.trim()"):                              "operations",
		"s.replace('', s)":                            "bytes",
		"s.replace('a', s)":                           "bytes",
		"s.split('')":                                 "bytes",
		loop("s.reverse()"):                           "bytes",
		loop("s.upperAscii()"):                        "bytes",
		loop("l.join(s)"):                             "bytes",
		loop("default({}[l], 1) + default([][m], 1)"): "The index of a list is an int, not a map",
		loop("text(l)"):                               "bytes",
		loop("text(m)"):                               "bytes",
		loop("m.map(k, k)"):                           "operations",
		"json(json)":                                  "memory",
		"json(deep)":                                  "deeper than 500",
		loop("json(s)"):                               "not JSON",
		"l.map(x, json('{\"a\":1}'))":                 "memory",
		"s.matches('(abc|bcd|cde|def)*z')":            "operations",
		loop("x.matches('(x|xx)*y')"):                 "operations",
		loop("x.matches(x + string(1))"):              "operations",
		loop("double(s) > 1.0 || true"):               "operations",
		loop("timestamp(s) == null || true"):          "operations",
		loop("[1, 1, 1].map(y, y)"):                   "operations",
		loop("timestamp(0).getHours('A/' + x) == 1 || true"):              "operations",
		loop("timestamp(0).getHours('A' + x.substring(60)) == 1 || true"): "operations",
		"l.map(x, {x: 1, 1: 2, 2: 3})":                                    "bytes",
		loop("s in m"):                                                    "operations",
		loop("default(m[s], 1)"):                                          "operations",
		loop("{s: 1}.size()"):                                             "operations",
		loop("{1: 1, s: 1}.size()"):                                       "operations",
		loop("long.map(k, 1).size()"):                                     "operations",
		loop("long == long"):                                              "operations",
		loop("bool(s) || true"):                                           "operations",
		loop("int(s) == 1 || true"):                                       "operations",
		loop("int(zeros)"):                                                "operations",
		loop("duration(durations)"):                                       "cannot read",
		loop("duration(durations) == null || true"):                       "operations",
		loop("text(l) == '' || true"):                                     "bytes",
		loop("text([wide]) == '' || true"):                                "nested deeper",
		"[{" + keys + "'1': 0}].map(m, l.exists(x, text(m) == ''))":       "Two keys",
		loop("s.split(',', 16000000).size()"):                             "operations",
		loop("''.matches('^(a?){400}$')"):                                 "operations",
		loop("'a'.matches('(a?){400}')"):                                  "operations",
		"math.greatest(l.map(x, 1))":                                      "operations",
		"[l, l].map(x, x.map(y, y.size()))":                               "operations",
	} {
		fuzztest.Cost{Base: 12 * expr.MaxBytes, Time: 500 * time.Millisecond}.Check(t, 0, func() {
			p, err := expr.Compile(src, vars)
			if err == nil {
				_, err = p.Eval(in)
			}
			if bound == "" && err != nil || bound != "" && (err == nil || !strings.Contains(err.Error(), bound)) {
				t.Errorf("Eval(%.80s) = %v, want an error with %q", src, err, bound)
			}
		})
	}
}

func TestJSONBounds(t *testing.T) {
	for raw, want := range map[string]string{
		`"` + strings.Repeat("a", expr.MaxJSON) + `"`:                               "more than 8388608 bytes",
		strings.Repeat("[", expr.MaxDepth+1) + strings.Repeat("]", expr.MaxDepth+1): "deeper than 500",
		"[" + strings.Repeat(`{"":0},`, 1_000_000) + "0]":                           "too much memory",
		"{": "not JSON",
		"":  "not JSON",
	} {
		_, err := expr.Decode([]byte(raw))
		if e, ok := errors.AsType[*expr.Error](err); !ok || !strings.Contains(e.Message, want) {
			t.Errorf("Decode(%.20s...) = %v, want an error with %q", raw, err, want)
		}
	}
	var deep any = []any{}
	for range expr.MaxDepth {
		deep = []any{deep}
	}
	for _, tc := range []struct {
		v       any
		message string
	}{
		{deep, "nested deeper"},
		{strings.Repeat("a", expr.MaxJSON-1), "more than 8388608 bytes"},
		{strings.Repeat("\x00", expr.MaxJSON/4), "more than 8388608 bytes"}, // six bytes each
	} {
		_, err := expr.Encode(tc.v)
		if e, ok := errors.AsType[*expr.Error](err); !ok || e.Code != expr.CodeNotSerializable || !strings.Contains(e.Message, tc.message) {
			t.Errorf("Encode() = %v, want an error with %q", err, tc.message)
		}
	}
}
