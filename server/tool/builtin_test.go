package tool_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fuzztest"
	"agentd/server/message"
	"agentd/server/tool"
)

// use checks and makes a call, and returns the text that the model gets.
func use(t testing.TB, ctx context.Context, tl tool.Tool, c tool.Call, args string) string {
	t.Helper()
	s := set(t, tl)
	name := tl.Spec().Name
	c.Args = json.RawMessage(args)
	if o := s.Check(&message.ToolCall{Name: name, Args: c.Args}); o != nil {
		return message.Render(o)
	}
	o := s.Execute(ctx, name, c).Outcome
	return message.Render(&o)
}

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in the year 2000
		for args, want := range map[string]string{
			`{}`:                          `{"time":"2000-01-01T00:00:00Z","weekday":"Saturday","unix":946684800,"zone":"UTC"}`,
			`{"zone":"UTC"}`:              `{"time":"2000-01-01T00:00:00Z","weekday":"Saturday","unix":946684800,"zone":"UTC"}`,
			`{"zone":"America/New_York"}`: `{"time":"1999-12-31T19:00:00-05:00","weekday":"Friday","unix":946684800,"zone":"America/New_York"}`,
			`{"zone":"Mars/Olympus"}`:     "Error: There is no time zone \"Mars/Olympus\".\n[kind: invalid_input; recoverable: no; suggested action: check_input; Use an IANA name such as America/New_York, or UTC.]",
			`{"zone":"../../etc/passwd"}`: "Error: There is no time zone \"../../etc/passwd\".\n[kind: invalid_input; recoverable: no; suggested action: check_input; Use an IANA name such as America/New_York, or UTC.]",
			`{"zone":"Local"}`:            "Error: There is no time zone \"Local\".\n[kind: invalid_input; recoverable: no; suggested action: check_input; Use an IANA name such as America/New_York, or UTC.]",
			`{"zone":3}`:                  "Error: The arguments do not fit the tool's schema: /zone: got integer, want string.\n[kind: invalid_input; recoverable: no; suggested action: check_input; Correct the named arguments.]",
		} {
			if got := use(t, t.Context(), tool.NewClock(), call, args); got != want {
				t.Errorf("clock(%s) = %s, want %s", args, got, want)
			}
		}
	})
}

func compute(t testing.TB, expression string) string {
	t.Helper()
	args, _ := message.Encode(map[string]string{"expression": expression})
	return use(t, t.Context(), tool.NewCalculator(), call, string(args))
}

func TestCalculator(t *testing.T) {
	for expression, want := range map[string]string{
		"0.1 + 0.2":                 "0.3",
		"(19.99 * 3 + 4.50) * 1.19": "76.7193",
		"2+3*4":                     "14",
		"(2+3)*4":                   "20",
		"10-4-3":                    "3",
		"100/10/5":                  "2",
		"-2^2":                      "-4",
		"(-2)^2":                    "4",
		"2^3^2":                     "512",
		"2^-2":                      "0.25",
		"2*-3":                      "-6",
		"--3":                       "3",
		"+3":                        "3",
		"0^0":                       "1",
		"(-1)^1000000001":           "-1",
		"17 % 5":                    "2",
		"-17 % 5":                   "-2",
		"5.5 % 2":                   "1.5",
		"1e3":                       "1000",
		"1.5e-3":                    "0.0015",
		".5 + 5.":                   "5.5",
		"2^100":                     "1267650600228229401496703205376",
		"1/8":                       "0.125",
		"sqrt(16)":                  "4",
		"sqrt(2.25)":                "1.5",
		"abs(-3.5)":                 "3.5",
		"min(3, 1, 2)":              "1",
		"MAX(3, 1, 2)":              "3",
		"round(2.5)":                "3",
		"round(-2.5)":               "-3",
		"round(2.345, 2)":           "2.35",
		"floor(-1.5)":               "-2",
		"ceil(-1.5)":                "-1",
		"ceil(1.1)":                 "2",
		" \t1\n":                    "1",
	} {
		if got := compute(t, expression); got != `{"result":"`+want+`","exact":true}` {
			t.Errorf("calculator(%q) = %s, want exactly %s", expression, got, want)
		}
	}
	for expression, want := range map[string]string{
		"1/3":               "0.33333333333333333333",
		"2/3*3":             "", // exact again
		"sqrt(2)":           "1.4142135623731",
		"pi":                "3.14159265358979",
		"ln(e)":             "1",
		"log10(1000)":       "3",
		"2^0.5":             "1.4142135623731",
		"sqrt(2)*sqrt(2)":   "2",
		"round(pi, 2)":      "3.14",
		"0.5^5000":          "0",
		"10^20/3":           "33333333333333333333",
		"1/2^60":            "8.6736173798840354721e-19",
		"pi*10^30":          "3.14159265358979e+30",
		"floor(pi*1000000)": "3141592",
	} {
		exact := ""
		if want == "" {
			want, exact = "2", "true"
		} else {
			exact = "false"
		}
		if got := compute(t, expression); got != `{"result":"`+want+`","exact":`+exact+`}` {
			t.Errorf("calculator(%q) = %s, want %s, exact %s", expression, got, want, exact)
		}
	}
	for expression, want := range map[string]string{
		"1/0":                          "At character 2: division by zero.",
		"5 % (1-1)":                    "At character 3: division by zero.",
		"0^-1":                         "At character 2: division by zero.",
		"1 +":                          "At character 4: the expression ends where a number is expected.",
		"1 2":                          "At character 3: an operator is expected.",
		"(1":                           "At character 3: a closing parenthesis is missing.",
		"1)":                           "At character 2: an operator is expected.",
		"é":                            "At character 1: a number is expected.",
		"1+é":                          "At character 3: a number is expected.",
		".":                            "At character 1: a number is expected.",
		"sin(1)":                       `At character 1: "sin" is neither a function nor a constant.`,
		"sqrt 2":                       "At character 6: sqrt needs its arguments in parentheses.",
		"sqrt(-1)":                     "At character 1: there is no such real number.",
		"1+ln(0)":                      "At character 3: there is no such real number.",
		"(-8)^(1/3)":                   "At character 5: there is no such real number.",
		"sqrt(1,2)":                    "At character 1: sqrt does not take 2 arguments.",
		"round(1, 51)":                 "At character 1: digits is a whole number from 0 to 50.",
		"min(1;2)":                     "At character 6: a comma or a closing parenthesis is missing.",
		"1e999999999999":               "At character 1: the exponent is too large.",
		"1e4000":                       "At character 1: the number is too large.",
		"1.1^10000":                    "At character 4: the number is too large.",
		"9^9^9^9":                      "At character 4: the number is too large.",
		strings.Repeat("(", 500):       "At character 101: more than 100 levels inside each other.",
		strings.Repeat("-", 500) + "1": "At character 101: more than 100 levels inside each other.",
		strings.Repeat("9", 600) + "*" + strings.Repeat("9", 350) + "^2": "At character 601: the number is too large.",
	} {
		got, _, _ := strings.Cut(compute(t, expression), "\n")
		if got != "Error: "+want {
			t.Errorf("calculator(%q) = %q, want %q", expression, got, want)
		}
	}
}

func FuzzCalculator(f *testing.F) {
	for _, s := range []string{"1+2*3", "-(2^-3)%.5e1", "round(pi,2)/sqrt(2)", "min(1,max(2,3))", "9^9^9", "1e", "2e+", "((", "log10(1e300)^9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		args, _ := message.Encode(map[string]string{"expression": s})
		fuzztest.Cost{PerByte: 4000, Base: 4 << 20}.Check(t, len(s), func() { tool.NewCalculator().Execute(t.Context(), tool.Call{Args: args}) }) //nolint:errcheck // it is looked at below
		res, err := tool.NewCalculator().Execute(t.Context(), tool.Call{Args: args})
		if err != nil {
			return
		}
		var out struct {
			Result string
			Exact  bool
		}
		if err := json.Unmarshal(res.Output, &out); err != nil {
			t.Fatalf("calculator(%q) = %s: %v", s, res.Output, err)
		}
		if _, ok := new(big.Rat).SetString(out.Result); !ok {
			t.Errorf("calculator(%q) = %q, want a number", s, out.Result)
		}
		// What it says is a number that it reads, and the same one.
		if out.Exact && len(out.Result) < 900 {
			again, _ := message.Encode(map[string]string{"expression": out.Result})
			if res2, err := tool.NewCalculator().Execute(t.Context(), tool.Call{Args: again}); err != nil || string(res2.Output) != string(res.Output) {
				t.Errorf("calculator(%q) = %s, and of that %s, %v", s, res.Output, res2.Output, err)
			}
		}
	})
}

type sessions struct {
	session, query string
	limit          int
	hits           []tool.SessionHit
	err            error
}

func (s *sessions) SearchSession(_ context.Context, id, query string, limit int) ([]tool.SessionHit, error) {
	s.session, s.query, s.limit = id, query, limit
	return s.hits, s.err
}

func TestSessionSearch(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	s := &sessions{hits: []tool.SessionHit{{Role: message.User, Text: strings.Repeat("é", 600), At: at}, {Role: message.Assistant, AgentID: "a", Text: "x", At: at}}}
	c := call
	c.SessionID = "s1"
	want := `{"hits":[{"role":"user","text":"` + strings.Repeat("é", 500) + `","at":"2026-01-02T03:04:05.006Z"},` +
		`{"role":"assistant","agentId":"a","text":"x","at":"2026-01-02T03:04:05.006Z"}]}`
	if got := use(t, t.Context(), tool.NewSessionSearch(s), c, `{"query":"rome","limit":5.0}`); got != want {
		t.Errorf("session_search = %s, want %s", got, want)
	}
	if s.session != "s1" || s.query != "rome" || s.limit != 5 {
		t.Errorf("it searched %q for %q with limit %d", s.session, s.query, s.limit)
	}
	s.hits = nil
	if got := use(t, t.Context(), tool.NewSessionSearch(s), c, `{"query":"rome"}`); got != `{"hits":[]}` || s.limit != 10 {
		t.Errorf("session_search without hits = %s with limit %d", got, s.limit)
	}
	s.err = errors.New("the index is closed")
	for args, want := range map[string]string{
		`{"query":"x"}`:            "Error: the index is closed",
		`{"query":"  "}`:           "Error: The query is blank.",
		`{"query":""}`:             "Error: The arguments do not fit the tool's schema: /query: got 0 characters, want at least 1.",
		`{"query":"x","limit":99}`: "Error: The arguments do not fit the tool's schema: /limit: got 99, want at most 50.",
	} {
		if got, _, _ := strings.Cut(use(t, t.Context(), tool.NewSessionSearch(s), c, args), "\n"); got != want {
			t.Errorf("session_search(%s) = %q, want %q", args, got, want)
		}
	}
	got := use(t, t.Context(), tool.NewSessionSearch(s), call, `{"query":"x"}`)
	if !strings.HasPrefix(got, "Error: This run belongs to no session") {
		t.Errorf("session_search without session = %q, want a clear error", got)
	}
}
