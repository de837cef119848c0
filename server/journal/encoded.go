package journal

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"

	"agentd/store"
)

// A Shown is a run as it was read, and how it is shown.
type Shown struct {
	Row    *store.Run
	Record *Record
	JSON   []byte
}

// Encoded returns what show makes of a run or, while that is the same, what it made before. Who may see the whole run and
// who may not get different forms. Nobody may change what is returned.
func (r *Reader) Encoded(ctx context.Context, run Identity, whole bool, show func() (Shown, error)) ([]byte, error) {
	generation, err := r.runs.Generation() // before anything is read
	if err != nil {
		return nil, err
	}
	at := encodingKey{run.ID, whole}
	kept, forgotten := r.encoded.get(at)
	if kept.json != nil {
		same, err := r.same(ctx, run, kept, generation)
		if err != nil {
			return nil, err
		}
		if same {
			if kept.generation != generation {
				kept.generation = generation
				r.encoded.keep(at, kept, forgotten)
			}
			return kept.json, nil
		}
		r.encoded.drop(at)
	}
	s, err := show()
	if err != nil {
		return nil, err
	}
	made := encoding{generation: generation, json: bytes.Clone(s.JSON)}
	if s.alone() {
		made.version = s.Row.Version
	}
	r.encoded.keep(at, made, forgotten)
	return s.JSON, nil
}

// same reports whether what is kept of a run still shows it: nothing was committed since, or nothing of the run has changed.
func (r *Reader) same(ctx context.Context, run Identity, kept encoding, generation int64) (bool, error) {
	if kept.generation == generation || kept.version == 0 {
		return kept.generation == generation, nil
	}
	version, err := r.runs.Version(ctx, run.Number, run.ID)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return version == kept.version, err
}

// alone reports whether a run is shown by its own rows only, so that its version says whether they have changed. Other runs
// change, come into its history and are erased without it; and an import may make a run anew that had the same id.
func (s *Shown) alone() bool {
	return s.Row.Parent == 0 && s.Row.HistoryTo <= s.Row.HistoryAfter && s.Row.Slots&(1<<store.ImportedSlot) == 0 &&
		!slices.ContainsFunc(s.Record.Calls, func(c store.Call) bool { return c.Child != "" })
}

// encodings holds how runs were shown. When recent is full, it becomes earlier, and what was there is dropped, so what is
// asked for stays.
type encodings struct {
	mu              sync.Mutex // guards the fields below
	recent, earlier map[encodingKey]encoding
	size            int // of recent, in bytes
	forgotten       int // how often runs were forgotten
}

type encodingKey struct {
	run   string
	whole bool
}

type encoding struct {
	generation int64 // of the database when it was read or was still the same
	version    int64 // of the run's row; 0: that does not say whether it is still the same
	json       []byte
}

const (
	maxEncodings = 4 << 20          // size of recent, and of earlier
	maxEncoding  = maxEncodings / 8 // a longer one is not kept
	entrySize    = 256              // what an entry takes beside its JSON
)

// get returns what is kept of a run, and a number for keep.
func (e *encodings) get(at encodingKey) (kept encoding, forgotten int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	kept, ok := e.recent[at]
	if !ok {
		if kept, ok = e.earlier[at]; ok {
			e.put(at, kept)
		}
	}
	return kept, e.forgotten
}

// keep keeps how a run is shown, unless runs were forgotten since it was read: it may be one of them.
func (e *encodings) keep(at encodingKey, v encoding, forgotten int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if forgotten == e.forgotten && len(v.json) <= maxEncoding {
		e.put(at, v)
	}
}

func (e *encodings) put(at encodingKey, v encoding) {
	e.remove(at)
	if size := len(v.json) + entrySize; e.recent == nil || e.size+size > maxEncodings {
		e.recent, e.earlier, e.size = map[encodingKey]encoding{}, e.recent, 0
	}
	e.recent[at] = v
	e.size += len(v.json) + entrySize
}

func (e *encodings) remove(at encodingKey) {
	if v, ok := e.recent[at]; ok {
		e.size -= len(v.json) + entrySize
	}
	delete(e.recent, at)
	delete(e.earlier, at)
}

func (e *encodings) drop(at encodingKey) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remove(at)
}

// forget drops all forms of runs that are erased.
func (e *encodings) forget(runs []*store.Run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgotten++
	for _, run := range runs {
		e.remove(encodingKey{run.ID, true})
		e.remove(encodingKey{run.ID, false})
	}
}
