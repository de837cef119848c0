package evidence

import (
	"encoding/json"
	"testing"

	"agentd/server/audit"
)

// TestStarted holds who started a run to the entry of the start itself; that of a request counts where there is none.
func TestStarted(t *testing.T) {
	entry := func(seq int64, action audit.Action, by, target, run, metadata string) audit.Entry {
		return audit.Entry{Seq: seq, Action: string(action), Actor: audit.Actor{Kind: audit.ActorToken, ID: by}, Target: target, Decision: audit.Success,
			Context: &audit.Context{RunID: run}, Metadata: json.RawMessage(metadata)}
	}
	request := entry(1, audit.HTTPRequest, "a", "/v1/agents/x/run", "r", `{"method":"POST"}`)
	again := entry(2, audit.HTTPRequest, "b", "/v1/agents/x/run", "r", `{"method":"POST","idempotencyReplayed":true}`)
	start := entry(3, audit.RunStart, "c", "run:r", "r", `{}`)
	imported := entry(4, audit.RunImport, "d", "run:r", "r", `{}`)
	refused := entry(5, audit.RunStart, "e", "run:r", "r", `{}`)
	refused.Decision = audit.Denied
	other := entry(6, audit.RunStart, "f", "run:s", "s", `{}`)
	resume := entry(7, audit.HTTPRequest, "g", "/v1/runs/r/resume", "r", `{"method":"POST"}`)
	for name, tt := range map[string]struct {
		entries []audit.Entry
		want    int64
	}{
		"its own entry":       {[]audit.Entry{start, request, again, resume}, 3},
		"the last of two":     {[]audit.Entry{start, imported, request}, 4},
		"of a request":        {[]audit.Entry{request, again, resume, refused, other}, 1},
		"sent again only":     {[]audit.Entry{again, resume}, 2},
		"refused, and others": {[]audit.Entry{refused, other, resume}, 0},
	} {
		v := &verifier{manifest: Manifest{RunID: "r"}, entries: tt.entries}
		for i := range tt.entries {
			v.accounts = append(v.accounts, accountOf(&tt.entries[i], "r"))
		}
		for _, e := range tt.entries {
			if e.Seq == tt.want {
				v.report.StartedBy = "token:" + e.Actor.ID
			}
		}
		if v.started(); v.report.StartEntry != tt.want || len(v.report.Problems) > 0 {
			t.Errorf("%s: the start is entry %d with %v, want %d", name, v.report.StartEntry, v.report.Problems, tt.want)
		}
	}
}
