package span

import "testing"

// The id of a span contains its run, and no two spans have the same one.
func TestID(t *testing.T) {
	const number = 1<<24 - 1
	seen := map[string]bool{}
	for _, run := range []int64{1, 1 << 24, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1<<33 + 1, 1<<34 + 1, 1<<37 + 1, 1<<38 - 1} {
		for part := OfRun; part <= Other; part++ {
			for _, number := range []int{0, 1, number} {
				id := ID(run, part, number)
				if got, ok := RunOf(id); len(id) != 16 || seen[id] || !ok || got != run {
					t.Errorf("ID(%d, %d, %d) = %s, seen before: %v, of run %d, %v", run, part, number, id, seen[id], got, ok)
				}
				seen[id] = true
			}
		}
	}
	if got, want := ID(0xabc, Other, 0x12345), "00000abc30012345"; got != want {
		t.Errorf("ID(0xabc, Other, 0x12345) = %s, want %s", got, want)
	}
	for _, id := range []string{"", "0", "000000000000000g", "0000000000000000", "00000ABC30012345", "+0000abc30012345"} {
		if run, ok := RunOf(id); ok {
			t.Errorf("RunOf(%q) = %d, want none", id, run)
		}
	}
}
