package store

import "slices"

// An owned table holds rows that belong to something, and go when it is erased.
type owned struct {
	table string
	by    string // the column that names what the row belongs to
	of    belonging
	index string // by which the rows of one are found; empty: SQLite finds it
}

type belonging int

const (
	ofRun       belonging = iota // the column is the number of a run
	ofRunKey                     // the column is a key: the number of a run and an index
	ofThread                     // the column is the number of a thread
	ofThreadKey                  // the column is a key: the number of a thread and an index
	ofSession                    // the column is the id of a session
	ofRequest                    // the row remembers a request; see eraseKeys
	ofNobody                     // the row belongs to the instance
)

// ownedTables is every table of the database but for those of the schema itself: erasure, retention and export walk it,
// and a test holds it against the schema.
var ownedTables = []owned{
	{"run_events", "key", ofRunKey, ""},
	{"run_messages", "key", ofRunKey, ""},
	{"run_steps", "key", ofRunKey, ""},
	{"run_slots", "key", ofRunKey, ""},
	{"tool_calls", "key", ofRunKey, ""},
	{"handoffs", "key", ofRunKey, ""},
	{"spans", "key", ofRunKey, ""},
	{"run_exchanges", "key", ofRunKey, ""},
	{"run_spills", "run", ofRun, "sqlite_autoindex_run_spills_1"},
	{"timers", "run", ofRun, ""},
	{"runs", "n", ofRun, ""},
	{"thread_inputs", "thread", ofThread, ""},
	{"thread_values", "thread", ofThread, "sqlite_autoindex_thread_values_1"},
	{"thread_steps", "key", ofThreadKey, ""},
	{"thread_tasks", "key", ofThreadKey, ""},
	{"thread_answers", "key", ofThreadKey, ""},
	{"threads", "n", ofThread, ""},
	{"workflow_definitions", "", ofNobody, ""},
	{"idempotency_records", "", ofRequest, ""},
	{"sessions", "id", ofSession, ""},
	{"triggers", "", ofNobody, ""},
	{"firings", "", ofNobody, ""},
	{"notifications", "", ofNobody, ""},
	{"notify_targets", "", ofNobody, ""},
	{"auth_tokens", "", ofNobody, ""},
	{"audit_outbox", "", ofNobody, ""},
	{"schema_migrations", "", ofNobody, ""},
}

// owners are the tables that hold what rows belong to.
var owners = map[belonging]string{ofRun: "runs", ofRunKey: "runs", ofThread: "threads", ofThreadKey: "threads"}

// A reference is a column that names a row of another table, which must not be missing.
type reference struct{ table, column, to, key string }

// references are those besides the columns of ownedTables.
var references = []reference{
	{"runs", "parent", "runs", "n"},
	{"runs", "host", "runs", "n"},
	{"runs", "thread", "threads", "n"},
	{"runs", "session_id", "sessions", "id"},
	{"threads", "run", "runs", "n"},
	{"threads", "session_id", "sessions", "id"},
	{"sessions", "thread", "threads", "n"},
	{"firings", "trigger_n", "triggers", "n"},
	{"notifications", "target", "notify_targets", "id"},
}

// eraseOwned deletes every row that belongs to the run or thread with a number, by that number or by a key; with tables, in those
// only.
func eraseOwned(tx *Tx, n int64, by, byKey belonging, tables ...string) (err error) {
	for _, t := range ownedTables {
		if tables != nil && !slices.Contains(tables, t.table) {
			continue
		}
		switch {
		case err != nil:
		case t.of == byKey:
			_, err = tx.exec("DELETE FROM "+t.table+" WHERE "+t.by+" BETWEEN ? AND ?", key(n, 0), key(n, maxIndex))
		case t.of == by && t.index != "":
			_, err = tx.exec("DELETE FROM "+t.table+" INDEXED BY "+t.index+" WHERE "+t.by+" = ?", n)
		case t.of == by:
			_, err = tx.exec("DELETE FROM "+t.table+" WHERE "+t.by+" = ?", n)
		}
	}
	return err
}
