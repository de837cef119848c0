package expr

import (
	"math"
	"slices"
	"strings"
	"time"
)

// A form says how a function is written.
type form int

const (
	global form = 1 << iota // f(x)
	method                  // x.f()
	macro                   // x.f(y, expression)
)

// A Function is a row of [Functions].
type Function struct {
	Name  string
	Usage string // with arguments; optional ones in brackets
	Does  string

	form     form
	params   []kind // of a method, the first is what stands before the dot
	optional int    // of the parameters
	rest     bool   // the last parameter may be repeated
	result   kind   // 0: that of the first argument
	run      body
}

// A body computes a function of arguments that have the types of its parameters.
type body func(*frame, *call, []any) (any, *Error)

func (f *Function) param(i int) kind { return f.params[min(i, len(f.params)-1)] }

// Functions are all functions, methods and macros.
func Functions() []Function { return slices.Clone(table) }

var functions = map[string]*Function{}

func init() {
	for i := range table {
		functions[table[i].Name] = &table[i]
	}
}

// names are the functions that can be written in a form.
func names(f form) (all []string) {
	for _, row := range table {
		if row.form&f != 0 {
			all = append(all, row.Name)
		}
	}
	return all
}

const (
	loops  = method | macro
	moment = kindTimestamp | kindDuration
)

var table = []Function{
	{Name: "has", Usage: "has(x.field)", Does: "Whether x has the field. null has no fields.", form: global, result: kindBool},
	{Name: "default", Usage: "default(x, y)", Does: "x; y where x is null, or where something that x selects is missing or selected of null. Other errors of x stay.", form: global, result: kindAny},
	{Name: "all", Usage: "x.all(v, condition)", Does: "Whether the condition holds for all elements of a list or keys of a map.", form: loops, result: kindBool},
	{Name: "exists", Usage: "x.exists(v, condition)", Does: "Whether the condition holds for one or more.", form: loops, result: kindBool},
	{Name: "exists_one", Usage: "x.exists_one(v, condition)", Does: "Whether the condition holds for exactly one.", form: loops, result: kindBool},
	{Name: "filter", Usage: "x.filter(v, condition)", Does: "The list of those for which the condition holds.", form: loops, result: kindList},
	{Name: "map", Usage: "x.map(v[, condition], expression)", Does: "The list of the expression's values for all, or for those for which the condition holds.", form: loops, result: kindList},

	{Name: "size", Usage: "size(x) or x.size()", Does: "The number of characters of a text, of elements of a list or of keys of a map.", form: global | method, params: []kind{kindString | kindList | kindMap}, result: kindInt, run: size},
	{Name: "type", Usage: "type(x)", Does: "The type of x: `bool`, `int`, `double`, `string`, `list`, `map`, `null_type`, `type`, `google.protobuf.Timestamp` or `google.protobuf.Duration`.", form: global, params: []kind{kindAny}, result: kindType,
		run: func(_ *frame, _ *call, a []any) (any, *Error) { return kindOf(a[0]).typ(), nil }},
	{Name: "dyn", Usage: "dyn(x)", Does: "x, whose type is not checked before the evaluation.", form: global, params: []kind{kindAny}, result: kindAny, run: same},

	{Name: "bool", Usage: "bool(x)", Does: "A bool of a bool or of a text such as `true`.", form: global, params: []kind{kindBool | kindString}, result: kindBool, run: toBool},
	{Name: "int", Usage: "int(x)", Does: "An int of a number, cut towards zero, of a text, or of a timestamp, in seconds since 1970.", form: global, params: []kind{kindNumber | kindString | kindTimestamp}, result: kindInt, run: toInt},
	{Name: "double", Usage: "double(x)", Does: "A double of a number or a text.", form: global, params: []kind{kindNumber | kindString}, result: kindDouble, run: toDouble},
	{Name: "string", Usage: "string(x)", Does: "The text of a bool, a number, a text, a timestamp or a duration.", form: global, params: []kind{kindBool | kindNumber | kindString | moment}, result: kindString, run: toString},
	{Name: "timestamp", Usage: "timestamp(x)", Does: "A time of RFC 3339 text, or of seconds since 1970.", form: global, params: []kind{kindString | kindInt | kindTimestamp}, result: kindTimestamp, run: toTimestamp},
	{Name: "duration", Usage: "duration(x)", Does: "A duration of text such as `1h30m` or `2.5s`; units are h, m, s, ms, us, ns.", form: global, params: []kind{kindString | kindDuration}, result: kindDuration, run: toDuration},
	{Name: "json", Usage: "json(text)", Does: "The value of a JSON text.", form: global, params: []kind{kindString}, result: kindAny &^ (moment | kindType), run: fromJSON},
	{Name: "text", Usage: "text(x)", Does: "The text that a template inserts: texts, timestamps and durations as they are, other values as JSON.", form: global, params: []kind{kindAny}, result: kindString, run: toText},

	{Name: "contains", Usage: "s.contains(part)", Does: "Whether the text has the part.", form: method, params: []kind{kindString, kindString}, result: kindBool, run: question(strings.Contains)},
	{Name: "startsWith", Usage: "s.startsWith(part)", Does: "Whether the text begins with the part.", form: method, params: []kind{kindString, kindString}, result: kindBool, run: question(strings.HasPrefix)},
	{Name: "endsWith", Usage: "s.endsWith(part)", Does: "Whether the text ends with the part.", form: method, params: []kind{kindString, kindString}, result: kindBool, run: question(strings.HasSuffix)},
	{Name: "matches", Usage: "s.matches(pattern) or matches(s, pattern)", Does: "Whether the regular expression (RE2) matches a part of the text.", form: global | method, params: []kind{kindString, kindString}, result: kindBool, run: matches},
	{Name: "charAt", Usage: "s.charAt(index)", Does: "The character at the index; at the end the empty text.", form: method, params: []kind{kindString, kindInt}, result: kindString, run: charAt},
	{Name: "indexOf", Usage: "s.indexOf(part[, from])", Does: "Where the part begins first, at or after an index; -1 if it is not there.", form: method, params: []kind{kindString, kindString, kindInt}, optional: 1, result: kindInt, run: indexOf},
	{Name: "lastIndexOf", Usage: "s.lastIndexOf(part[, from])", Does: "Where the part begins last, at or before an index; -1 if it is not there.", form: method, params: []kind{kindString, kindString, kindInt}, optional: 1, result: kindInt, run: lastIndexOf},
	{Name: "join", Usage: "list.join([separator])", Does: "One text of a list of texts.", form: method, params: []kind{kindList, kindString}, optional: 1, result: kindString, run: join},
	{Name: "split", Usage: "s.split(separator[, limit])", Does: "The parts of a text, at most as many as the limit.", form: method, params: []kind{kindString, kindString, kindInt}, optional: 1, result: kindList, run: split},
	{Name: "replace", Usage: "s.replace(old, new[, limit])", Does: "The text with new in the place of old, at most as often as the limit.", form: method, params: []kind{kindString, kindString, kindString, kindInt}, optional: 1, result: kindString, run: replace},
	{Name: "substring", Usage: "s.substring(from[, to])", Does: "The characters from an index to before another.", form: method, params: []kind{kindString, kindInt, kindInt}, optional: 1, result: kindString, run: substring},
	{Name: "lowerAscii", Usage: "s.lowerAscii()", Does: "The text with a to z for A to Z.", form: method, params: []kind{kindString}, result: kindString, run: ascii('A', 'Z')},
	{Name: "upperAscii", Usage: "s.upperAscii()", Does: "The text with A to Z for a to z.", form: method, params: []kind{kindString}, result: kindString, run: ascii('a', 'z')},
	{Name: "trim", Usage: "s.trim()", Does: "The text without white space at its ends.", form: method, params: []kind{kindString}, result: kindString, run: trim},
	{Name: "reverse", Usage: "s.reverse()", Does: "The characters of the text in reverse.", form: method, params: []kind{kindString}, result: kindString, run: reverse},

	{Name: "math.greatest", Usage: "math.greatest(x, ...) or math.greatest(list)", Does: "The greatest number.", form: global, params: []kind{kindNumber | kindList, kindNumber}, optional: 1, rest: true, result: kindNumber, run: extreme(after)},
	{Name: "math.least", Usage: "math.least(x, ...) or math.least(list)", Does: "The least number.", form: global, params: []kind{kindNumber | kindList, kindNumber}, optional: 1, rest: true, result: kindNumber, run: extreme(before)},
	{Name: "math.abs", Usage: "math.abs(x)", Does: "The number without its sign.", form: global, params: []kind{kindNumber}, run: absolute},
	{Name: "math.sign", Usage: "math.sign(x)", Does: "-1, 0 or 1, of the type of x.", form: global, params: []kind{kindNumber}, run: sign},
	{Name: "math.ceil", Usage: "math.ceil(double)", Does: "The double rounded up.", form: global, params: []kind{kindDouble}, result: kindDouble, run: double(math.Ceil)},
	{Name: "math.floor", Usage: "math.floor(double)", Does: "The double rounded down.", form: global, params: []kind{kindDouble}, result: kindDouble, run: double(math.Floor)},
	{Name: "math.round", Usage: "math.round(double)", Does: "The nearest whole double, of two the one away from zero.", form: global, params: []kind{kindDouble}, result: kindDouble, run: double(math.Round)},
	{Name: "math.trunc", Usage: "math.trunc(double)", Does: "The double without its fraction.", form: global, params: []kind{kindDouble}, result: kindDouble, run: double(math.Trunc)},
	{Name: "math.sqrt", Usage: "math.sqrt(x)", Does: "The square root, as a double.", form: global, params: []kind{kindNumber}, result: kindDouble, run: squareRoot},
	{Name: "math.isNaN", Usage: "math.isNaN(double)", Does: "Whether it is no number.", form: global, params: []kind{kindDouble}, result: kindBool, run: double(math.IsNaN)},
	{Name: "math.isInf", Usage: "math.isInf(double)", Does: "Whether it is infinite.", form: global, params: []kind{kindDouble}, result: kindBool, run: double(func(f float64) bool { return math.IsInf(f, 0) })},
	{Name: "math.isFinite", Usage: "math.isFinite(double)", Does: "Whether it is a number that is not infinite.", form: global, params: []kind{kindDouble}, result: kindBool, run: double(func(f float64) bool { return f-f == 0 })},

	{Name: "getFullYear", Usage: "t.getFullYear([zone])", Does: "The year. Zones are names such as `Europe/Paris` or offsets such as `-02:30`; without one, it is UTC.", form: method, params: []kind{kindTimestamp, kindString}, optional: 1, result: kindInt, run: calendar(time.Time.Year)},
	{Name: "getMonth", Usage: "t.getMonth([zone])", Does: "The month, from 0.", form: method, params: []kind{kindTimestamp, kindString}, optional: 1, result: kindInt, run: calendar(func(t time.Time) int { return int(t.Month()) - 1 })},
	{Name: "getDate", Usage: "t.getDate([zone])", Does: "The day of the month, from 1.", form: method, params: []kind{kindTimestamp, kindString}, optional: 1, result: kindInt, run: calendar(time.Time.Day)},
	{Name: "getDayOfMonth", Usage: "t.getDayOfMonth([zone])", Does: "The day of the month, from 0.", form: method, params: []kind{kindTimestamp, kindString}, optional: 1, result: kindInt, run: calendar(func(t time.Time) int { return t.Day() - 1 })},
	{Name: "getDayOfWeek", Usage: "t.getDayOfWeek([zone])", Does: "The day of the week, from 0, which is Sunday.", form: method, params: []kind{kindTimestamp, kindString}, optional: 1, result: kindInt, run: calendar(func(t time.Time) int { return int(t.Weekday()) })},
	{Name: "getDayOfYear", Usage: "t.getDayOfYear([zone])", Does: "The day of the year, from 0.", form: method, params: []kind{kindTimestamp, kindString}, optional: 1, result: kindInt, run: calendar(func(t time.Time) int { return t.YearDay() - 1 })},
	{Name: "getHours", Usage: "t.getHours([zone]) or d.getHours()", Does: "The hour of the day; of a duration, its whole hours.", form: method, params: []kind{moment, kindString}, optional: 1, result: kindInt, run: clock(time.Hour, time.Time.Hour)},
	{Name: "getMinutes", Usage: "t.getMinutes([zone]) or d.getMinutes()", Does: "The minute of the hour; of a duration, its whole minutes.", form: method, params: []kind{moment, kindString}, optional: 1, result: kindInt, run: clock(time.Minute, time.Time.Minute)},
	{Name: "getSeconds", Usage: "t.getSeconds([zone]) or d.getSeconds()", Does: "The second of the minute; of a duration, its whole seconds.", form: method, params: []kind{moment, kindString}, optional: 1, result: kindInt, run: clock(time.Second, time.Time.Second)},
	{Name: "getMilliseconds", Usage: "t.getMilliseconds([zone]) or d.getMilliseconds()", Does: "The milliseconds of the second.", form: method, params: []kind{moment, kindString}, optional: 1, result: kindInt, run: clock(0, func(t time.Time) int { return t.Nanosecond() / 1e6 })},
}

func same(_ *frame, _ *call, a []any) (any, *Error) { return a[0], nil }

// double is a function of one double.
func double[T float64 | bool](f func(float64) T) body {
	return func(_ *frame, _ *call, a []any) (any, *Error) { return f(a[0].(float64)), nil }
}

// extreme is the number that is before or after the others.
func extreme(want order) body {
	return func(c *frame, n *call, a []any) (any, *Error) {
		if of, ok := a[0].([]any); ok {
			if len(of) == 0 || len(a) > 1 {
				return nil, c.fail(n.at, "%s takes numbers, or one list with at least one.", n.f.Name)
			}
			a = of
		}
		most := a[0]
		for _, v := range a {
			if err := c.step(n.at, 1); err != nil {
				return nil, err
			}
			if kindOf(v)&kindNumber == 0 {
				return nil, c.fail(n.at, "%s takes numbers, not %s.", n.f.Name, kindOf(v).a())
			}
			if o, _ := scalars(v, most); o == want {
				most = v
			}
		}
		return most, nil
	}
}

func absolute(c *frame, n *call, a []any) (any, *Error) {
	i, ok := a[0].(int64)
	switch {
	case !ok:
		return math.Abs(a[0].(float64)), nil
	case i == math.MinInt64:
		return nil, c.overflow(n.at)
	}
	return max(i, -i), nil
}

func sign(_ *frame, _ *call, a []any) (any, *Error) {
	i, ok := a[0].(int64)
	if ok {
		return max(-1, min(1, i)), nil
	}
	f := a[0].(float64)
	switch {
	case f > 0:
		return 1.0, nil
	case f < 0:
		return -1.0, nil
	}
	return f, nil // 0 or NaN
}

func squareRoot(_ *frame, _ *call, a []any) (any, *Error) {
	f, _ := toFloat(a[0])
	return math.Sqrt(f), nil
}
