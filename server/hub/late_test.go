package hub_test

import (
	"encoding/json"
	"sync"
	"testing"

	"agentd/server/hub"
)

// TestLate: a payload that is made late is made for the first reader, once, for the entries of all subjects; until then
// its weight counts.
func TestLate(t *testing.T) {
	h := hub.New(hub.Options{})
	made := 0
	late := &hub.Late{Weight: 5000, Make: func() json.RawMessage {
		made++
		return json.RawMessage(`{"type":"end"}`)
	}}
	for _, subject := range []string{"a", "b"} {
		h.Publish(subject, &hub.Entry{Pos: hub.Position{Epoch: 1, Seq: 1}, Type: "end", Late: late})
	}
	if n := h.Stats().Bytes; n < 10_000 || made != 0 {
		t.Errorf("two entries that nobody has read count %d bytes, and were made %d times; want at least 10000, and 0", n, made)
	}
	var readers sync.WaitGroup
	for _, subject := range []string{"a", "b", "b"} {
		sub, ring := h.Subscribe(subject, hub.NewQueue(1, 1, func() {}), nil)
		defer sub.Close()
		readers.Go(func() {
			if got := string(ring[0].Body()); got != `{"type":"end"}` {
				t.Errorf("Body() = %s", got)
			}
		})
	}
	readers.Wait()
	if made != 1 {
		t.Errorf("the payload was made %d times, want once", made)
	}
}
