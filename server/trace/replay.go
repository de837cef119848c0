// Package trace reads the spans of a run and its descendants, or of a session: as a whole, or what may be shown to everybody.
package trace

import (
	"context"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/span"
	"agentd/store"
)

// Limits of a replay.
const (
	MaxPage = 1000    // spans in one answer
	MaxTree = 200_000 // spans of one root run and its descendants; those written later are left out
	maxText = 8 << 20 // bytes that an answer takes from transcripts, past which it ends early
)

// A Target is what is replayed: the run with an id and all its descendants, or all of a session's runs. One of the
// fields is set.
type Target struct {
	RunID     string `json:"runId,omitempty"`
	SessionID string `json:"sessionId,omitempty"`
}

// Options say which spans of a target are replayed, and how. The zero value is the first sanitised page of all.
type Options struct {
	Raw           bool
	FromMessageID string // only spans that begin when this message of the target was made, or later
	Provider      string // of the spans of model calls, only those to this provider
	Cursor        string // continue after the span with this id
	Limit         int    // spans in the answer; 0 or more than MaxPage: MaxPage
}

// Modes of a replay.
const (
	ModeSanitized = "sanitized"
	ModeRaw       = "raw"
)

// A Replay is one page of a target's spans. The spans of a run and its descendants are ordered by the time at which they
// began, then by id; those of a session come root run by root run, in the order in which these were made.
//
// agentd writes a span when it ends. While a run continues, a cursor can therefore miss spans that were still open.
type Replay struct {
	Mode         string        `json:"mode" enum:"sanitized|raw"`
	Events       []ReplayEvent `json:"events" doc:"replay.start, then replay.event and replay.skipped in the order in which their spans began, then replay.end. The server writes a span when it ends, so open spans are on no page yet."`
	Truncated    bool          `json:"truncated,omitempty" doc:"The target has further spans."`
	NextCursor   string        `json:"nextCursor,omitempty" doc:"Send it as cursor for the next page. Absent on the last page. If the run continues, later pages can miss spans that were still open: read the run again from the start once it has finished."`
	OmittedSpans int           `json:"omittedSpans,omitempty" doc:"Number of spans that no page shows: those after the first 200000 of a root run on this page."`
}

// Types of the events of a replay.
const (
	ReplayStart   = "replay.start"
	ReplaySpan    = "replay.event"
	ReplaySkipped = "replay.skipped"
	ReplayEnd     = "replay.end"
)

// A ReplayEvent is an entry of a replay; its type says which members it has. Every page is a replay of its own, from its
// start to its end: the counts at the end are those of the page.
type ReplayEvent struct {
	Type string `json:"type" enum:"replay.start|replay.event|replay.skipped|replay.end"`

	Target *Target `json:"target,omitempty" doc:"replay.start"`
	Mode   string  `json:"mode,omitempty" enum:"sanitized|raw" doc:"replay.start"`

	Span      *SpanRecord `json:"span,omitempty" doc:"replay.event"`
	Sanitized *bool       `json:"sanitized,omitempty" doc:"replay.event"`

	Reason Reason `json:"reason,omitempty" enum:"sensitivity|redaction-violation" doc:"replay.skipped: this mode does not show the attribute, or a public attribute holds a secret."`
	SpanID string `json:"spanId,omitempty" doc:"replay.skipped"`

	DurationMS *int64 `json:"durationMs,omitempty" doc:"replay.end: how long the replay took."`
	Emitted    *int   `json:"eventsEmitted,omitempty" doc:"replay.end: number of replay.event."`
	Skipped    *int   `json:"eventsSkipped,omitempty" doc:"replay.end: number of replay.skipped."`
}

// A SpanRecord is a span as replays show it.
type SpanRecord struct {
	Type          string            `json:"type"`
	ID            string            `json:"id"`
	TraceID       string            `json:"traceId"`
	ParentID      string            `json:"parentId,omitempty"`
	Name          string            `json:"name"`
	Start         int64             `json:"startUnixNano"`
	End           int64             `json:"endUnixNano"`
	StartISO      string            `json:"startIso"`
	EndISO        string            `json:"endIso"`
	Status        string            `json:"status" enum:"ok|error|cancelled"`
	StatusMessage string            `json:"statusMessage,omitempty"`
	Attributes    map[string]any    `json:"attributes"`
	Events        []struct{}        `json:"events" doc:"Always empty: what happens within a span is another span."`
	Sensitivity   map[string]string `json:"sensitivityByAttribute,omitempty"`
}

// Service replays recorded spans. It changes nothing and calls neither models nor tools.
type Service struct {
	runs     *store.Runs
	sessions *store.Sessions
}

// New makes a service.
func New(runs *store.Runs, sessions *store.Sessions) *Service { return &Service{runs, sessions} }

// Replay returns a page of a target's spans. What it holds in memory is bounded by the limits above, however many spans
// the target has. Errors: run-not-found, session-not-found; config-invalid for a message or a cursor that is none of
// the target's.
func (s *Service) Replay(ctx context.Context, t Target, o Options) (Replay, error) {
	began := time.Now()
	q, err := s.prepare(ctx, t, o)
	if err != nil {
		return Replay{}, err
	}
	spans, omitted, err := s.page(ctx, q)
	if err != nil {
		return Replay{}, err
	}
	out := Replay{Mode: ModeSanitized, OmittedSpans: omitted}
	if o.Raw {
		out.Mode = ModeRaw
	}
	out.Events = []ReplayEvent{{Type: ReplayStart, Target: &t, Mode: out.Mode}}
	var emitted, skipped int
	more, j := len(spans) > q.Limit, newJoiner(s.runs)
	for i := range spans[:min(len(spans), q.Limit)] {
		e, err := j.event(ctx, &spans[i], o.Raw)
		if err != nil {
			return Replay{}, err
		}
		if j.bytes > maxText && i > 0 {
			more = true
			break
		}
		if e.Type == ReplaySkipped {
			skipped++
		} else {
			emitted++
		}
		out.Events = append(out.Events, e)
		out.NextCursor = spans[i].ID
	}
	if !more {
		out.NextCursor = ""
	}
	out.Truncated = more || omitted > 0
	out.Events = append(out.Events, ReplayEvent{Type: ReplayEnd, DurationMS: new(time.Since(began).Milliseconds()),
		Emitted: &emitted, Skipped: &skipped})
	return out, nil
}

// recordOf returns the span with all that it holds.
func recordOf(s *span.Span) SpanRecord {
	attributes := s.Attributes
	if attributes == nil {
		attributes = map[string]any{}
	}
	return SpanRecord{Type: s.Type, ID: s.ID, TraceID: s.TraceID, ParentID: s.ParentID, Name: s.Name, Start: s.Start, End: s.End, Status: s.Status,
		StartISO: message.Time(time.Unix(0, s.Start)), EndISO: message.Time(time.Unix(0, s.End)),
		StatusMessage: s.StatusMessage, Attributes: attributes, Events: []struct{}{}, Sensitivity: s.Sensitivity}
}

func notFound(t Target) error {
	if t.SessionID != "" {
		return fault.New(fault.SessionNotFound, "There is no session %q.", t.SessionID)
	}
	return fault.New(fault.RunNotFound, "There is no run %q.", t.RunID)
}
