package triggers_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"agentd/triggers"
)

// A difference is a text that another library takes differently, and is not compared.
type difference struct{ library, text, why string }

const (
	bothDays  = "cron-parser is due on days that match either of two restricted fields"
	weekdays  = "cron-parser counts steps without an end up to 7, which is Sunday"
	changes   = "cron-parser moves fixed times in a gap by its length, and shows hours that a text names once where the clock shows them twice"
	fixedStep = "croner takes all texts with a step in the minute or hour for those that follow the clock"
)

var differences = []difference{
	{"cron-parser", "15 12 1-7 * 1", bothDays},
	{"cron-parser", "0 0 13 * FRI", bothDays},
	{"cron-parser", "0 6 */2 * 3", bothDays},
	{"cron-parser", "0 5 * 2/5 1/2", weekdays},
	{"cron-parser", "30 2 * * *", changes},
	{"cron-parser", "*/20 2 * * SUN", changes},
	{"cron-parser", "*/30 1-3 * * *", changes},
	{"cron-parser", "5-10 2 * * *", changes},
	{"cron-parser", "*/15 0-3 * * sun", changes},
	{"croner", "0-59/10 0-4 * * *", fixedStep},
}

// TestOthers compares dues with those that other libraries find, in a file that .ci/cron/dues.mjs prints.
func TestOthers(t *testing.T) {
	path := os.Getenv("AGENTD_CRON")
	if path == "" {
		t.Skip("AGENTD_CRON names no file")
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	compared, dues := map[string]int{}, map[string]int{}
	found := make([]bool, len(differences))
	for dec := json.NewDecoder(file); ; {
		var line struct {
			Library, Text, Zone string
			Spans               [][2]int64
			Dues                []int64
		}
		if err := dec.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		c, err := triggers.Parse(line.Text)
		if err != nil {
			t.Errorf("%s reads %q, and Parse = %v", line.Library, line.Text, err)
			continue
		}
		z := zone(t, line.Zone)
		var ours []int64
		count := int64(0)
		for _, span := range line.Spans {
			from, to := time.Unix(span[0]*60, 0), time.Unix(span[1]*60, 0)
			count += c.Count(from, to, z)
			for at := from; ; {
				due, ok := c.Next(at, z)
				if !ok || due.After(to) {
					break
				}
				ours = append(ours, due.Unix()/60)
				at = due
			}
		}
		if count != int64(len(ours)) {
			t.Errorf("%q in %s: Count = %d, and Next finds %d", line.Text, line.Zone, count, len(ours))
		}
		known := slices.IndexFunc(differences, func(d difference) bool { return d.library == line.Library && d.text == line.Text })
		if same := slices.Equal(ours, line.Dues); known >= 0 {
			found[known] = found[known] || !same
			continue
		} else if same {
			compared[line.Library]++
			dues[line.Library] += len(ours)
			continue
		}
		i := 0
		for i < len(ours) && i < len(line.Dues) && ours[i] == line.Dues[i] {
			i++
		}
		first := func(all []int64) string {
			if i == len(all) {
				return "none"
			}
			return time.Unix(all[i]*60, 0).In(z).Format(time.RFC3339)
		}
		t.Errorf("%q in %s: %s finds %d dues, want %d; the first that differs is %s, want %s", line.Text, line.Zone, line.Library, len(line.Dues), len(ours), first(line.Dues), first(ours))
	}
	for library, n := range compared {
		t.Logf("%s: %d texts in zones, %d dues, all the same", library, n, dues[library])
	}
	if len(compared) != 2 {
		t.Errorf("%d libraries are compared, want 2", len(compared))
	}
	for i, d := range differences {
		t.Logf("not compared: %q, because %s", d.text, d.why)
		if !found[i] {
			t.Errorf("%s finds the same dues of %q: compare them", d.library, d.text)
		}
	}
}
