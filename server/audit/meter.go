package audit

import (
	"errors"
	"time"
)

// measure connects the gauges to the log, which is open.
func (l *Log) measure() {
	in := l.opts.Metrics
	l.uncovered.Store(time.Now().UnixMilli())
	in.AuditChain.Sample(func() (float64, error) { return float64(l.tree().size), nil })
	in.AuditWritable.Sample(func() (float64, error) { return oneIf(l.file.Failed() == nil), nil })
	in.AuditLag.Sample(func() (float64, error) { return l.Lag().Seconds(), nil })
	in.AuditWhole.Sample(func() (float64, error) { return oneIf(l.Broken() == nil), nil })
	if l.heads == nil {
		return
	}
	in.AuditCheckpoint.Sample(func() (float64, error) { return float64(l.heads.size()), nil })
	in.AuditCheckpointAge.Sample(func() (float64, error) {
		if c := l.heads.latest.Load(); c != nil {
			return since(c.SignedAt).Seconds(), nil
		}
		return 0, errNoHead
	})
	in.AuditUncovered.Sample(func() (float64, error) { return l.Uncovered().Seconds(), nil })
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Uncovered is the age of the oldest entry that no checkpoint covers; 0 if there is none, or if no checkpoints are written.
// Entries that an earlier process left uncovered count from the opening.
func (l *Log) Uncovered() time.Duration {
	if l.heads == nil || l.tree().size <= l.heads.size() {
		return 0
	}
	return since(l.uncovered.Load())
}

var errNoHead = errors.New("audit: there is no checkpoint")

func since(ms int64) time.Duration { return max(time.Since(time.UnixMilli(ms)), 0) }

// appended counts an append of so many entries, or one that failed.
func (l *Log) appended(n int, begun time.Time, err error) {
	in := l.opts.Metrics
	in.AuditDuration.Observe(time.Since(begun).Seconds())
	if err != nil {
		in.AuditFailures.Inc()
		return
	}
	in.AuditEntries.Add(float64(n))
	if h := l.heads; h != nil && l.tree().size-int64(n) <= h.size() {
		l.uncovered.Store(begun.UnixMilli())
	}
}
