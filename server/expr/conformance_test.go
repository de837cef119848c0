package expr_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentd/server/expr"
)

// TestConformance runs the public test vectors of CEL, which AGENTD_CEL names. testdata/outside.txt lists those that do not
// apply, and why. A row that ends in /* is for all vectors of a suite or of a part of one.
func TestConformance(t *testing.T) {
	file := os.Getenv("AGENTD_CEL")
	if file == "" {
		t.Skip("AGENTD_CEL names no vectors")
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all suite
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	vectors := map[string]vector{}
	all.collect("", vectors)
	table, err := os.ReadFile("testdata/outside.txt")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]int{}
	for line := range strings.Lines(string(table)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			if _, twice := rows[line]; twice {
				t.Errorf("the row %s is there twice", line)
			}
			rows[line] = 0
		}
	}
	passed, outside := 0, 0
	for name, v := range vectors {
		row := ""
		for r := range rows {
			if part, whole := strings.CutSuffix(r, "*"); r == name || whole && strings.HasPrefix(name, part) {
				row = r
				rows[r]++
				break
			}
		}
		switch err := v.run(); {
		case err == nil && row != "":
			t.Errorf("%s passes: %s; remove the row %s", name, v.Expr, row)
		case err == nil:
			passed++
		case row == "":
			t.Errorf("%s: %q: %v", name, v.Expr, err)
		default:
			outside++
		}
	}
	for row, n := range rows {
		if n == 0 {
			t.Errorf("there is no vector for the row %s", row)
		}
	}
	t.Logf("%d vectors: %d pass, %d are outside of the language", len(vectors), passed, outside)
	if passed < 900 {
		t.Errorf("%d vectors pass, as if they were not read", passed)
	}
}

// A suite is vectors by their names.
type suite struct {
	Name   string
	Suites []suite
	Tests  []struct{ Original vector }
}

func (s suite) collect(prefix string, into map[string]vector) {
	for _, sub := range s.Suites {
		sub.collect(prefix+sub.Name+"/", into)
	}
	for _, test := range s.Tests {
		name := prefix + test.Original.Name
		for n := 2; ; n++ {
			if _, ok := into[name]; !ok {
				break
			}
			name = prefix + test.Original.Name + "#" + strconv.Itoa(n)
		}
		into[name] = test.Original
	}
}

// A vector is an expression and what it gives: a value, or an error.
type vector struct {
	Name         string
	Expr         string
	Container    string
	DisableCheck bool
	CheckOnly    bool
	TypeEnv      []struct{ Name string }
	Bindings     map[string]struct{ Value json.RawMessage }
	Value        json.RawMessage
	TypedResult  *struct {
		Result      json.RawMessage
		DeducedType json.RawMessage
	}
	EvalError json.RawMessage
}

var errOutside = errors.New("not in these expressions")

// run evaluates the expression and compares what it gives.
func (v vector) run() error {
	vars, scope := expr.Vars{}, expr.Map{}
	for _, declared := range v.TypeEnv {
		vars[declared.Name] = nil
	}
	for name, bound := range v.Bindings {
		value, err := decodeVector(bound.Value)
		if err != nil {
			return err
		}
		vars[name], scope[name] = nil, value
	}
	program, err := expr.Compile(v.Expr, vars)
	if err != nil {
		// An expression that fails only when it is evaluated may be refused before, for the same reason.
		text, unknown := err.Error(), false
		for _, word := range []string{"undeclared", "unbound", "unknown variable"} {
			unknown = unknown || strings.Contains(string(v.EvalError), word)
		}
		typed := strings.Contains(text, " between ") || strings.Contains(text, " must be ") || strings.Contains(text, " takes ") || strings.Contains(text, "wrong number")
		if v.EvalError != nil && v.DisableCheck && (typed || unknown) {
			return nil
		}
		return err
	}
	if v.CheckOnly {
		return nil
	}
	got, err := program.Eval(scope)
	if v.EvalError != nil {
		if err == nil {
			return fmt.Errorf("= %v, want an error", got)
		}
		return nil
	}
	if err != nil {
		return err
	}
	want := v.Value
	if v.TypedResult != nil {
		want = v.TypedResult.Result
	}
	if want == nil {
		want = json.RawMessage(`{"boolValue":true}`)
	}
	value, err := decodeVector(want)
	if err != nil {
		return err
	}
	if !sameValue(got, value) {
		return fmt.Errorf("= %#v, want %#v", got, value)
	}
	return nil
}

// decodeVector reads a value in the JSON of the vectors.
func decodeVector(raw json.RawMessage) (any, error) {
	var v struct {
		BoolValue   *bool
		Int64Value  *string
		DoubleValue json.RawMessage
		StringValue *string
		TypeValue   *string
		NullValue   json.RawMessage
		ListValue   *struct{ Values []json.RawMessage }
		MapValue    *struct {
			Entries []struct{ Key, Value json.RawMessage }
		}
		ObjectValue *struct {
			Type  string `json:"@type"`
			Value any
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, err
	}
	switch {
	case v.BoolValue != nil:
		return *v.BoolValue, nil
	case v.Int64Value != nil:
		return strconv.ParseInt(*v.Int64Value, 10, 64)
	case v.DoubleValue != nil:
		return strconv.ParseFloat(strings.Trim(string(v.DoubleValue), `"`), 64)
	case v.StringValue != nil:
		return *v.StringValue, nil
	case v.TypeValue != nil:
		return expr.Type(*v.TypeValue), nil
	case v.ListValue != nil:
		list := []any{}
		for _, raw := range v.ListValue.Values {
			element, err := decodeVector(raw)
			if err != nil {
				return nil, err
			}
			list = append(list, element)
		}
		return list, nil
	case v.MapValue != nil:
		texts, others := map[string]any{}, map[any]any{}
		for _, entry := range v.MapValue.Entries {
			key, err := decodeVector(entry.Key)
			if err != nil {
				return nil, err
			}
			value, err := decodeVector(entry.Value)
			if err != nil {
				return nil, err
			}
			others[key] = value
			if text, ok := key.(string); ok {
				texts[text] = value
			}
		}
		if len(texts) == len(others) {
			return texts, nil
		}
		return others, nil
	case v.ObjectValue != nil && strings.HasSuffix(v.ObjectValue.Type, "google.protobuf.Duration"):
		return time.ParseDuration(fmt.Sprint(v.ObjectValue.Value))
	case v.ObjectValue != nil && strings.HasSuffix(v.ObjectValue.Type, "google.protobuf.Timestamp"):
		return time.Parse(time.RFC3339Nano, fmt.Sprint(v.ObjectValue.Value))
	case strings.Contains(string(raw), `"nullValue"`):
		return nil, nil
	}
	return nil, errOutside
}

// sameValue compares values and their types.
func sameValue(got, want any) bool {
	switch w := want.(type) {
	case []any:
		g, ok := got.([]any)
		return ok && slices.EqualFunc(g, w, sameValue)
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for key, value := range w {
			if other, ok := g[key]; !ok || !sameValue(other, value) {
				return false
			}
		}
		return true
	case map[any]any:
		g, ok := got.(map[any]any)
		if !ok || len(g) != len(w) {
			return false
		}
		for key, value := range w {
			if other, ok := g[key]; !ok || !sameValue(other, value) {
				return false
			}
		}
		return true
	case float64:
		g, ok := got.(float64)
		return ok && (cmp.Compare(g, w) == 0 || g == w || math.IsNaN(g) && math.IsNaN(w))
	}
	return got == want
}
