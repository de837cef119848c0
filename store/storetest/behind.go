package storetest

import (
	"context"
	"database/sql"
	"testing"
)

// Behind changes a database file behind the back of whoever else has it open. It leaves nothing open.
func Behind(t testing.TB, path string, statements ...string) {
	t.Helper()
	db := open(t, path)
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// Another is another process that has a database file open, on one connection until the test ends. What it is given to
// execute may be a part of a transaction; it waits for the lock of others for five seconds.
func Another(t testing.TB, path string) (exec func(statement string)) {
	t.Helper()
	db := open(t, "file:"+path+"?_pragma=busy_timeout(5000)")
	db.SetMaxOpenConns(1)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(context.Background(), statement); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

func open(t testing.TB, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", name)
	if err != nil {
		t.Fatal(err)
	}
	return db
}
