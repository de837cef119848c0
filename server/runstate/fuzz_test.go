package runstate_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/runstate"
)

// FuzzRead checks that whatever is read can be written and read again as the same, and that every other input gets an
// error that names places.
func FuzzRead(f *testing.F) {
	for _, data := range fixtures(f) {
		f.Add(data)
	}
	f.Add(fmt.Appendf(nil, minimal, ""))
	f.Add(nested(3))
	f.Add([]byte(`{"version":"svc-run-state/2.0"}`))
	f.Add(fmt.Appendf(nil, minimal, `,"":{"~/":[null,"\ud800"]},"\u2028":"<\u0026>","usageByModel":{"/~0":{"x":1E400,"cost":{"amount":-0}}}`))
	f.Add(with(f, "messages", `[{"role":"","content":[{"type":"","image":{"0":1,"1":255},"file":{"enc":"url","href":"x","y":{}},"audio":{}}]}]`))
	f.Add(with(f, "pendingApprovals", `[{"toolCallId":"","toolName":"","requestedAt":"","x":1},{"toolCallId":"","toolName":"","requestedAt":"","y":1}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		readCost.Check(t, len(data), func() { runstate.Read(data) }) //nolint:errcheck // it is looked at below
		_, err := runstate.Read(data)
		if err == nil {
			checkStable(t, data)
			return
		}
		e, ok := errors.AsType[*fault.Error](err)
		if !ok || e.Kind != fault.RunStateMalformed && e.Kind != fault.RunStateVersionUnsupported || len(e.Issues) == 0 {
			t.Errorf("Read(%q) = %v, want an error of the package's kinds with issues", data, err)
		}
	})
}

// TestMemory reads inputs that are made to be expensive.
func TestMemory(t *testing.T) {
	const size = 1 << 17
	var octets, many strings.Builder
	for i := 0; octets.Len() < size; i++ {
		fmt.Fprintf(&octets, `,"%d":7`, i)
	}
	for i := 0; many.Len() < size; i++ {
		fmt.Fprintf(&many, `,"%x":0`, i)
	}
	few := many.String()[:strings.LastIndex(many.String()[:size/2], ",")]
	id := strings.Repeat("i", size/2)
	part := `[{"role":"user","content":[{"type":"image","image":{` + octets.String()[1:] + `}}]}]`
	for name, data := range map[string][]byte{
		"a byte array": with(t, "messages", part),
		"many members": fmt.Appendf(nil, minimal, many.String()),
		"many unknown members under a long name": with(t, "pendingApprovals",
			`[{"toolCallId":"`+id+`","toolName":"n","requestedAt":"t"`+few+`}]`),
		"many messages":       with(t, "messages", `[`+strings.Repeat(`{"role":"u","x":1},`, size/20)+`{"role":"u"}]`),
		"deep brackets":       fmt.Appendf(nil, minimal, `,"x":`+strings.Repeat("[", 900)+strings.Repeat("0,", size/2)+"0"+strings.Repeat("]", 900)),
		"deep children":       []byte(strings.Replace(string(nested(32)), `"messages":[]`, `"messages":[{"role":"`+id+`"}]`, 1)),
		"many names for bads": with(t, "steps", `[`+strings.Repeat(`1,`, size/2)+`1]`),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		runstate.Read(data) //nolint:errcheck // both are fine
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / uint64(len(data)); n > 100 {
			t.Errorf("%s: Read allocates %d bytes per byte of input, want at most 100", name, n)
		}
	}
}

// readCost is that of Read's contract.
var readCost = fuzztest.Cost{PerByte: 100}

func TestReadCost(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		for _, member := range []string{"messages", "pendingApprovals", "steps", "usageByModel", "extra", "subRuns"} {
			data := fmt.Appendf(nil, minimal, fmt.Sprintf(",%q:%s", member, text))
			readCost.Check(t, len(data), func() { runstate.Read(data) }) //nolint:errcheck // only what it costs counts
			if t.Failed() {
				t.Fatal(name, member)
			}
		}
	}
}
