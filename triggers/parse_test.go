package triggers_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"agentd/server/fuzztest"
	"agentd/triggers"
)

func TestParseFaults(t *testing.T) {
	for _, tt := range []struct {
		text, field string
		offset      int
		problem     string
	}{
		{"", "", 0, "it has 0 fields"},
		{" \t ", "", 0, "it has 0 fields"},
		{"* * * *", "", 0, "it has 4 fields"},
		{"0 30 25 * * *", "", 0, "it has 6 fields"},
		{"* * *\u00a0* *", "", 0, "it has 4 fields"},
		{"*\n* * * *", "", 0, "it has 4 fields"},
		{strings.Repeat(" ", 1000) + "*", "", 0, "it has 1001 bytes, and at most 1000 are allowed"},
		{" @reboot", "", 1, `"@reboot" is not one of @hourly`},
		{"@Daily", "", 0, `"@Daily" is not one of @hourly`},
		{"@daily 5", "", 0, `"@daily 5" is not one of @hourly`},
		{"TZ=UTC * * * *", "minute", 0, `"TZ=UTC" is not a number from 0 to 59`},
		{"60 * * * *", "minute", 0, `"60" is not a number from 0 to 59`},
		{"1,2,,3 * * * *", "minute", 4, `"" is not a number from 0 to 59`},
		{"1, * * * *", "minute", 2, `"" is not a number from 0 to 59`},
		{"+1 * * * *", "minute", 0, `"+1" is not a number from 0 to 59`},
		{"-1 * * * *", "minute", 0, `"" is not a number from 0 to 59`},
		{"001 * * * *", "minute", 0, `"001" is not a number from 0 to 59`},
		{"*/5x * * * *", "minute", 0, `the step "5x" is not a number from 1 to 60`},
		{"*/0 * * * *", "minute", 0, `the step "0" is not a number from 1 to 60`},
		{"*/61 * * * *", "minute", 0, `the step "61" is not a number from 1 to 60`},
		{"*/ * * * *", "minute", 0, `the step "" is not a number from 1 to 60`},
		{"*/2/3 * * * *", "minute", 0, `the step "2/3" is not a number from 1 to 60`},
		{"/2 * * * *", "minute", 0, `"" is not a number from 0 to 59`},
		{"1-4-6 * * * *", "minute", 0, `"4-6" is not a number from 0 to 59`},
		{"*-5 * * * *", "minute", 0, `"*" is not a number from 0 to 59`},
		{"5-* * * * *", "minute", 0, `"*" is not a number from 0 to 59`},
		{"** * * * *", "minute", 0, `"**" is not a number from 0 to 59`},
		{"* 24 * * *", "hour", 2, `"24" is not a number from 0 to 23`},
		{"* 1,22-2 * * *", "hour", 4, `"22-2" descends`},
		{"* */25 * * *", "hour", 2, `the step "25" is not a number from 1 to 24`},
		{"* *  0 * *", "day of month", 5, `"0" is not a number from 1 to 31`},
		{"* * 32 * *", "day of month", 4, `"32" is not a number from 1 to 31`},
		{"* * L * *", "day of month", 4, `"L" is not a number from 1 to 31`},
		{"* * 15W * *", "day of month", 4, `"15W" is not a number from 1 to 31`},
		{"* * ? * *", "day of month", 4, `"?" is not a number from 1 to 31`},
		{"* * MON * *", "day of month", 4, `"MON" is not a number from 1 to 31`},
		{"* * * 13 *", "month", 6, `"13" is not a number from 1 to 12 or a name from JAN to DEC`},
		{"* * * 0 *", "month", 6, `"0" is not a number from 1 to 12 or a name from JAN to DEC`},
		{"* * * JANUARY *", "month", 6, `"JANUARY" is not a number`},
		{"* * * ANF *", "month", 6, `"ANF" is not a number`},
		{"* * * dec-jan *", "month", 6, `"dec-jan" descends`},
		{"* * * * 8", "day of week", 8, `"8" is not a number from 0 to 7 or a name from SUN to SAT`},
		{"* * * * FRI-SUN", "day of week", 8, `"FRI-SUN" descends; write 7 for a Sunday at the end`},
		{"* * * * 1,7/2", "day of week", 10, `"7/2" begins after the last day; write 0 for a Sunday`},
		{"* * * * 5#2", "day of week", 8, `"5#2" is not a number`},
		{"* * * * 5L", "day of week", 8, `"5L" is not a number`},
		{"* * * * */8", "day of week", 8, `the step "8" is not a number from 1 to 7`},
		{"* * * * \xff", "day of week", 8, `"\xff" is not a number`},
	} {
		_, err := triggers.Parse(tt.text)
		var e *triggers.SyntaxError
		if !errors.As(err, &e) || e.Field != tt.field || e.Offset != tt.offset || !strings.HasPrefix(e.Problem, tt.problem) {
			t.Errorf("Parse(%q) = %#v, want field %q, offset %d, %s", tt.text, err, tt.field, tt.offset, tt.problem)
		}
	}
	_, err := triggers.Parse("* 1,22-2 * * *")
	if want := `hour, at character 5: "22-2" descends`; err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
	_, err = triggers.Parse("*")
	if want := "cron text: it has 1 fields, not the five minute, hour, day of month, month and day of week"; err.Error() != want {
		t.Errorf("Parse = %v, want %s", err, want)
	}
}

// TestParseSame has texts with the same meaning.
func TestParseSame(t *testing.T) {
	for _, same := range [][]string{
		{"@hourly", "0 * * * *", " 0\t*  * * * ", "00 * * * *", "0 * */1 * 0-7"},
		{"@daily", "0 0 * * *", "0 0 1-31 1-12 0-6", "0 0 * * 1-7", "\t@daily "},
		{"@weekly", "0 0 * * 0", "0 0 * * 7", "0 0 * * sun", "0 0 * * 0,7"},
		{"@monthly", "0 0 1 * *", "0 0 1 Jan-DEC *"},
		{"@yearly", "0 0 1 1 *", "0 0 1 jan *"},
		{"5,5,7 1-3 * * *", "5-7/2 3,2,1 * * *"},
		{"50/5 0 * * *", "50,55 0 * * *", "50-59/5 0 * * *"},
		{"0 0 * 3/3 *", "0 0 * MAR,JUN,SEP,DEC *", "0 0 * 3-12/3 *"},
		{"0 0 * * 5-7", "0 0 * * fri,sat,sun", "0 0 * * 5,6,0"},
		{"0 0 * * 2/2", "0 0 * * 2,4,6"},
		{"0 0 * * 1/2", "0 0 * * 1,3,5", "0 0 * * 1-6/2"},
		{"0 0 * * 1-7/2", "0 0 * * 0,1,3,5"},
	} {
		want, _ := triggers.Parse(same[0])
		for _, text := range same[1:] {
			if c, err := triggers.Parse(text); err != nil || c != want {
				t.Errorf("Parse(%q) = %+v, %v, want %+v as of %q", text, c, err, want, same[0])
			}
		}
	}
}

// grammar is that of the package's comment, but for ranges and the order of A and B.
var grammar = func() *regexp.Regexp {
	field := func(value string) string {
		element := `(\*(/\d\d?)?|(` + value + `)(-(` + value + `))?(/\d\d?)?)`
		return element + `(,` + element + `)*`
	}
	number := field(`\d\d?`)
	month := field(`(?i:\d\d?|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)`)
	weekday := field(`(?i:[0-7]|0[0-7]|sun|mon|tue|wed|thu|fri|sat)`)
	return regexp.MustCompile(`^[ \t]*(@hourly|@daily|@weekly|@monthly|@yearly|` + strings.Join([]string{number, number, number, month, weekday}, `[ \t]+`) + `)[ \t]*$`)
}()

func FuzzCronText(f *testing.F) {
	for _, text := range []string{"* * * * *", "*/5 1-5 1,15 JAN-mar mon", "0 4 * * 7", "5/10 0-23/2 31 2 0,6", "@weekly", "1,,2 * * * *", "*/0 * * * *", "a b c d e", "1 2 3 4"} {
		f.Add(text)
	}
	names := map[string]bool{"": true, "minute": true, "hour": true, "day of month": true, "month": true, "day of week": true}
	f.Fuzz(func(t *testing.T, text string) {
		fuzztest.Check(t, len(text), func() {
			c, err := triggers.Parse(text)
			var e *triggers.SyntaxError
			switch {
			case err == nil:
				if !grammar.MatchString(text) {
					t.Errorf("Parse(%q) = %+v, and the grammar excludes it", text, c)
				}
				if due, ok := c.Next(time.Unix(1.7e9, 0), time.UTC); ok && c.Count(due.Add(-time.Second), due, time.UTC) != 1 {
					t.Errorf("%q is due at %v, and Count does not count it", text, due)
				}
			case !errors.As(err, &e) || !names[e.Field] || e.Offset < 0 || e.Offset > len(text) || e.Problem == "":
				t.Errorf("Parse(%q) = %#v", text, err)
			}
		})
	})
}
