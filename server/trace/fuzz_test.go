package trace_test

import (
	"strings"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/trace"
	"agentd/server/transcript"
)

// What a client sends as a cursor or a message is one of the target's, or refused.
func FuzzReplay(f *testing.F) {
	r := family(f)
	r.message("a", message.User, time.UnixMilli(0), message.Message{Role: message.User})
	for _, cursor := range []string{"", r.id("a", 0), r.id("e", 0), r.id("f", 0), "0000000130000000", "000000013000000", "+0000001f0000000", "0000000_30000000",
		"ABCDEFAB30000000", "ffffffffffffffff", "00000001f0000000", "\x00", "00000001\xff0000000"} {
		f.Add(cursor, transcript.ID(r.runs["a"].N, 0))
	}
	f.Add(r.id("a", 1), "msg--1-0")
	all := ids(r.replay(session("s"), trace.Options{}))
	f.Fuzz(func(t *testing.T, cursor, from string) {
		o := trace.Options{Cursor: cursor, FromMessageID: from}
		p, err := r.service.Replay(t.Context(), session("s"), o)
		if err != nil {
			if !fault.Is(err, fault.ConfigInvalid) {
				t.Errorf("Replay(%+v) = %v, want config-invalid", o, err)
			}
			return
		}
		if known := cursor == "" || strings.Contains(" "+all+" ", " "+cursor+" "); !known || !strings.HasSuffix(all, ids(p)) {
			t.Errorf("Replay(%+v) = %s, want what comes after it of %s", o, ids(p), all)
		}
	})
}
