package expr_test

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/server/expr"
)

// vars and scope are those of a task in a workflow.
var vars = expr.Vars{
	"input": nil, "state": {"order", "lines", "note", "empty"}, "now": nil, "index": nil, "item": nil, "error": {"code", "message", "node"},
}

func scope(t testing.TB) expr.Map {
	t.Helper()
	return expr.Map{
		"input": decode(t, `{"orderId":"a1","count":3,"price":2.5,"whole":2.0,"tags":["x","y"],"":1}`),
		"state": decode(t, `{"order":{"total":120,"name":"Zoë","lines":[{"id":1,"ok":true},{"id":2,"ok":false}]},"lines":[1,2,3],"note":null,"empty":{}}`),
		"now":   time.Date(2026, 11, 22, 20, 0, 0, 0, time.FixedZone("", 7200)), "index": int64(4),
	}
}

func decode(t testing.TB, s string) any {
	t.Helper()
	v, err := expr.Decode([]byte(s))
	if err != nil {
		t.Fatalf("Decode(%s) = %v", s, err)
	}
	return v
}

func TestEval(t *testing.T) {
	for src, want := range map[string]any{
		// Selections.
		"state.order.total > 100":                           true,
		"state['order']['total']":                           int64(120),
		"state.lines[2]":                                    int64(3),
		"state.order.lines[1.0].id":                         int64(2),
		"input.orderId + '/' + string(index)":               "a1/4",
		"has(state.order.total) && !has(state.order.x)":     true,
		"has(state.note.deep)":                              false,
		"has(error.code) || has(item.id)":                   false,
		"has(state.note)":                                   true,
		"input[input.tags[0] + 'x'] == 1 || true":           true,
		"(state).order.name":                                "Zoë",
		".index":                                            int64(4),
		"{'a-b': 1}.`a-b`":                                  int64(1),
		"state.order.lines.map(l, l.id)":                    []any{int64(1), int64(2)},
		"state.order.lines.filter(l, l.ok).map(l, l.id)[0]": int64(1),
		"state.order.lines.map(l, l.ok, l.id * 10)":         []any{int64(10)},
		"state.lines.map(index, index + 1)":                 []any{int64(2), int64(3), int64(4)}, // a variable of a macro hides others
		"{'b': 1, 'a': 2}.map(k, k)":                        []any{"a", "b"},
		"{2: 'b', true: 'a', 'x': 'c', 1: 'd'}.map(k, k)":   []any{true, int64(1), int64(2), "x"},
		"[[1, 2], [3]].map(l, l.map(x, x + size(l)))":       []any{[]any{int64(3), int64(4)}, []any{int64(4)}},

		// What is missing.
		"default(state.order.discount, 5)":            int64(5),
		"default(state.order.total, 5)":               int64(120),
		"default(state.note, 'none')":                 "none",
		"default(state.note.deep.down, 'none')":       "none",
		"default(state.order.lines[7].id, -1)":        int64(-1),
		"default(input.x.y, default(input.z, 1))":     int64(1),
		"default(item.id, 0)":                         int64(0),
		"default(item, 0)":                            int64(0),
		"default({'a': 1}.b, 2)":                      int64(2),
		"default(json('{\"a\": null}').a, 'null')":    "null",
		"default(1 + 1, 3)":                           int64(2),
		"state.order.discount == 1 || true":           true,
		"!(false && state.order.discount == 1)":       true,
		"[1, 0].exists(x, 1 / x == 1)":                true,
		"[0, 1].exists(x, 1 / x == 1)":                true,
		"[0, 2].all(x, 1 / x == 1)":                   false,
		"[1, 2, 3].exists_one(x, x > 2)":              true,
		"{'a': 1, 'b': 2}.all(k, k in {'a':0,'b':0})": true,

		// Numbers.
		"7 / 2":                                  int64(3),
		"7 / 2.0":                                3.5,
		"1 + 0.5 - 2 * 1.5":                      -1.5,
		"input.whole * 2":                        4.0,
		"-7 % 3":                                 int64(-1),
		"-9223372036854775808":                   int64(math.MinInt64),
		"---2":                                   int64(-2),
		"0x1F":                                   int64(31),
		".5e1":                                   5.0,
		"1 == 1.0 && 2 > 1.5 && 1.0 in [1]":      true,
		"9007199254740993 == 9007199254740992.0": false,
		"9223372036854775807 < 9223372036854775808.0":   true,
		"0.0 / 0.0 == 0.0 / 0.0":                        false,
		"2 < 0.0 / 0.0 || 0.0 / 0.0 >= 2":               false,
		"1.0 in {'a': 1} || 1.5 in {1: 1}":              false,
		"1.0 in {1: 1} && {1: 'a'}[1.0] == 'a'":         true,
		"false < true && !(true < true)":                true,
		"1 == '1' || [1] == {} || null == 0":            false,
		"1.0 / 0.0 > 1e308":                             true,
		"math.greatest(1, 2.5, 2) + math.least([3, 1])": 3.5,
		"math.sqrt(16)":                                 4.0,

		// Texts.
		`'a\tb' + "\u00e9" + r'\d' + '''x
y'''`: "a\tbé\\dx\ny",
		"'Zoë'.size() + size('😀')":                              int64(4),
		"'a,b,c'.split(',').join('-')":                          "a-b-c",
		"'a,b,c'.split(',', 2)":                                 []any{"a", "b,c"},
		"'héllo'.substring(1, 3).upperAscii()":                  "éL",
		"'héllo'.reverse()":                                     "olléh",
		"'abc'.matches('^[a-c]+$') && matches('abc', 'b' + '')": true,
		"'xaxbx'.replace('x', '', 2)":                           "abx",
		"text({'b': 1.0, 'a': ['x', null, 1e100]})":             `{"a":["x",null,1e+100],"b":1.0}`,
		"text('x') + text(1) + text(now)":                       "x12026-11-22T18:00:00Z",
		"json('[1, 1.0, 1e2, 12345678901234567890]')":           []any{int64(1), 1.0, 100.0, 12345678901234567890.0},
		"string(1.0) + string(0.1) + string(true)":              "10.1true",

		// Times.
		"now + duration('1h30m')":                                          time.Date(2026, 11, 22, 19, 30, 0, 0, time.UTC),
		"string(now - timestamp('2026-11-22T17:59:56.5Z'))":                "3.5s",
		"now.getHours('Asia/Kathmandu')":                                   int64(23),
		"timestamp(0).getFullYear('-01:00')":                               int64(1969),
		"now > timestamp('2026-01-01T00:00:00+02:00')":                     true,
		"duration('90m').getHours() + duration('-1.5s').getMilliseconds()": int64(-499),
		"now.getHours()": int64(18),
		"type(now)":      expr.Type("google.protobuf.Timestamp"),
		"type(1) == int && type(type(1)) == type": true,

		// Forms.
		"true ? 1 : false ? 2 : 3":  int64(1),
		"false ? 1 : false ? 2 : 3": int64(3),
		"[1, 2,]":                   []any{int64(1), int64(2)},
		"{'a': 1, 2: 'b',}":         map[any]any{"a": int64(1), int64(2): "b"},
		"1 // no more\n + 1":        int64(2),
		"[1] + [2] == [1, 2]":       true,
		"!!true":                    true,
		"1 < 2 == true":             true,
	} {
		p, err := expr.Compile(src, vars)
		if err != nil {
			t.Errorf("Compile(%s) = %v", src, err)
			continue
		}
		got, err := p.Eval(scope(t))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Eval(%s) = %#v, %v, want %#v", src, got, err, want)
		}
	}
}

// Errors name the place where they are.
func TestErrors(t *testing.T) {
	for src, want := range map[string]string{
		// Found before the evaluation.
		"stat.order":           "1:1: There is no variable stat. Did you mean state?",
		"state.ordr":           "1:7: state has no ordr. Did you mean order?",
		"state['ordr']":        "1:6: state has no ordr. Did you mean order?",
		"1 +":                  "1:4: The expression ends where a value is expected.",
		"'é' + 1":              "1:5: There is no + between a string and an int.",
		"true &&\n  'x'":       "1:6: What stands after && is a string, and must be a bool.",
		"1 ? 2 : 3":            "1:3: The condition before ? is an int, and must be a bool.",
		"size(1)":              "1:6: size takes a string, a list or a map here, not an int. Write size(x) or x.size().",
		"siz('')":              "1:1: There is no function siz. Did you mean size?",
		"''.sise()":            "1:4: There is no method sise. Did you mean size?",
		"startsWith('a', 'b')": "1:1: There is no function startsWith. Write s.startsWith(part).",
		"'a'.matches('(')":     "1:13: The pattern is no regular expression: error parsing regexp: missing closing ): `(`.",
		"'a'.startsWith()":     "1:5: startsWith has the wrong number of arguments. Write s.startsWith(part).",
		"[1].map(1, 2)":        "1:9: A literal stands where the name of a variable is expected.",
		"has(1)":               "1:5: has takes the selection of a field. Write has(x.field).",
		"state.?order":         "1:7: ? stands where a field or a method is expected. Optional values are no part of these expressions.",
		"1u":                   "1:1: There are no unsigned integers. Leave out the u.",
		"b'x'":                 "1:1: There are no bytes. Leave out the b.",
		"M{}":                  "1:1: There are no messages.",
		"'a":                   "1:1: The text does not end. Close it with '.",
		`'\q'`:                 `1:2: The text has an escape that there is not. Write \\ for a backslash, or r before the quotes.`,
		"9223372036854775808":  "1:1: The number is too large for an int. Write a double, such as 1e20.",
		"1 2":                  "1:3: A literal stands where an operator is expected.",
		"{1.5: 2}":             "1:2: The key is a double, and must be a bool, an int or a string.",
		"-'a'":                 "1:1: What stands after - is a string, and must be an int or a double.",
		"null.x":               "1:6: What .x is selected of is null, and must be a map.",
		"for":                  "1:1: for is a reserved word.",
		"a # b":                "1:3: No expression has the character '#' here.",
		"1 # b":                "1:3: No expression has the character '#' here.",
		"[1].filter(x, 'a')":   "1:15: The condition of filter is a string, and must be a bool.",

		// Found in the evaluation.
		"1 +\n 1 / (index - 4)":               "2:4: It divides by zero.",
		"9223372036854775807 + 1":             "1:21: The result is too large for an int. Compute with doubles: double(x).",
		"state.order.missing":                 `1:13: There is no key "missing". Test it with has(...), or write default(..., value).`,
		"state.note.x":                        `1:12: null has no key "x". Write default(..., value), if it may be null.`,
		"item.id":                             `1:6: There is no key "id". Test it with has(...), or write default(..., value).`,
		"item":                                "1:1: item has no value here.",
		"now.x":                               "1:5: now is a timestamp, which has no fields",
		"state.lines[3]":                      "1:12: There is no element 3 in a list of 3.",
		"default(1 / 0, 2)":                   "1:11: It divides by zero.",
		"default(state[state.order.x], 2)":    `1:27: There is no key "x". Test it with has(...), or write default(..., value).`,
		"has(state.order.x.y)":                `1:17: There is no key "x". Test it with has(...), or write default(..., value).`,
		"input.count.size()":                  "1:13: size takes a string, a list or a map here, not an int. Write size(x) or x.size().",
		"input.count && false || input.count": "1:22: There is no && or || of an int.",
		"int('x')":                            `1:1: int cannot read "x". Give a whole number of up to 63 bits.`,
		"{}[state.lines]":                     "1:3: There is no key a list. Test it with has(...), or write default(..., value).",
		"now.getHours('Nowhere')":             `1:5: getHours cannot read "Nowhere". Give a name such as Europe/Paris, or an offset such as -02:30.`,
		"'a'.contains(\n input.count)":        "2:2: contains takes a string here, not an int. Write s.contains(part).",
		"json('[1e999]')":                     "1:1: No double holds the number 1e999.",
		"json('{')":                           "1:1: The text is not JSON.",
		"{'a': 1, 'a': 2}":                    `1:10: The map has the key "a" twice.`,
	} {
		p, err := expr.Compile(src, vars)
		code := ""
		if err == nil {
			_, err = p.Eval(scope(t))
			code = expr.CodeFailed
		}
		e, ok := errors.AsType[*expr.Error](err)
		if !ok {
			t.Errorf("%s gives %v, want an error", src, err)
			continue
		}
		if got := strings.TrimSpace(e.Error() + " " + e.Hint); got != want || e.Code != code {
			t.Errorf("%s gives %q with code %q, want %q with %q", src, got, e.Code, want, code)
		}
	}
}

// Several goroutines evaluate one program.
func TestConcurrent(t *testing.T) {
	p, err := expr.Compile("now.getHours(state.lines.map(x, 'Asia/Tokyo')[0]) == 3 && 'a1'.matches('[a-z]' + string(input.count - 2))", vars)
	if err != nil {
		t.Fatal(err)
	}
	in := scope(t)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				if yes, err := p.Test(in); !yes || err != nil {
					t.Errorf("Test() = %v, %v", yes, err)
				}
			}
		})
	}
	group.Wait()
}
