package store_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"agentd/store"
)

// lines is a batch of what closures have left with it.
type lines struct {
	file    *store.Audit
	fail    []error // of the next flushes
	pending []string
	kept    []string // that were committed
	calls   string
}

func (b *lines) Flush(tx *store.Tx, left []any) error {
	b.pending, b.calls = nil, b.calls+"f"
	for _, line := range left {
		b.pending = append(b.pending, line.(string))
	}
	if len(b.fail) > 0 {
		err := b.fail[0]
		b.fail = b.fail[1:]
		return err
	}
	return b.file.Set(tx, map[string][]byte{"lines": fmt.Append(nil, slices.Concat(b.kept, b.pending))})
}

func (b *lines) End(err error) {
	b.calls += "e"
	if err == nil {
		b.kept = append(b.kept, b.pending...)
	}
	b.pending = nil
}

func (b *lines) add(line string) func(*store.Tx) error {
	return func(tx *store.Tx) error { tx.Leave(line); return nil }
}

func openLines(t *testing.T) *lines {
	t.Helper()
	b := &lines{}
	var err error
	if b.file, err = store.OpenAudit(t.Context(), store.Options{Path: filepath.Join(t.TempDir(), "audit.db")}, b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.file.Close() })
	return b
}

func TestBatch(t *testing.T) {
	b := openLines(t)
	if err := b.file.Update(t.Context(), b.add("one")); err != nil || b.calls != "fe" {
		t.Errorf("Update() = %v with the calls %s, want fe", err, b.calls)
	}
	refused := errors.New("refused")
	b.fail, b.calls = []error{refused}, ""
	if err := b.file.Update(t.Context(), b.add("lost")); !errors.Is(err, refused) || b.calls != "fe" || b.file.Failed() == nil {
		t.Errorf("Update() = %v with the calls %s, want the error of Flush and fe", err, b.calls)
	}
	b.fail, b.calls = []error{store.ErrConflict, store.ErrConflict}, ""
	if err := b.file.Update(t.Context(), b.add("two")); err != nil || b.calls != "fffe" || b.file.Failed() != nil {
		t.Errorf("Update() after two conflicts = %v with the calls %s, want fffe", err, b.calls)
	}
	// A closure that fails leaves nothing.
	failing := func(tx *store.Tx) error {
		tx.Leave("failed")
		return errors.Join(b.file.Set(tx, map[string][]byte{"x": nil}), refused)
	}
	if err := b.file.Update(t.Context(), failing); !errors.Is(err, refused) {
		t.Errorf("Update(failing) = %v, want its error", err)
	}
	if got, want := fmt.Sprint(b.kept), "[one two]"; got != want {
		t.Errorf("committed %s, want %s", got, want)
	}
}

// TestPost posts while commits fail. What was posted before stays queued, in its order; later posts wait and fail.
func TestPost(t *testing.T) {
	b := openLines(t)
	down := errors.New("down")
	entered, leave, ended := make(chan bool), make(chan bool), make(chan error)
	go func() {
		ended <- b.file.Update(context.Background(), func(*store.Tx) error { close(entered); <-leave; return nil })
	}()
	<-entered
	for i := range 600 { // more than two batches
		if err := b.file.Post(t.Context(), b.add(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	b.fail = []error{down, down, down}
	close(leave)
	if err := <-ended; !errors.Is(err, down) {
		t.Errorf("Update() = %v, want %v", err, down)
	}
	for range 2 { // each fails with what was posted before it
		if err := b.file.Post(t.Context(), b.add("refused")); !errors.Is(err, down) || b.file.Failed() == nil {
			t.Fatalf("Post() while commits fail = %v, want %v", err, down)
		}
	}
	if err := b.file.Update(t.Context(), b.add("last")); err != nil {
		t.Fatal(err)
	}
	if len(b.kept) != 601 || b.kept[0] != "0" || b.kept[599] != "599" || b.kept[600] != "last" {
		t.Errorf("%d lines were committed, want those that were posted, in order, and the last", len(b.kept))
	}
	for range 50 {
		if err := b.file.Post(t.Context(), b.add("more")); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.file.Close(); err != nil || len(b.kept) != 651 {
		t.Errorf("Close() = %v, %d lines were committed, want 651", err, len(b.kept))
	}
	if err := b.file.Post(t.Context(), b.add("late")); err == nil {
		t.Error("Post() after Close() = nil, want an error")
	}
}
