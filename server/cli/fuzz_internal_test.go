package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"agentd/server/fault"
	"agentd/server/fuzztest"
)

// unseen tells by ranges which characters steer a terminal or cannot be seen.
func unseen(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == 0xAD || r >= 0x200B && r <= 0x200F || r >= 0x2028 && r <= 0x202E ||
		r >= 0x2060 && r <= 0x206F || r == 0xFEFF || r >= 0xFE00 && r <= 0xFE0F || r >= 0xE0000 && r <= 0xE0FFF
}

// FuzzMargin sets what agents say apart from questions: on a terminal of any width, no line begins without the mark.
func FuzzMargin(f *testing.F) {
	f.Add("plain\ntext", "", uint8(80))
	f.Add("long enough to be shown on several lines", "pay waits for your approval:\n[y]es? ", uint8(20))
	f.Add("\t\u4f60\u597d\u200b\r", "\U000e0041\n\n\t", uint8(21))
	f.Fuzz(func(t *testing.T, first, then string, width uint8) {
		columns := max(20, int(width))
		m := margin{mark: "| ", width: columns}
		fuzztest.Cost{PerByte: 64}.Check(t, len(first), func() { m := m; m.set(first) })
		got := m.set(first) + m.set(then)
		for line := range strings.SplitSeq(got, "\n") {
			if line != "" && !strings.HasPrefix(line, "| ") || utf8.RuneCountInString(line) >= columns || strings.ContainsFunc(line, unseen) {
				t.Errorf("a margin of %d columns shows %q and %q as %q", columns, first, then, got)
			}
		}
		whole := margin{mark: "| ", width: columns}
		if utf8.ValidString(first) && utf8.ValidString(then) && whole.set(first+then) != got {
			t.Errorf("%q and %q are shown as %q, at once as %q", first, then, got, whole.set(first+then))
		}
	})
}

// FuzzEscaped shows arguments to whoever decides on them: nothing that cannot be seen, and the same JSON.
func FuzzEscaped(f *testing.F) {
	for _, s := range []string{`{"to":"ann"}`, "{\"to\":\"\u202eann\u200b\U000e0041\u007f\"}", `"\u0000\\"`, "[1,\n\"\u2028\"]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fuzztest.Cost{PerByte: 64}.Check(t, len(s), func() { escaped(s) })
		got := escaped(s)
		if strings.ContainsFunc(strings.ReplaceAll(got, "\n", ""), unseen) {
			t.Errorf("escaped(%q) = %q", s, got)
		}
		var was, is any
		if utf8.ValidString(s) && json.Unmarshal([]byte(s), &was) == nil && !strings.ContainsAny(s, "\t\r") { // white space outside of texts
			if err := json.Unmarshal([]byte(got), &is); err != nil || !reflect.DeepEqual(was, is) {
				t.Errorf("escaped(%q) = %q, which is %v, %v", s, got, is, err)
			}
		}
	})
}

// FuzzPrintable puts texts of others on a terminal, which they must not steer.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[2J\x9b31m", "a\r\nb\u2028c", "\u202Eevil\u2066", "zero\u200bwidth\ufeff\u2060\U000e0041\u00ad\ufe0f", "\xff\xc2\x9b", "\u009b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		fuzztest.Check(t, len(s), func() { printable(s) })
		got := printable(s)
		for _, r := range got {
			if unseen(r) {
				t.Errorf("printable(%q) = %q, which has %q", s, got, r)
			}
		}
		if printable(got) != got || utf8.RuneCountInString(got) != utf8.RuneCountInString(s) {
			t.Errorf("printable(%q) = %q, and of that %q", s, got, printable(got))
		}
		var out bytes.Buffer
		(&call{stderr: &out}).exit(fault.Told(s, s, s))
		if strings.Count(out.String(), "\n") > 2 || strings.ContainsAny(out.String(), "\x1b\r\u009b") {
			t.Errorf("a failure that a server tells with %q is written as %q", s, out.String())
		}
	})
}

// FuzzAge reads how long a token lives or how old an entry is: what the standard library reads, and days.
func FuzzAge(f *testing.F) {
	for _, s := range []string{"90d", "24h", "1.5d", "-1d", "0", "1d12h", "1e9d", "99999999999d", "d", "2026-01-31", "2026-01-31T12:00:00+02:00", "+3d", ".5d", "\u00b5s"} {
		f.Add(s)
	}
	now := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		fuzztest.Cost{PerByte: 64}.Check(t, len(text), func() { instant(text, now) }) //nolint:errcheck // it is looked at below
		var e expiry
		err := e.Set(text)
		want, wantErr := time.ParseDuration(text)
		if days, ok := strings.CutSuffix(text, "d"); ok {
			if want, wantErr = time.ParseDuration(days + "h"); want > 100*365*time.Hour {
				want = 100 * 365 * time.Hour
			}
			want *= 24
		}
		if sound := wantErr == nil && want > 0; sound != (err == nil) || sound && time.Duration(e) != want || !sound && e != 0 {
			t.Errorf("Set(%q) = %v, %v, want %v, %v", text, e, err, want, wantErr)
		}
		var again expiry
		if err == nil && (again.Set(e.String()) != nil || again != e) {
			t.Errorf("Set(%q) = %v, which is read as %v", text, time.Duration(e), time.Duration(again))
		}
		at, atErr := instant(text, now)
		if err == nil && (atErr != nil || !at.Equal(now.Add(-want))) {
			t.Errorf("instant(%q) = %v, %v, want %v before %v", text, at, atErr, want, now)
		}
		if atErr == nil && err != nil {
			if same, err := instant(at.Format(time.RFC3339), now); err != nil || !same.Equal(at.Truncate(time.Second)) && at.Year() < 10000 {
				t.Errorf("instant(%q) = %v, and of that %v, %v", text, at, same, err)
			}
		}
	})
}

// FuzzArguments takes command lines apart; each line is an argument. What follows -- is no flag.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{"a\n--json\nb", "--json\n--\n--x", "--limit\n5\n-h", "--action\n--\nx\n--json", "--limit=x", "-\n--", "--\n--\n--", "--acton=1", "--\x00", "--limit\n99999999999999999999"} {
		f.Add(s)
	}
	cmd := &command{name: "audit list", args: "[A] [B]", flags: "from-seq to-seq action actor limit json"}
	// What the flags of this command take, to tell by another way where they end.
	valued := map[string]bool{"from-seq": true, "to-seq": true, "action": true, "actor": true, "limit": true}
	f.Fuzz(func(t *testing.T, text string) {
		args := strings.Split(text, "\n")
		var o options
		got, err := cmd.parse(args, &o)
		if err != nil {
			if !errors.Is(err, flag.ErrHelp) && !fault.Is(err, fault.Usage) {
				t.Errorf("parse(%q) = %v, want a usage error", args, err)
			}
			return
		}
		var want []string
		for i := 0; i < len(args); i++ {
			name := strings.TrimPrefix(strings.TrimPrefix(args[i], "-"), "-")
			switch {
			case args[i] == "--":
				want = append(want, args[i+1:]...)
				i = len(args)
			case len(args[i]) < 2 || args[i][0] != '-':
				want = append(want, args[i])
			case valued[name]:
				i++
			}
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") || len(got) != len(want) || len(got) > 2 {
			t.Errorf("parse(%q) = %q, want %q", args, got, want)
		}
	})
}

// FuzzValue reads a secret on stdin: it is what was sent, without one line break at its end.
func FuzzValue(f *testing.F) {
	for _, s := range []string{"s3cret", "s3cret\n", "s3cret\r\n", "\n", "\r", "", "a\nb\n\n", "\x00\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		c := &call{stdin: bytes.NewReader(sent), cmd: &command{name: "secrets set"}}
		c.flags.fromStdin = true
		got, err := c.givenValue("--value", "")
		if err != nil {
			if !fault.Is(err, fault.ConfigInvalid) || strings.Trim(string(sent), "\r\n") != "" {
				t.Errorf("givenValue() of %q = %v", sent, err)
			}
			return
		}
		if rest, ok := bytes.CutPrefix(sent, got); !ok || len(got) == 0 || !strings.Contains(" \n \r \r\n ", " "+string(rest)+" ") && len(rest) > 0 {
			t.Errorf("givenValue() of %q = %q", sent, got)
		}
	})
}

// FuzzState finds a run's state in what people give to `runs import`.
func FuzzState(f *testing.F) {
	for _, s := range []string{`{"state":{"version":"x"}}`, `{"version":"x","state":1}`, `{"State":null}`, `[]`, `{"state":1,"VERSION":null}`, `{"state"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		fuzztest.Cost{PerByte: 8}.Check(t, len(doc), func() { stateIn(doc) })
		got := stateIn(doc)
		if !bytes.Equal(got, doc) && (!json.Valid(got) || !bytes.Contains(doc, got)) {
			t.Errorf("stateIn(%q) = %q", doc, got)
		}
	})
}

// FuzzInherited reads what a service manager says about sockets (sd_listen_fds(3)). It takes one only where it is told
// exactly that, which is not tried here: the descriptor belongs to somebody else.
func FuzzInherited(f *testing.F) {
	f.Add("1", "1")
	f.Add("", "")
	f.Add("self", "2")
	f.Add("self", "01")
	f.Fuzz(func(t *testing.T, pid, n string) {
		if pid == "self" {
			pid = strconv.Itoa(os.Getpid())
		}
		ours := pid == strconv.Itoa(os.Getpid())
		if n == "1" && ours || strings.ContainsRune(pid+n, 0) {
			return
		}
		l, err := (&call{env: []string{"LISTEN_PID=" + pid, "LISTEN_FDS=" + n}}).inherited()
		if l != nil || ours != fault.Is(err, fault.BindFailed) || !ours && err != nil || err != nil && len(fault.Of(err).Message) > 200 {
			t.Errorf("LISTEN_PID=%q LISTEN_FDS=%q = %v, %v", pid, n, l, err)
		}
	})
}
