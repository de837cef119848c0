package session_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/session"
	"agentd/store"
)

const user = `{"role":"user","content":"hi"}`

func TestImportRefuses(t *testing.T) {
	r := newRig(t)
	r.conversation("taken")
	whole := r.export("taken")
	for name, tc := range map[string]struct {
		file, as string
		want     *fault.Kind
		issues   []string // parts of them, in order; each begins with its line
	}{
		"nothing":           {file: "", want: fault.ExportFormat, issues: []string{"1 is missing"}},
		"no JSON":           {file: "hello\n", want: fault.ExportFormat, issues: []string{"1 is not a record"}},
		"an array":          {file: "[1]\n", want: fault.ExportFormat, issues: []string{"1 is not a JSON object"}},
		"another file":      {file: `{"a":1}`, want: fault.ExportFormat, issues: []string{"1 is not the meta record"}},
		"meta later":        {file: theFile + "\n" + meta, want: fault.ExportFormat, issues: []string{"1 is not the meta record"}},
		"other format":      {file: strings.Replace(file(theFile), "svc-session-export", "svc-tool-cassette", 1), want: fault.ExportFormat, issues: []string{`1 names the format "svc-tool-cassette"`}},
		"newer":             {file: strings.Replace(file(theFile), `"1.0"`, `"2.0"`, 1), want: fault.ExportTooNew},
		"much newer":        {file: strings.Replace(file(theFile), `"1.0"`, `"4000000000.1"`, 1), want: fault.ExportTooNew},
		"odd version":       {file: strings.Replace(file(theFile), `"1.0"`, `"one"`, 1), want: fault.ExportUnsupported},
		"half version":      {file: strings.Replace(file(theFile), `"1.0"`, `"1"`, 1), want: fault.ExportUnsupported},
		"minus version":     {file: strings.Replace(file(theFile), `"1.0"`, `"-1.0"`, 1), want: fault.ExportUnsupported},
		"no version":        {file: strings.Replace(file(theFile), `"version":"1.0",`, ``, 1), want: fault.ExportUnsupported},
		"encrypted":         {file: `{"enc":"AAAA"}` + "\n", want: fault.ExportEncrypted},
		"encrypted body":    {file: file(`{"enc":"AAAA"}`), want: fault.ExportEncrypted},
		"cipher":            {file: strings.Replace(file(theFile), `"writtenAtIso"`, `"cipher":{"name":"x"},"writtenAtIso"`, 1), want: fault.ExportEncrypted},
		"cut off":           {file: strings.Join(lines(whole)[:9], "\n"), want: fault.ExportFormat, issues: []string{"10 is missing"}},
		"cut in a line":     {file: whole[:len(whole)-5], want: fault.ExportFormat, issues: []string{"16 is not a record", "17 is missing"}},
		"changed":           {file: strings.Replace(whole, "a cat", "a dog", 1), as: "new", want: fault.ExportChecksum},
		"CRLF":              {file: strings.ReplaceAll(whole, "\n", "\r\n"), as: "new", want: fault.ExportChecksum},
		"record gone":       {file: strings.Join(slices.Delete(lines(whole), 7, 8), "\n"), want: fault.ExportFormat, issues: []string{"15 has the recordCount 16, but the file holds 15", "15 has the messageCount 7, but the file holds 6"}},
		"counts gone":       {file: meta + "\n" + theFile + "\n" + `{"kind":"footer"}`, want: fault.ExportFormat, issues: []string{"3 has no recordCount", "3 has no messageCount", "3 has no handoffCount", "3 has no agentCount"}},
		"after the end":     {file: file(theFile) + "{}", want: fault.ExportFormat, issues: []string{"4 comes after the footer"}},
		"two ends":          {file: file(theFile) + lines(file(theFile))[2], want: fault.ExportFormat, issues: []string{"4 comes after the footer"}},
		"blank line":        {file: file(theFile, ""), want: fault.ExportFormat, issues: []string{"3 is not a record"}},
		"no kind":           {file: file(theFile, "{}"), want: fault.ExportFormat, issues: []string{"3 has no kind"}},
		"no UTF-8":          {file: file(theFile, line(1, "{\"role\":\"user\",\"content\":\"\xff\"}")), want: fault.ExportFormat, issues: []string{"3 is not UTF-8"}},
		"no session":        {file: file(), want: fault.ExportFormat, issues: []string{"2 ends a file without a session"}},
		"late session":      {file: file(line(1, user), theFile), want: fault.ExportFormat, issues: []string{"2 comes before the session"}},
		"two sessions":      {file: file(theFile, theFile), want: fault.ExportFormat, issues: []string{"3 is a second session"}},
		"odd session":       {file: file(`{"kind":"session","id":"a/b","createdAt":"then","closedAt":"1969-12-31T00:00:00Z"}`), want: fault.ExportFormat, issues: []string{"2 has an invalid id", "2 has no userId", "2 has an invalid time in createdAt", "2 has an invalid time in closedAt"}},
		"other session":     {file: file(theFile, strings.Replace(line(1, user), `"s"`, `"z"`, 1)), want: fault.ExportFormat, issues: []string{"3 belongs to another session"}},
		"odd agent":         {file: file(theFile, `{"kind":"agent"}`), want: fault.ExportFormat, issues: []string{"3 has no id"}},
		"order":             {file: file(theFile, line(2, user), line(2, user), line(1, user)), want: fault.ExportFormat, issues: []string{"4 has the sequence 2 after 2", "5 has the sequence 1 after 2"}},
		"no sequence":       {file: file(theFile, line(0, user)), want: fault.ExportFormat, issues: []string{"3 has the sequence 0 after 0"}},
		"huge sequence":     {file: file(theFile, line(1<<53, user)), want: fault.ExportFormat, issues: []string{"3 has the sequence 9007199254740992"}},
		"half sequence":     {file: file(theFile, strings.Replace(line(1, user), `"sequence":1`, `"sequence":1.5`, 1)), want: fault.ExportFormat, issues: []string{`3 has a wrong type in "sequence": number 1.5`}},
		"no time":           {file: file(theFile, strings.Replace(line(1, user), `2026-01-01T00:00:00Z`, ``, 1)), want: fault.ExportFormat, issues: []string{"3 has an invalid time in createdAt"}},
		"no time in UTC":    {file: file(theFile, strings.Replace(line(1, user), `2026-01-01T00:00:00Z`, `1970-01-01T00:00:00+01:00`, 1), strings.Replace(line(2, user), `2026-01-01T00:00:00Z`, `9999-12-31T23:00:00-01:00`, 1)), want: fault.ExportFormat, issues: []string{"3 has an invalid time in createdAt", "4 has an invalid time in createdAt"}},
		"deep":              {file: file(theFile, line(1, `{"role":"user","content":[{"type":"text","text":"x","meta":`+strings.Repeat("[", 1000)+strings.Repeat("]", 1000)+`}]}`)), want: fault.ExportFormat, issues: []string{"3 is nested more than 510 levels deep"}},
		"odd role":          {file: file(theFile, line(1, `{"role":"ghost","content":"x"}`), line(2, `{}`)), want: fault.ExportFormat, issues: []string{`3 has a message of the role "ghost"`, `4 has a message of the role ""`}},
		"two roles":         {file: file(theFile, strings.Replace(line(1, user), `"sequence"`, `"role":"assistant","sequence"`, 1)), want: fault.ExportFormat, issues: []string{`3 has the role "assistant", but`}},
		"odd content":       {file: file(theFile, line(1, `{"role":"user","content":7}`)), want: fault.ExportFormat, issues: []string{"3 is not a record"}},
		"odd part":          {file: file(theFile, line(1, `{"role":"user","content":[{"type":"smell"}]}`)), want: fault.ExportFormat, issues: []string{`3 has a part of the unknown type "smell"`}},
		"raw bytes":         {file: file(theFile, line(1, `{"role":"user","content":[{"type":"image","image":{"0":137,"1":80}}]}`), line(2, `{"role":"user","content":[{"type":"audio"}]}`)), want: fault.ExportFormat, issues: []string{"3 has a part of type image without", "4 has a part of type audio without"}},
		"nameless call":     {file: file(theFile, line(1, `{"role":"assistant","content":"","toolCalls":[{"toolCallId":"c"}]}`)), want: fault.ExportFormat, issues: []string{"3 has a tool call without"}},
		"nameless answer":   {file: file(theFile, line(1, `{"role":"tool","content":"x"}`)), want: fault.ExportFormat, issues: []string{"3 has a tool message without"}},
		"other outcome":     {file: file(theFile, strings.TrimSuffix(line(1, `{"role":"tool","content":"x","toolCallId":"c"}`), "}")+`,"outcome":{"toolCallId":"d"}}`), want: fault.ExportFormat, issues: []string{"3 has a tool message without"}},
		"odd handoff":       {file: file(theFile, `{"kind":"handoff","sessionId":"s","at":"x"}`), want: fault.ExportFormat, issues: []string{"3 has no fromAgentId", "3 has an invalid time in at"}},
		"too many problems": {file: file(slices.Repeat([]string{"{}"}, 100)...), want: fault.ExportFormat, issues: slices.Repeat([]string{" has no kind"}, 20)},
		"a long line":       {file: meta + "\n" + strings.Repeat("x", 16<<20+1), want: fault.BodyTooLarge},
		"taken":             {file: whole, want: fault.SessionExists},
		"odd new id":        {file: whole, as: "a b", want: fault.ConfigInvalid, issues: []string{""}},
	} {
		_, err := r.svc.Import(t.Context(), strings.NewReader(tc.file), session.ImportOptions{As: tc.as})
		if !fault.Is(err, tc.want) {
			t.Errorf("%s: Import = %v, want %s", name, err, tc.want.Code)
			continue
		}
		var got []string
		for _, is := range fault.Of(err).Issues {
			at := ""
			if len(is.Path) == 2 {
				at = fmt.Sprint(is.Path[1])
			}
			got = append(got, at+" "+is.Message)
		}
		if !slices.EqualFunc(got, tc.issues, strings.Contains) {
			t.Errorf("%s: issues\n  %s\nwant\n  %s", name, strings.Join(got, "\n  "), strings.Join(tc.issues, "\n  "))
		}
	}
	if all, err := r.svc.List(t.Context(), "", ""); err != nil || len(all) != 1 {
		t.Errorf("after all that was refused there are the sessions %v, %v; want one", all, err)
	}
}

func TestImportOfABrokenReader(t *testing.T) {
	r := newRig(t)
	broken := errors.New("broken")
	whole := file(theFile)
	_, err := r.svc.Import(t.Context(), io.MultiReader(strings.NewReader(whole[:300]), iotest.ErrReader(broken)), session.ImportOptions{})
	if !errors.Is(err, broken) {
		t.Errorf("Import = %v, want the reader's error", err)
	}
	// All at once or byte by byte, with or without the last line feed.
	for i, reader := range []io.Reader{strings.NewReader(whole), iotest.OneByteReader(strings.NewReader(whole)), strings.NewReader(strings.TrimSuffix(whole, "\n")),
		strings.NewReader(whole + "\n \r\n")} {
		if _, err := r.svc.Import(t.Context(), reader, session.ImportOptions{As: fmt.Sprint("s", i)}); err != nil {
			t.Errorf("reader %d: Import = %v, want none", i, err)
		}
	}
}

func TestImportTooLarge(t *testing.T) {
	r := newRig(t)
	unknown := io.MultiReader(strings.NewReader(meta+"\n"), &repeat{text: `{"kind":"x","pad":"` + strings.Repeat("a", 1<<20) + "\"}\n"})
	if _, err := r.svc.Import(t.Context(), unknown, session.ImportOptions{}); !fault.Is(err, fault.BodyTooLarge) {
		t.Errorf("Import of an endless file = %v, want body-too-large", err)
	}
}

// A repeat gives the same text for ever.
type repeat struct {
	text string
	at   int
}

func (r *repeat) Read(p []byte) (int, error) {
	n := copy(p, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	return n, nil
}

// What other writers and other versions put into a file is taken, and what cannot be kept is told.
func TestImportOfOtherWriters(t *testing.T) {
	r := newRig(t)
	foreign := file(
		strings.Replace(theFile, `"userId"`, `"mood":"good","updatedAt":"2026-01-02T02:00:00+01:00","closedAt":"2026-01-03T00:00:00Z","tags":["x"],"userId"`, 1),
		`{"kind":"agent","id":"clerk","tags":null,"retiredAt":"x"}`,
		line(3, `{"role":"system","content":"Be brief."}`),
		line(5, user),
		`{"kind":"weather","is":"fine"}`,
		line(7, `{"role":"assistant","content":"","toolCalls":[{"toolCallId":"a","toolName":"look","args":{"x":1}},{"toolCallId":"b","toolName":"find"}]}`),
		line(8, `{"role":"tool","toolCallId":"b","content":[{"type":"text","text":"found"}]}`),
		line(9, `{"role":"tool","toolCallId":"a","content":"seen"}`),
		`{"kind":"message","sessionId":"s","sequence":10,"persistedAt":"2026-01-01T00:00:01Z","deletedAt":"2026-01-01T00:00:02Z","message":`+user+`}`,
		`{"kind":"message","sessionId":"s","sequence":11,"persistedAt":"2026-01-01T00:00:01Z","message":`+user+`}`,
		line(12, `{"role":"tool","toolCallId":"z","content":""}`),
		line(13, `{"role":"assistant","content":"","toolCalls":[{"toolCallId":"c","toolName":"look","args":{}}]}`),
		line(14, user),
		strings.Replace(line(20, `{"role":"assistant","content":"well","toolCalls":[{"toolCallId":"d","toolName":"pay","args":{}}]}`), `"sequence"`, `"agentId":"expert","sequence"`, 1),
		`{"kind":"audit","id":"aud-1"}`, `{"kind":"audit","id":"aud-2"}`)
	foreign = strings.Replace(foreign, `"1.0"`, `"0.9"`, 1)
	foreign = strings.Replace(foreign, `"recordCount":18`, `"recordCount":16`, 1)
	got := r.importAs(foreign, "")
	if got.Session.Closed == 0 || got.Session.Updated != 1_767_315_600_000 || got.Session.ID != "s" || got.Messages != 10 {
		t.Errorf("Import = %+v, want session s, closed, updated when it was, with 10 messages", got)
	}
	want := []string{
		"Answers of tools without a call before them, which a model may refuse to continue from: 1.",
		"Audit entries left out, which this version does not keep in a session: 2.",
		"Deleted messages left out: 1.",
		`Records of the unknown kind "weather" left out: 1.`,
		"System messages left out, which belong to agents and not to sessions: 1.",
		"Tool calls without an answer at the end, recorded as aborted: 1.",
		"Tool calls without an answer before the next message, which a model may refuse to continue from: 1.",
	}
	if !slices.Equal(got.Warnings, want) {
		t.Errorf("warnings\n  %s\nwant\n  %s", strings.Join(got.Warnings, "\n  "), strings.Join(want, "\n  "))
	}
	list, err := r.svc.Messages(t.Context(), "s", 0)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, m := range list {
		told = append(told, fmt.Sprintf("%d %s %s", m.Sequence, m.Role, m.Content))
	}
	if got, want := strings.Join(told, "\n"), `5 user hi
7 assistant 
8 tool found
9 tool seen
11 user hi
12 tool (The tool succeeded without output.)
13 assistant 
14 user hi
20 assistant well
21 tool Error: The run had not ended when its session was exported.
[kind: aborted; recoverable: no]`; got != want {
		t.Errorf("messages\n%s\nwant\n%s", got, want)
	}
	if list[8].AgentID != "expert" {
		t.Errorf("agent of a message that only its record names = %q, want expert", list[8].AgentID)
	}
	if list[4].CreatedAt != "2026-01-01T00:00:01.000Z" {
		t.Errorf("createdAt of a message without one = %s, want persistedAt", list[4].CreatedAt)
	}
	b, _ := message.Encode(list[1].ToolCalls)
	if want := `[{"toolCallId":"a","toolName":"look","args":{"x":1}},{"toolCallId":"b","toolName":"find","args":{}}]`; string(b) != want {
		t.Errorf("calls = %s, want %s", b, want)
	}
}

// A session that is imported is a session like any other: its run is listed nowhere, and erasing it leaves nothing.
func TestImportedRun(t *testing.T) {
	r := newRig(t)
	r.conversation("s")
	r.importAs(r.export("s"), "t")
	runs := func(f store.RunFilter) (runs []*store.Run) {
		t.Helper()
		err := r.db.View(t.Context(), func(tx *store.Tx) (err error) {
			runs, err = r.db.Runs().List(tx, f)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return runs
	}
	if got := runs(store.RunFilter{}); len(got) != 2 {
		t.Errorf("List = %d runs, want the two that ran", len(got))
	}
	if got := runs(store.RunFilter{Session: "t"}); len(got) != 0 {
		t.Errorf("List(t) = %d runs, want none", len(got))
	}
	var erased []*store.Run
	r.update(func(tx *store.Tx) (err error) {
		if open, err := r.db.Runs().Open(tx, "t"); err != nil || len(open) != 0 {
			t.Errorf("Open(t) = %v, %v; want none", open, err)
		}
		erased, err = r.db.Sessions().Erase(tx, "t")
		return err
	})
	if len(erased) != 1 || erased[0].Kind != store.Import || erased[0].Owner != "clerk" {
		t.Errorf("Erase = %v, want the run of the import", erased)
	}
	if list, err := r.svc.Handoffs(t.Context(), "t"); err != nil || len(list) != 0 {
		t.Errorf("Handoffs after Erase = %v, %v; want none", list, err)
	}
	if list, err := r.svc.Messages(t.Context(), "t", 0); err != nil || len(list) != 0 {
		t.Errorf("Messages after Erase = %v, %v; want none", list, err)
	}
	r.importAs(r.export("s"), "t")
}
