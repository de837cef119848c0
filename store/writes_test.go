package store_test

import (
	"database/sql"
	"strings"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

// TestWritesBuildNoTables makes and ends a run, and looks at the programs of the statements: none builds a table of its
// own, as SQLite does to look a value up in a list of more than two.
func TestWritesBuildNoTables(t *testing.T) {
	db := storetest.Open(t)
	c := newRun("a")
	write := func() {
		t.Helper()
		err := db.Update(t.Context(), func(tx *store.Tx) (err error) {
			c.Run.N, err = db.Runs().Apply(tx, &c)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Run.Version++
	}
	write()
	c.Run.Status = store.Completed
	write()
	raw, err := sql.Open("sqlite", db.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	looked := 0
	for query := range store.Statements(db) {
		if !strings.HasPrefix(query, "INSERT INTO runs") && !strings.HasPrefix(query, "UPDATE runs") {
			continue
		}
		looked++
		rows, err := raw.Query("EXPLAIN " + strings.ReplaceAll(query, "?", "NULL"))
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var step [8]any
			to := make([]any, len(step))
			for i := range step {
				to[i] = &step[i]
			}
			if err := rows.Scan(to...); err != nil {
				t.Fatal(err)
			}
			if step[1] == "OpenEphemeral" {
				t.Errorf("%.60s builds a table each time", query)
			}
		}
		rows.Close()
	}
	if looked != 2 {
		t.Errorf("%d statements were looked at, want 2", looked)
	}
}
