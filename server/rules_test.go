package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// rulesRooms are the packages of this module and what each may import of it, besides tests. Protocols and other leaves
// come first, then the store and policy, then the wiring. A new package needs a row, a new arrow a good reason.
var rulesRooms = map[string]string{
	// Leaves: they know nothing of each other.
	"metrics":             "",
	"server/canonical":    "",
	"server/fault":        "",
	"server/hub":          "",
	"server/id":           "",
	"server/manual":       "",
	"server/proc":         "",
	"server/schema":       "server/canonical",
	"server/expr":         "server/canonical server/fault",
	"server/sse":          "",
	"server/tracecontext": "",
	"ws":                  "",
	"ws/wstest":           "ws",

	// Vocabulary and documents.
	"server/shape":      "server/canonical server/fault",
	"server/commentary": "server/message",
	"server/message":    "server/canonical",
	"server/jsonlines":  "server/message",
	"server/config":     "server/expr server/fault server/graph server/outbound server/secret server/shape server/webhook triggers",
	"server/event":      "server/fault server/message",
	"server/graph":      "server/canonical server/expr server/fault server/schema server/shape",
	"server/health":     "server/shape",
	"server/openapi":    "server/fault server/shape",
	"server/outbound":   "server/fault server/tracecontext",
	"server/runstate":   "server/canonical server/fault server/message server/shape",
	"server/secret":     "server/fault",
	"server/webhook":    "server/fault",

	// The store knows nothing of agents, and what agents are made of knows nothing of the store.
	"store":           "server/fault",
	"server/provider": "server/canonical server/fault server/message server/outbound server/secret server/shape server/sse server/tracecontext",
	"server/tool":     "server/canonical server/fault server/message server/outbound server/proc server/schema server/secret server/tracecontext",

	// Policy. None of it knows HTTP routes.
	"auth":                "store server/fault server/id server/tracecontext",
	"retention":           "metrics store server/fault server/tracecontext",
	"server/backup":       "store server/fault",
	"triggers":            "auth metrics store server/expr server/fault server/graph server/id server/message server/shape server/tracecontext",
	"server/audit":        "metrics store server/canonical server/fault server/tracecontext",
	"server/transcript":   "store server/message",
	"server/audit/export": "server/audit",
	"server/trace":        "store server/fault server/message server/span server/transcript",
	"server/journal":      "store server/event server/fault server/hub server/message server/transcript",
	"server/span":         "store server/journal server/message server/tracecontext",
	// The kernel knows nothing of what drives runs; drivers know nothing of each other.
	"server/run": "metrics store server/event server/fault server/hub server/id server/journal server/message server/span server/transcript server/tracecontext",
	"server/agent": "metrics store server/canonical server/event server/fault server/hub server/id server/journal server/message server/provider server/run " +
		"server/runstate server/schema server/span server/tool",
	"server/workflow":  "metrics store server/canonical server/event server/expr server/fault server/graph server/id server/journal server/message server/run server/schema server/span server/tool",
	"server/notify":    "metrics store server/event server/expr server/fault server/id server/message server/outbound server/run server/span server/tracecontext server/webhook",
	"server/external":  "server/agent server/event server/fault server/message server/outbound server/proc server/secret server/sse server/tracecontext",
	"server/recording": "store server/agent server/event server/fault server/hub server/id server/journal server/jsonlines server/message server/provider server/run server/tool server/transcript",
	"server/takeover":  "store server/agent server/event server/fault server/id server/journal server/message server/run server/runstate server/transcript",
	"server/evidence":  "store server/audit server/event server/fault server/hub server/journal server/message",
	"server/session":   "store server/canonical server/event server/fault server/id server/jsonlines server/message server/tool server/transcript",

	// Transport.
	"server/gate":   "auth metrics store server/audit server/canonical server/fault server/id server/message server/tracecontext",
	"server/stream": "auth ws server/audit server/commentary server/event server/fault server/hub server/message server/shape server/tracecontext",
	"server/rest": "auth metrics retention store triggers server/agent server/audit server/audit/export server/canonical server/event server/fault server/gate server/health server/hub server/journal server/message " +
		"server/notify server/openapi server/recording server/run server/runstate server/secret server/session server/shape server/stream server/takeover server/trace server/webhook server/workflow triggers",

	// The other end of server/rest.
	"server/client": "server/fault server/id server/message server/sse",

	// Wiring.
	"server/manifest": "server/agent server/config server/external server/fault server/journal server/message server/outbound server/proc server/provider server/recording server/schema server/secret " +
		"server/shape server/tool",
	"server": "auth metrics retention store triggers server/agent server/audit server/commentary server/config server/event server/fault server/gate server/graph server/health server/hub server/journal " +
		"server/manifest server/message server/notify server/outbound server/proc server/provider server/rest server/run server/secret server/session server/shape server/stream server/trace server/webhook server/workflow",
	"server/cli": "auth store server server/agent server/audit server/audit/export server/backup server/client server/config server/event server/evidence server/fault server/graph server/journal " +
		"server/manifest server/manual server/message server/notify server/outbound server/proc server/recording server/rest server/run server/secret server/session server/workflow triggers",
	"main": "server/cli",

	// Help for tests.
	"server/fuzztest":              "",
	"server/golden":                "",
	"server/outbound/outboundtest": "",
	"store/storetest":              "store",
}

// rulesTestOnly are packages that only tests import.
var rulesTestOnly = []string{"server/fuzztest", "server/golden", "server/outbound/outboundtest", "store/storetest", "ws/wstest"}

// rulesReserved are packages of others that only the listed ones of ours import, * being all. A module that is not in
// this table is not imported at all.
var rulesReserved = map[string]string{
	"database/sql":        "store store/storetest",
	"modernc.org/sqlite":  "store",
	"golang.org/x/crypto": "*",
	"golang.org/x/net":    "*",
	// The servers' side, the clients' side, and two that need its names of statuses and methods only.
	"net/http": "ws ws/wstest server server/gate server/rest server/stream server/client server/cli server/outbound server/external server/notify server/provider server/tool server/health server/openapi",
}

// rulesModules are the modules that go.mod may require for ourselves.
var rulesModules = []string{"modernc.org/sqlite", "golang.org/x/crypto", "golang.org/x/net"}

// rulesMaxLines is the length of a file past which it surely holds two ideas.
const rulesMaxLines = 600

// rulesClock finds SQL that asks the database for the time, which comes from Go.
var rulesClock = regexp.MustCompile(`(?i)\b(current_(timestamp|date|time)|strftime|unixepoch|julianday|datetime\s*\()`)

// rulesPackage is what go list reports of a package.
type rulesPackage struct {
	ImportPath, Name, Doc, Dir string
	Imports                    []string // of its files but for tests
}

// TestRules holds this repository to its own rules.
func TestRules(t *testing.T) {
	t.Run("imports", rulesImports)
	t.Run("modules", rulesGoMod)
	t.Run("files", rulesFiles)
	t.Run("dials", rulesDials)
}

// rulesPackages lists the packages of this module.
func rulesPackages(t *testing.T) (all []rulesPackage) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Name,Doc,Dir,Imports", "./...")
	list.Dir, list.Stderr = "..", os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v = %v", list, err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p rulesPackage
		if err := dec.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func rulesImports(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range rulesPackages(t) {
		name := rulesName(p.ImportPath)
		seen[name] = true
		allowed, known := rulesRooms[name]
		if !known {
			t.Errorf("package %s has no row in rulesRooms", name)
		}
		if p.Name == "main" {
			if p.Doc == "" {
				t.Errorf("package %s has no package comment", name)
			}
		} else if !strings.HasPrefix(p.Doc, "Package "+p.Name+" ") {
			t.Errorf("the comment of package %s begins with %q, want a sentence that begins with %q", name, p.Doc, "Package "+p.Name)
		}
		for _, path := range p.Imports {
			switch own := rulesName(path); {
			case own == "":
				rulesCheckForeign(t, name, path)
			case slices.Contains(rulesTestOnly, own):
				t.Errorf("package %s imports %s, which is for tests", name, own)
			case known && !slices.Contains(strings.Fields(allowed), own):
				t.Errorf("package %s imports %s, want none but %q", name, own, allowed)
			}
		}
	}
	for name := range rulesRooms {
		if !seen[name] {
			t.Errorf("rulesRooms has a row for %s, which is no package", name)
		}
	}
}

// rulesName is the folder of a package of this module, "main" for the module's own, and empty for other packages.
func rulesName(path string) string {
	if path == "agentd" {
		return "main"
	}
	name, own := strings.CutPrefix(path, "agentd/")
	if !own {
		return ""
	}
	return name
}

func rulesCheckForeign(t *testing.T, name, path string) {
	t.Helper()
	for reserved, to := range rulesReserved {
		if path != reserved && !strings.HasPrefix(path, reserved+"/") {
			continue
		}
		if to != "*" && !slices.Contains(strings.Fields(to), name) {
			t.Errorf("package %s imports %s, which only %q may", name, path, to)
		}
		return
	}
	if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") {
		t.Errorf("package %s imports %s, which no package may", name, path)
	}
}

func rulesGoMod(t *testing.T) {
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	require := regexp.MustCompile(`^(?:require\s+)?(\S+\.\S+/\S+)\s+v\S+$`)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if m := require.FindStringSubmatch(line); m != nil && !slices.Contains(rulesModules, m[1]) {
			t.Errorf("go.mod requires %s directly, want none but %q", m[1], rulesModules)
		}
		if verb, _, _ := strings.Cut(line, " "); slices.Contains([]string{"replace", "exclude", "tool"}, verb) {
			t.Errorf("go.mod has a line %q, want none of that kind", line)
		}
	}
}

func rulesFiles(t *testing.T) {
	root := filepath.Clean("..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		ext := filepath.Ext(path)
		if ext != ".go" && ext != ".sql" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if n := bytes.Count(text, []byte("\n")); n > rulesMaxLines {
			t.Errorf("%s has %d lines, want at most %d", path, n, rulesMaxLines)
		}
		switch {
		case ext == ".sql":
			rulesCheckClock(t, path, string(text))
		case !strings.HasSuffix(path, "_test.go"):
			for at, literal := range rulesStrings(path, text) {
				rulesCheckClock(t, at, literal)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func rulesCheckClock(t *testing.T, at, text string) {
	t.Helper()
	if word := rulesClock.FindString(text); word != "" {
		t.Errorf("%s: SQL asks for the time with %s, want a value from Go", at, word)
	}
}

// rulesStrings yields the string literals of a Go file, and where they are.
func rulesStrings(path string, src []byte) iter.Seq2[string, string] {
	return func(yield func(at, literal string) bool) {
		var s scanner.Scanner
		file := token.NewFileSet().AddFile(path, -1, len(src))
		s.Init(file, src, nil, 0)
		for {
			pos, tok, literal := s.Scan()
			if tok == token.EOF || tok == token.STRING && !yield(fmt.Sprintf("%s:%d", path, file.Line(pos)), literal) {
				return
			}
		}
	}
}

// rulesDialers are the packages that may open connections: the guard; the client of the API, to the server that it is given;
// the command line, to the socket of the service manager; and the clients of tests.
var rulesDialers = []string{"server/outbound", "server/client", "server/cli", "ws/wstest"}

// rulesDial finds code that opens connections past the guard.
var rulesDial = regexp.MustCompile(`\bnet\.(Dial\w*|Dialer\b|Lookup\w+)|\bhttp\.(Get|Head|Post|PostForm|DefaultClient|DefaultTransport|ProxyFromEnvironment)\b|\btls\.Dial`)

// rulesDials holds every other package to the one guard of package outbound.
func rulesDials(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		dir := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
		text, err := os.ReadFile(path)
		if err != nil || slices.Contains(rulesDialers, dir) {
			return err
		}
		text = bytes.ReplaceAll(text, []byte(`net.DialTimeout("unix"`), nil) // stays on this machine
		if call := rulesDial.Find(text); call != nil {
			t.Errorf("%s has %s, want connections to be made by server/outbound", path, call)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
