package server_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"agentd/server/audit"
)

// TestActions holds the code to the table of audit actions: every constant is a row and is used by something that writes
// entries, and no other file spells the name of an action.
func TestActions(t *testing.T) {
	declared := map[string]bool{}
	for _, a := range audit.Actions {
		if declared[string(a.Action)] || a.When == "" {
			t.Errorf("the action %s is declared twice, or without a sentence", a.Action)
		}
		declared[string(a.Action)] = true
	}
	scopes := map[ast.Node]bool{}
	constants, used := map[string]string{}, map[string]bool{}
	walk := func(path string, visit func(ast.Node)) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool { visit(n); return true })
	}
	const table = "audit/actions.go"
	walk(table, func(n ast.Node) {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				constants[v.Names[0].Name], _ = strconv.Unquote(lit.Value)
			}
		}
	})
	if len(constants) != len(declared) {
		t.Errorf("%d actions are constants, and %d are rows of the table", len(constants), len(declared))
	}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(path, "../server/"))
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || name == table {
			return err
		}
		// Evidence reads what earlier versions wrote, too.
		reads := filepath.Dir(name) == "evidence"
		walk(path, func(n ast.Node) {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "audit" {
					used[n.Sel.Name] = used[n.Sel.Name] || !reads
				}
			case *ast.Ident:
				used[n.Name] = used[n.Name] || filepath.Dir(name) == "audit"
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Access" {
					scopes[n.Value] = true
				}
			case *ast.BasicLit:
				if scopes[n] { // audit:verify is a scope, too
					return
				}
				if text, _ := strconv.Unquote(n.Value); n.Kind == token.STRING && declared[text] && !reads {
					t.Errorf("%s spells the action %s; it is a constant of server/audit", path, text)
				}
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, action := range constants {
		if !declared[action] || !used[name] {
			t.Errorf("the action %s is not in the table, or nothing writes it", action)
		}
	}
}
