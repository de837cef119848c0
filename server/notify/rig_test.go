package notify_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"agentd/metrics"
	"agentd/server/notify"
	"agentd/server/webhook"
	"agentd/store"
	"agentd/store/storetest"
)

// A rig is a daemon on a database.
type rig struct {
	t       *testing.T
	path    string
	targets []notify.Target
	args    map[string]string // by the id of the call

	db     *store.DB
	d      *notify.Daemon
	m      *metrics.Inventory
	cancel context.CancelFunc
	done   chan struct{}
}

func target(t *testing.T, r *receiver, address string, on ...string) notify.Target {
	signer, err := webhook.NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	return notify.Target{ID: notify.TargetID(address), URL: address, On: on, Signer: signer, Transport: r}
}

func newRig(t *testing.T, targets ...notify.Target) *rig {
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "data.db"), targets: targets}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	r.db, r.m = storetest.OpenAt(r.t, r.path), metrics.New("test")
	r.d = notify.New(notify.Options{Targets: r.targets, Store: r.db.Notifications(), Runs: r.db.Runs(), Metrics: r.m,
		Redact: func(s string) string { return strings.ReplaceAll(s, "hunter2", "[hidden]") },
		Arguments: func(_ context.Context, _, call string) (json.RawMessage, error) {
			if args := r.args[call]; args != "" {
				return json.RawMessage(args), nil
			}
			return nil, nil
		}})
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan struct{})
	go func() {
		defer close(r.done)
		if err := r.d.Run(ctx); err != nil {
			r.t.Errorf("Run = %v", err)
		}
	}()
}

func (r *rig) stop() {
	if r.cancel != nil {
		r.cancel()
		<-r.done
	}
	r.cancel = nil
	r.db.Close()
}

// write writes n notifications in a transaction.
func (r *rig) write(typ string, n int) {
	r.t.Helper()
	err := r.db.Notifications().Update(r.t.Context(), func(tx *store.Tx) error {
		for range n {
			if err := r.d.Write(tx, typ, "", map[string]int{"n": n}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) list(state string) []notify.Shown {
	r.t.Helper()
	list, _, err := r.d.List(r.t.Context(), state, 0, 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

func (r *rig) retry(ids []string, target string) (int, error) {
	return r.d.Retry(r.t.Context(), ids, target, func(*store.Tx, int) error { return nil })
}
