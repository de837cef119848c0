package takeover_test

import (
	"errors"
	"os"
	"testing"

	"agentd/server/fault"
	"agentd/server/runstate"
	"agentd/server/takeover"
	"agentd/store"
)

// FuzzImport takes over whatever can be read as a run's state, up to the end of the transaction that would make it so.
func FuzzImport(f *testing.F) {
	for _, version := range []string{"1.0", "1.1", "1.2", "1.9-future"} {
		b, err := os.ReadFile("../runstate/testdata/run-state-" + version + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	register, _ := strangers(f)
	r := newRig(f, register)
	undo := errors.New("undo")
	f.Fuzz(func(t *testing.T, doc []byte) {
		st, err := runstate.Read(doc)
		if err != nil {
			return
		}
		id := st.ID
		var made takeover.Imported
		_, err = takeover.Import(t.Context(), r.engine, st, takeover.Options{Also: func(_ *store.Tx, m takeover.Imported) error {
			made = m
			return undo
		}})
		switch f := fault.Of(err); {
		case err == undo:
			if made.RunID != id || made.Status == "" || made.Children < 0 {
				t.Errorf("Import(%s) = %+v", doc, made)
			}
		case f == nil || f.Kind != fault.RunStateUnfit || len(f.Issues) == 0 || len(f.Issues) > 101:
			t.Errorf("Import(%s) = %v, want run-state-unfit with issues", doc, err)
		}
		if _, err := r.engine.Identify(t.Context(), id); !fault.Is(err, fault.RunNotFound) {
			t.Errorf("Import(%s) leaves a run: %v", doc, err)
		}
	})
}
