// Package golden compares generated text with reviewed files, for tests.
package golden

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// Check fails the test unless the file at path is got. With the flag -update it writes the file first.
func Check(t testing.TB, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := string(b); got != want {
		line, is, was := difference(got, want)
		t.Errorf("%s is not what is generated now, from line %d on; look at it and run go test with -update:\n got %s\nwant %s", path, line, is, was)
	}
}

// difference finds the first line that differs.
func difference(a, b string) (line int, ofA, ofB string) {
	for line = 1; ; line++ {
		var moreA, moreB bool
		ofA, a, moreA = strings.Cut(a, "\n")
		ofB, b, moreB = strings.Cut(b, "\n")
		if ofA != ofB || !moreA || !moreB {
			return line, ofA, ofB
		}
	}
}
