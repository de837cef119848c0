package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

// A commit is seen by whoever asks after it, also while others ask.
func TestGeneration(t *testing.T) {
	db := storetest.Open(t)
	other, err := sql.Open("sqlite", "file:"+db.Path()+"?_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	now := func() int64 {
		n, err := db.Runs().Generation()
		if err != nil {
			t.Error(err)
		}
		return n
	}
	commits := map[string]func(i int) error{
		"this process": func(i int) error {
			c := newRun(fmt.Sprint("run-", i))
			return db.Update(t.Context(), func(tx *store.Tx) error { _, err := db.Runs().Apply(tx, &c); return err })
		},
		"another": func(int) error { _, err := other.Exec("UPDATE runs SET version = version + 1"); return err },
	}
	if err := commits["this process"](-1); err != nil { // so that there is a row for the other to change
		t.Fatal(err)
	}
	if now() != now() {
		t.Error("the generation changes without a commit")
	}
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	for range 4 {
		readers.Go(func() {
			for ctx.Err() == nil {
				now()
			}
		})
	}
	for i := range 50 {
		for who, commit := range commits {
			before := now()
			if err := commit(i); err != nil {
				t.Fatal(err)
			}
			if now() == before {
				t.Fatalf("commit %d: the generation is %d after a commit of %s, as before", i, before, who)
			}
		}
	}
	stop()
	readers.Wait()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Runs().Generation(); err == nil {
		t.Error("a closed store has a generation")
	}
}
