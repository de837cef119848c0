package transcript_test

import (
	"testing"

	"agentd/server/transcript"
)

func TestID(t *testing.T) {
	for id, want := range map[string][2]int64{"msg-1-0": {1, 0}, "msg-z-12": {35, 12}, "msg-10-7": {36, 7}} {
		if got := transcript.ID(want[0], int(want[1])); got != id {
			t.Errorf("ID(%d, %d) = %s, want %s", want[0], want[1], got, id)
		}
		if run, index, ok := transcript.ParseID(id); run != want[0] || int64(index) != want[1] || !ok {
			t.Errorf("ParseID(%q) = %d, %d, %v, want %v", id, run, index, ok, want)
		}
	}
	for _, id := range []string{"", "msg-", "msg-1", "msg-1-", "msg--1", "1-0", "msg-01-0", "msg-1-00", "msg-Z-1", "msg-1--1", "msg--1-1", "msg-+1-1", "msg-0-1",
		"msg-1-0-0", "msg-zzzzzzzzzzzzzzzz-0", "msg-1-0 "} {
		if run, index, ok := transcript.ParseID(id); ok {
			t.Errorf("ParseID(%q) = %d, %d, true, want false", id, run, index)
		}
	}
}

func FuzzParseID(f *testing.F) {
	f.Add("msg-1-0")
	f.Add("msg-zz-99999")
	f.Add("msg-1-")
	f.Fuzz(func(t *testing.T, id string) {
		run, index, ok := transcript.ParseID(id)
		if ok && (run < 1 || index < 0 || transcript.ID(run, index) != id) {
			t.Errorf("ParseID(%q) = %d, %d, true", id, run, index)
		}
	})
}
