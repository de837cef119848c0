package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"agentd/server/message"
	"agentd/server/span"
	"agentd/store"
)

// A Selection says which spans an export has.
type Selection struct {
	Target             // none: those of all runs
	Since, Until int64 // milliseconds since 1970: of spans that ended since then, and before; 0: no bound
}

// Limits of an export.
const (
	maxLine   = 256 // spans of one line; those of one commit are not parted
	maxTraces = 1000
)

// Export writes the sanitised spans of a selection in the OTLP file format: lines of ExportTraceServiceRequest in JSON. Spans
// that [Sanitize] skips are left out. They come in the order in which they are stored: by run and, within it, as they ended. It
// holds one line in memory. Errors: run-not-found, session-not-found, and those of w.
func (s *Service) Export(ctx context.Context, w io.Writer, sel Selection, version string) error {
	batches, err := s.selected(ctx, sel)
	if err != nil {
		return err
	}
	e := &exporter{s: s, sel: sel, version: version, origins: map[int64]origin{}}
	flush := func() error {
		if len(e.spans) == 0 {
			return nil
		}
		line, err := message.Encode(e.line())
		if err != nil {
			return err
		}
		e.spans = e.spans[:0]
		_, err = w.Write(append(line, '\n'))
		return err
	}
	for b, err := range batches {
		if err != nil {
			return err
		}
		if err := e.add(ctx, b); err != nil {
			return err
		}
		if len(e.spans) >= maxLine {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

type exporter struct {
	s       *Service
	sel     Selection
	version string
	spans   []otlpSpan
	origins map[int64]origin // of runs, up to maxTraces of them
}

// origin is what the spans of a run have in common.
type origin struct {
	span.Trace
	root   string // id of the span of the root run
	remote bool   // another program started the root run
}

// originOf finds the root of a run. It ends, since a child is made after its parent.
func (e *exporter) originOf(ctx context.Context, n int64) (o origin, err error) {
	if o, known := e.origins[n]; known {
		return o, nil
	}
	err = e.s.view(ctx, func(tx *store.Tx) error {
		root, err := e.s.runs.Number(tx, n)
		for err == nil && root.Parent != 0 {
			root, err = e.s.runs.Number(tx, root.Parent)
		}
		if err != nil {
			return err
		}
		o.Trace, err = span.TraceOfRow(tx, e.s.runs, root)
		if HoldsSecret(o.State) { // whatever programs put there
			o.State = ""
		}
		o.root, o.remote = span.ID(root.N, span.OfRun, 0), o.SpanID != "" && root.Host == 0 && root.Caller() == ""
		return err
	})
	if len(e.origins) >= maxTraces {
		clear(e.origins)
	}
	if err == nil {
		e.origins[n] = o
	}
	return o, err
}

// add adds the spans of a batch that are selected and may be shown.
func (e *exporter) add(ctx context.Context, b store.SpanBatch) error {
	if b.At < e.sel.Since { // its spans have ended by then
		return nil
	}
	var spans []span.Span
	dec := json.NewDecoder(bytes.NewReader(b.Body))
	dec.UseNumber()
	if err := dec.Decode(&spans); err != nil {
		return fmt.Errorf("spans %d of run %d: %w", b.First, b.Run, err)
	}
	o, err := e.originOf(ctx, b.Run)
	if errors.Is(err, store.ErrNotFound) { // it was erased a moment ago
		return nil
	}
	if err != nil {
		return err
	}
	for i := range spans {
		ended := spans[i].End / int64(time.Millisecond)
		if ended < e.sel.Since || e.sel.Until != 0 && ended >= e.sel.Until {
			continue
		}
		if record, reason := Sanitize(&spans[i]); reason == "" {
			e.spans = append(e.spans, otlpOf(&record, &o))
		}
	}
	return nil
}
