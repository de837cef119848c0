package audit

import (
	"errors"
	"sync/atomic"
	"time"

	"agentd/metrics"
)

// meter measures a log.
type meter struct {
	log       *Log
	in        *metrics.Inventory
	uncovered atomic.Int64 // when the first entry came that no checkpoint covers; of no meaning while all are covered
}

// init has the gauges ask the log, which is open.
func (m *meter) init(l *Log) {
	m.uncovered.Store(time.Now().UnixMilli())
	m.in.AuditChain.Sample(func() (float64, error) { return float64(l.tree().size), nil })
	m.in.AuditWritable.Sample(func() (float64, error) { return oneIf(l.file.Failed() == nil), nil })
	m.in.AuditWhole.Sample(func() (float64, error) { return oneIf(l.Broken() == nil), nil })
	h := l.heads
	if h == nil {
		return
	}
	m.in.AuditCheckpoint.Sample(func() (float64, error) { return float64(h.size()), nil })
	m.in.AuditCheckpointAge.Sample(func() (float64, error) {
		if c := h.latest.Load(); c != nil {
			return since(c.SignedAt).Seconds(), nil
		}
		return 0, errNoHead
	})
	m.in.AuditUncovered.Sample(func() (float64, error) { return l.Uncovered().Seconds(), nil })
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Uncovered is for how long there has been an entry that no checkpoint covers; 0: there is none, or no checkpoints are
// written. What a process before this one has left uncovered counts from the opening.
func (l *Log) Uncovered() time.Duration {
	if l.heads == nil || l.tree().size <= l.heads.size() {
		return 0
	}
	return since(l.meter.uncovered.Load())
}

var errNoHead = errors.New("audit: there is no checkpoint")

func since(ms int64) time.Duration { return max(time.Since(time.UnixMilli(ms)), 0) }

// appended counts an append of so many entries, or one that failed.
func (m *meter) appended(n int, begun time.Time, err error) {
	if h := m.log.heads; err == nil && h != nil && m.log.tree().size-int64(n) <= h.size() {
		m.uncovered.Store(begun.UnixMilli())
	}
	m.in.AuditDuration.Observe(time.Since(begun).Seconds())
	if err != nil {
		m.in.AuditFailures.Inc()
	} else {
		m.in.AuditEntries.Add(float64(n))
	}
}

// denied counts a refused authentication.
func (m *meter) denied(own bool) {
	entry := "shared"
	if own {
		entry = "own"
	}
	m.in.AuditDenials.With(entry).Inc()
}

// verified counts a verification.
func (m *meter) verified(v *Verdict, err error) {
	result := "broken"
	switch {
	case err != nil:
		result = "error"
	case v.OK:
		result = "whole"
	}
	m.in.AuditVerifications.With(result).Inc()
}
