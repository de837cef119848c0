package server_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Bounds of what is kept of fuzzing: the ordinary tests try all of it, each time.
const (
	corpusFiles = 1600
	corpusBytes = 2 << 20
	corpusInput = 4096 // bytes of one input, as it is written
)

var corpusTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// TestCorpus finds fuzz targets of which nothing is kept, and what is kept of targets that there are not.
func TestCorpus(t *testing.T) {
	targets, kept := map[string]bool{}, map[string]bool{}
	files, size := 0, int64(0)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != ".." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		dir, _ := filepath.Split(path)
		if at, name, ok := strings.Cut(filepath.Clean(dir), "/testdata/fuzz/"); ok {
			kept[at+" "+name] = true
			info, err := d.Info()
			if err != nil {
				return err
			}
			files, size = files+1, size+info.Size()
			if info.Size() > corpusInput {
				t.Errorf("%s has %d bytes, want at most %d; make it a seed that a program writes", path, info.Size(), corpusInput)
			}
			text, err := os.ReadFile(path)
			if !strings.HasPrefix(string(text), "go test fuzz v1\n") {
				t.Errorf("%s is no input of a fuzz target", path)
			}
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range corpusTarget.FindAllStringSubmatch(string(text), -1) {
			if key := filepath.Clean(dir) + " " + m[1]; targets[key] {
				t.Errorf("%s has %s twice", dir, m[1])
			} else {
				targets[key] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(targets) == 0 {
		t.Fatal("there are no fuzz targets, as if their declarations had another form")
	}
	for _, target := range slices.Sorted(maps.Keys(targets)) {
		if !kept[target] {
			t.Errorf("nothing is kept of %s: run it with .ci/fuzz for a while, and then .ci/corpus", target)
		}
	}
	for _, target := range slices.Sorted(maps.Keys(kept)) {
		if !targets[target] {
			t.Errorf("there is no target %s, of which inputs are kept", target)
		}
	}
	if files > corpusFiles || size > corpusBytes {
		t.Errorf("%d inputs with %d bytes are kept, want at most %d with %d", files, size, corpusFiles, corpusBytes)
	}
}
