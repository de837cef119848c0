package trace_test

import (
	"fmt"
	"testing"
	"time"

	"agentd/server/message"
	"agentd/server/span"
	"agentd/server/trace"
)

// tenThousand is a run with 10 000 spans in 2000 steps, each of which the model and a tool are part of.
func tenThousand(b *testing.B) *rig {
	r := newRig(b)
	r.run("a", "", "")
	said := r.message("a", message.Assistant, time.UnixMilli(0), message.Message{Content: message.Text("Let me look that up for you.")})
	batches := make([][]span.Span, 2000)
	for i := range batches {
		spans := make([]span.Span, 5)
		for k := range spans {
			s := r.span("a", 5*i+k, int64(1e9*i+k))
			s.Type, s.Message = span.Provider, &said
			s.Public("provider", "openai")
			s.Public("model", "gpt-4o-mini")
			s.Public("usage.promptTokens", 1000+i)
			s.Public("usage.completionTokens", 50+k)
			s.Internal("tool.callId", fmt.Sprint("call_", i, k))
			spans[k] = s
		}
		batches[i] = spans
	}
	r.batches("a", batches...)
	return r
}

func benchmarkReplay(b *testing.B, o trace.Options) {
	r := tenThousand(b)
	b.ReportAllocs()
	for b.Loop() {
		o, pages := o, 0
		for {
			p, err := r.service.Replay(b.Context(), run("a"), o)
			if err != nil {
				b.Fatal(err)
			}
			pages++
			if o.Cursor = p.NextCursor; o.Cursor == "" {
				break
			}
		}
		if pages != 10 {
			b.Fatalf("%d pages, want 10", pages)
		}
	}
}

func BenchmarkReplaySanitized(b *testing.B) { benchmarkReplay(b, trace.Options{}) }

func BenchmarkReplayRaw(b *testing.B) { benchmarkReplay(b, trace.Options{Raw: true}) }
