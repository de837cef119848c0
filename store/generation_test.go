package store_test

import (
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
	other, err := sql.Open("sqlite", "file:"+db.Path())
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
	if now() != now() {
		t.Error("the generation changes without a commit")
	}
	stop := make(chan bool)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					now()
				}
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
				t.Fatalf("the generation is the same after a commit of %s", who)
			}
		}
	}
	close(stop)
	readers.Wait()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Runs().Generation(); err == nil {
		t.Error("a closed store has a generation")
	}
}
