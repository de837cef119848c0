package audit_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"agentd/metrics"
	"agentd/server/audit"
	"agentd/server/fault"
)

// TestFullDisk fills a small disk, and makes room again: what was acknowledged is there, also what nobody waited for.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=512k"); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(disk, syscall.MNT_DETACH) })
	in := metrics.New("1")
	l := openLog(t, audit.Options{Path: filepath.Join(disk, "audit.db"), Metrics: in})
	taken := 0
	var err error
	for ; err == nil && taken < 100_000; taken++ {
		do := l.Append
		if taken%3 != 0 {
			do = l.Note
		}
		err = do(t.Context(), record(taken))
	}
	taken-- // the last was refused
	if !fault.Is(err, fault.AuditUnavailable) {
		t.Fatalf("after %d entries on a full disk = %v, want audit-unavailable", taken, err)
	}
	if err := l.Note(t.Context(), record(0)); !fault.Is(err, fault.AuditUnavailable) {
		t.Errorf("Note() on a full disk = %v, want audit-unavailable", err)
	}
	if v, _ := reading(t, in, "svc_audit_writable"); v != 0 {
		t.Errorf("svc_audit_writable on a full disk = %v, want 0", v)
	}
	if v, _ := reading(t, in, "svc_audit_append_failures_total"); v < 2 {
		t.Errorf("svc_audit_append_failures_total on a full disk = %v, want both failures", v)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, "size=20m"); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), record(1)); err != nil {
		t.Errorf("Append() once there is room = %v", err)
	}
	if err := l.Check(t.Context()); err != nil {
		t.Errorf("Check() once there is room = %v", err)
	}
	if v, _ := reading(t, in, "svc_audit_writable"); v != 1 {
		t.Errorf("svc_audit_writable once there is room = %v, want 1", v)
	}
	if v := verify(t, l, audit.Verification{}); !v.OK || v.Count != int64(taken)+1 {
		t.Errorf("Verify() = %+v, want %d good entries", v, taken+1)
	}
}
