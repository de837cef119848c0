package audit_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"agentd/metrics"
	"agentd/server/audit"
	"agentd/store"
)

// powered is a file system of its own, whose power can be cut: what was not synced is lost.
type powered struct{ image, dir, device string }

func newPowered(t *testing.T) *powered {
	t.Helper()
	p := &powered{image: filepath.Join(t.TempDir(), "image"), dir: t.TempDir()}
	if err := os.WriteFile(p.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(p.image, 24<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", p.image).CombinedOutput(); err != nil {
		t.Skipf("SKIP: no file system can be made here: %v %s", err, out)
	}
	out, err := exec.Command("losetup", "--find", "--show", p.image).Output()
	if err != nil {
		t.Skipf("SKIP: no file can be a disk here: %v", err)
	}
	p.device = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		syscall.Unmount(p.dir, syscall.MNT_DETACH)
		exec.Command("losetup", "--detach", p.device).Run() //nolint:errcheck // the end of the machine does that, too
	})
	p.on(t)
	return p
}

func (p *powered) on(t *testing.T) {
	t.Helper()
	if err := syscall.Mount(p.device, p.dir, "ext4", 0, ""); err != nil {
		t.Skipf("SKIP: a disk cannot be mounted here: %v", err)
	}
}

// cut ends every write to the file system, with its journal as it is on the disk (EXT4_IOC_SHUTDOWN, NOLOGFLUSH).
func (p *powered) cut(t *testing.T) {
	t.Helper()
	f, err := os.Open(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	how := uint32(2)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), 0x8004587d, uintptr(unsafe.Pointer(&how))); errno != 0 {
		t.Skipf("SKIP: the power cannot be cut here: %v", errno)
	}
}

// TestPowerCut cuts the power after a checkpoint was written. Entries that were not synced may be lost with durability
// "normal"; the chain that is left is whole.
func TestPowerCut(t *testing.T) {
	for _, durability := range []string{"normal", "full"} {
		t.Run(durability, func(t *testing.T) {
			p := newPowered(t)
			for round := range 5 {
				path := filepath.Join(p.dir, "audit.db")
				o := audit.Options{Path: path, Durability: durability, Metrics: metrics.New("1"), Passphrase: []byte(passphrase),
					Checkpoints: audit.Checkpoints{Path: filepath.Join(p.dir, "checkpoints"), Interval: time.Hour, Entries: 4}}
				if round == 0 {
					if err := audit.FoundCheaply(t.Context(), path, "chacha20", o.Passphrase); err != nil {
						t.Fatal(err)
					}
				}
				l, err := audit.Open(t.Context(), o)
				if err != nil {
					t.Fatalf("round %d: Open() = %v", round, err)
				}
				if v := verify(t, l, audit.Verification{Checkpoints: o.Checkpoints.Path}); !v.OK {
					t.Errorf("round %d: Verify() after a power cut = %+v, want it whole", round, v)
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- l.Run(ctx) }()
				covered := func() float64 { v, _ := reading(t, o.Metrics, "svc_audit_checkpoint_entries"); return v }
				acknowledged := l.Head().Size
				for before, i := covered(), 0; covered() == before && i < 10_000; i++ {
					appendMany(t, l, i, i)
					acknowledged++
				}
				p.cut(t)
				stop()
				<-ended
				l.Close() //nolint:errcheck // there is no disk
				if err := syscall.Unmount(p.dir, 0); err != nil {
					t.Fatal(err)
				}
				p.on(t)
				if durability == "full" {
					l := openLog(t, o)
					if l.Head().Size < acknowledged {
						t.Errorf("round %d: %d entries are left of %d that were acknowledged", round, l.Head().Size, acknowledged)
					}
					closeLog(t, l)
				}
			}
		})
	}
}

// TestPowerCutOfBoth cuts the power while entries are committed with their effects and wait to be chained. Every effect that
// was acknowledged is there, every effect has one entry, no entry is without its effect, and the chain is whole.
func TestPowerCutOfBoth(t *testing.T) {
	cuts := 20
	if os.Getenv("AGENTD_TEST_ROUNDS") == "all" {
		cuts = 200
	}
	p := newPowered(t)
	b, acknowledged, sum, waited := both{p.dir}, map[string]bool{}, 0, 0
	for round := range cuts {
		db, err := store.Open(t.Context(), store.Options{Path: b.database()})
		if err != nil {
			t.Fatal(err)
		}
		o := b.options()
		o.Outbox, o.Checkpoints.Interval, o.Checkpoints.Entries = db.Outbox(), time.Hour, 20
		if round == 0 {
			if err := audit.FoundCheaply(t.Context(), o.Path, "chacha20", o.Passphrase); err != nil {
				t.Fatal(err)
			}
		}
		l, err := audit.Open(t.Context(), o)
		if err != nil {
			t.Fatalf("round %d: Open() = %v", round, err)
		}
		if round > 0 {
			agree(t, db, l, round-1, acknowledged)
		}
		sum += len(acknowledged)
		clear(acknowledged)
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { l.Run(ctx) }) //nolint:errcheck // it returns none
		var mu sync.Mutex
		dark := false // nobody is there any more to be told of a success
		enough := make(chan struct{}, 1000)
		for k := range 6 {
			all.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					id := fmt.Sprintf("r%d-%d-%d", round, k, i)
					if effect(ctx, db, l, id, nil) != nil {
						return
					}
					mu.Lock()
					if !dark {
						acknowledged[id] = true
					}
					mu.Unlock()
					select {
					case enough <- struct{}{}:
					default:
					}
				}
			})
		}
		for range 1 + rand.IntN(80) {
			<-enough
		}
		mu.Lock()
		dark = true
		mu.Unlock()
		p.cut(t)
		stop()
		all.Wait()
		l.Close()  //nolint:errcheck // there is no disk
		db.Close() //nolint:errcheck // there is no disk
		if err := syscall.Unmount(p.dir, 0); err != nil {
			t.Fatal(err)
		}
		p.on(t)
		db, l = b.open(t, audit.Options{ReadOnly: true})
		v := verify(t, l, audit.Verification{Checkpoints: o.Checkpoints.Path})
		if !v.OK {
			t.Fatalf("round %d: Verify() after a power cut = %+v, want it whole", round, v)
		}
		waited += v.Waiting
		closeLog(t, l)
		db.Close()
	}
	if t.Logf("%d effects were acknowledged, and %d entries waited when the power was cut", sum, waited); waited < cuts {
		t.Errorf("%d entries waited when the power was cut %d times, want more", waited, cuts)
	}
}

// agree compares the effects of a round with those that were acknowledged, and with the entries.
func agree(t *testing.T, db *store.DB, l *audit.Log, round int, acknowledged map[string]bool) {
	t.Helper()
	name := fmt.Sprint("r", round)
	var effects, entries []string
	if err := db.View(t.Context(), func(tx *store.Tx) error {
		list, err := db.Sessions().List(tx, "", name)
		for _, s := range list {
			effects = append(effects, s.ID)
		}
		return err
	}); err != nil || len(effects) == 1000 {
		t.Fatalf("round %d: %d effects, %v; a list has at most 1000", round, len(effects), err)
	}
	for _, id := range targets(t, l) {
		if strings.HasPrefix(id, name+"-") {
			entries = append(entries, id)
		}
	}
	slices.Sort(effects)
	if slices.Sort(entries); !slices.Equal(entries, effects) {
		t.Errorf("round %d: there are entries for\n%v\nand the effects are\n%v", round, entries, effects)
	}
	for id := range acknowledged {
		if !slices.Contains(effects, id) {
			t.Errorf("round %d: the effect %s was acknowledged and is gone", round, id)
		}
	}
}
