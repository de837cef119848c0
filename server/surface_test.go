package server_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// surfaceRooms are the rooms that a reviewer reads before trusting a deployment. What they import belongs to the audit
// surface too, and so does what that imports.
var surfaceRooms = strings.Fields("auth server/gate store server/audit server/run server/outbound server/secret server/proc")

// surfaceWiring are rooms of the surface that connect the others: they count, and what they import does not. For main, that
// is the command line, a client of the server that can do nothing which the server does not check again.
var surfaceWiring = strings.Fields("main server")

// surfaceOutside are the rooms that nothing in the surface imports, directly or not, except the wiring.
var surfaceOutside = strings.Fields("server/cli server/evidence server/recording server/takeover server/console")

// surfaceGoal is how many lines the surface should have. It is reported, and not yet required.
const surfaceGoal = 16_000

// TestSurface prints the house (go test -v): of each room its lines of Go without tests, its first sentence and what it
// imports of this module. Rooms of the audit surface have a star. It fails if the surface imports what must stay outside.
func TestSurface(t *testing.T) {
	rooms := map[string]rulesPackage{}
	for _, p := range rulesPackages(t) {
		rooms[rulesName(p.ImportPath)] = p
	}
	imports := func(room string) (own []string) {
		for _, path := range rooms[room].Imports {
			if name := rulesName(path); name != "" {
				own = append(own, name)
			}
		}
		return own
	}
	// reach is what some rooms import, directly or not, and themselves.
	reach := func(from ...string) map[string]bool {
		all := map[string]bool{}
		for todo := from; len(todo) > 0; todo = todo[1:] {
			if room := todo[0]; !all[room] {
				all[room] = true
				todo = append(todo, imports(room)...)
			}
		}
		return all
	}
	surface := reach(surfaceRooms...)
	for _, room := range surfaceWiring {
		surface[room] = true
	}
	for _, room := range surfaceOutside {
		if surface[room] {
			t.Errorf("the audit surface imports %s, which must stay outside of it", room)
		}
	}
	house, sum := 0, 0
	for _, room := range slices.Sorted(maps.Keys(rooms)) {
		p := rooms[room]
		lines := surfaceLines(t, p.Dir)
		star := " "
		if surface[room] {
			star = "*"
			sum += lines
		}
		if !slices.Contains(rulesTestOnly, room) {
			house += lines
		}
		sentence, _, _ := strings.Cut(strings.ReplaceAll(p.Doc, "\n", " "), ". ")
		t.Logf("%s %6d  %-20s %s (imports: %s)", star, lines, room, sentence, strings.Join(imports(room), " "))
	}
	t.Logf("the house has %d lines, its audit surface %d (goal: at most %d)", house, sum, surfaceGoal)
}

// surfaceLines counts the lines of the Go files of a folder, but for tests.
func surfaceLines(t *testing.T, dir string) (n int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		n += bytes.Count(text, []byte("\n"))
	}
	return n
}
