package config_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goPackage is what go list shows of a package.
type goPackage struct {
	ImportPath, Dir, Export string
	GoFiles, Imports        []string
}

// Every field of the tree is read somewhere: outside this package, or in a method of it that answers for the field. A field
// that nothing reads is a promise that nobody keeps; it belongs in the table of unsupported.go.
func TestEveryFieldHasAnEffect(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Imports", "agentd")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v = %v", list, err)
	}
	const own = "agentd/server/config"
	exports := map[string]string{}
	var readers []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if slices.Contains(p.Imports, own) || p.ImportPath == own {
			readers = append(readers, p)
		}
	}
	read := map[string]bool{} // Type.Field
	for _, p := range readers {
		files := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, f)
		}
		lookup := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
		info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}, Types: map[ast.Expr]types.TypeAndValue{}}
		checker := types.Config{Importer: importer.ForCompiler(files, "gc", lookup)}
		if _, err := checker.Check(p.ImportPath, files, parsed, info); err != nil {
			t.Fatal(err)
		}
		for expr, result := range info.Types { // a conversion reads the whole struct
			if call, ok := expr.(*ast.CallExpr); ok && result.IsValue() && info.Types[call.Fun].IsType() {
				if object, ok := info.Types[call.Args[0]].Type.Underlying().(*types.Struct); ok {
					for field := range object.Fields() {
						read[types.TypeString(info.Types[call.Args[0]].Type, func(*types.Package) string { return "" })+"."+field.Name()] = true
					}
				}
			}
		}
		for expr, s := range info.Selections {
			if file := filepath.Base(files.Position(expr.Pos()).Filename); p.ImportPath == own && (file == "semantic.go" || file == "values.go") {
				continue // checking a field is no effect of it
			}
			if s.Kind() == types.FieldVal && s.Obj().Pkg().Path() == own {
				of := s.Recv()
				if pointer, ok := of.(*types.Pointer); ok {
					of = pointer.Elem()
				}
				read[types.TypeString(of, func(*types.Package) string { return "" })+"."+s.Obj().Name()] = true
			}
		}
	}
	exempt := []string{"Config.Schema"} // the address of the schema is for editors
	tree := declaredFields(t)
	for name := range tree {
		if !read[name] && !slices.Contains(exempt, name) {
			t.Errorf("nothing reads %s, so that a file can set it without effect", name)
		}
	}
	if len(tree) < 100 {
		t.Errorf("%d fields are declared, want all of them", len(tree))
	}
}

// declaredFields are the fields with a json tag of this package, as Type.Field.
func declaredFields(t *testing.T) map[string]bool {
	declared := map[string]bool{}
	for _, name := range []string{"config.go", "settings.go", "hosted.go", "triggers.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.TYPE {
				continue
			}
			for _, spec := range gen.Specs {
				object, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, field := range object.Fields.List {
					if field.Tag != nil && !strings.Contains(field.Tag.Value, `json:"-"`) {
						for _, id := range field.Names {
							declared[spec.(*ast.TypeSpec).Name.Name+"."+id.Name] = true
						}
					}
				}
			}
		}
	}
	return declared
}
