package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"agentd/server/fault"
	"agentd/server/secret"
)

// Options is what [Parse] needs to know besides the text.
type Options struct {
	Name      string            // how messages call the text; "agentd.json" when empty
	Dir       string            // the folder that relative paths mean; "" is the working folder
	Files     fs.FS             // when set, texts and scripts are read from it instead of from Dir
	Env       []string          // NAME=value, as os.Environ gives it; of duplicates the last counts
	Overrides map[string]string // by path: {"server.port": "0"}; stronger than Env
}

// Load reads the file and applies env (see [Options]) and overrides to it. An empty path stands for an empty file in
// the working folder. The error is of kind config-invalid and names every problem.
func Load(file string, env []string, overrides map[string]string) (*Config, error) {
	o := Options{Name: file, Env: env, Overrides: overrides}
	if file == "" {
		return Parse([]byte("{}"), o)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, unreadable(file, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, unreadable(file, err)
	}
	o.Dir = filepath.Dir(file)
	return Parse(data, o)
}

func unreadable(file string, err error) error {
	return fault.Invalid(fmt.Sprintf("%s cannot be read: %v.", file, reason(err))).
		Advise("Create one with `agentd init`, or name another with --config.").Because(err)
}

// reason is an error without the path that messages give anyway.
func reason(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// Parse reads a configuration from memory; see [Load]. It takes time and memory in proportion to the text, but a lot of
// both: each of its objects is made whole, and where each value stands is remembered, for which a thousand bytes for each
// byte are not unusual. A text has at most 4 MiB.
func Parse(data []byte, o Options) (*Config, error) {
	if o.Name == "" {
		o.Name = "agentd.json"
	}
	c := Default()
	o.Dir = c.Resolve(o.Dir)
	c.Dir = o.Dir
	l := &loader{opts: o, where: map[string]place{}, sources: map[string]string{}}
	v := reflect.ValueOf(c).Elem()

	root, whole := parse(data, l.report)
	l.partial = !whole
	if root != nil {
		l.object(v, tree, root, nil)
	}
	l.environment(v)
	l.overrides(v)
	if whole {
		hidden := l.problems.paths()
		c.checkMeaning(func(message string, path ...any) {
			if !hidden.cover(path) {
				l.problems.add(l.locate(path, message))
			}
		}, l.problems.full)
	}
	if err := l.problems.err("The configuration"); err != nil {
		return nil, err
	}
	c.resolveCommands()
	c.sources = l.sources
	return c, nil
}

// resolveCommands makes programs with a slash and working folders absolute.
func (c *Config) resolveCommands() {
	resolved := func(command []string) {
		if len(command) > 0 && strings.Contains(command[0], "/") {
			command[0] = c.Resolve(command[0])
		}
	}
	for id, t := range c.Tools {
		if t.Kind == "exec" {
			resolved(t.Command)
			t.Cwd = c.Resolve(t.Cwd)
			c.Tools[id] = t
		}
	}
	for id, a := range c.Agents {
		if a.Kind == "exec" {
			resolved(a.Command)
			a.Cwd = c.Resolve(a.Cwd)
			c.Agents[id] = a
		}
	}
}

// A loader decodes one configuration and collects what is wrong with it.
type loader struct {
	opts     Options
	origin   string // of nodes that are not from the file: a variable or a flag
	partial  bool   // the file broke off: what is missing is not its fault
	bytes    int    // read from files that the configuration names
	problems problems
	where    map[string]place // by dotted path
	sources  map[string]string
}

type place struct {
	pos    pos
	origin string
}

func (l *loader) count() int { return len(l.problems.list) + l.problems.more }

func (l *loader) place(at pos) place {
	if at == (pos{}) {
		return place{origin: l.origin}
	}
	return place{at, fmt.Sprintf("%s:%v", l.opts.Name, at)}
}

func (l *loader) report(at pos, path []any, message string) {
	p := l.place(at)
	l.problems.add(problem{pos: p.pos, origin: p.origin, path: path, message: message})
}

// note remembers where the value of a path stands.
func (l *loader) note(s *shape, n *node, path []any) {
	if l.where == nil || len(path) == 0 {
		return
	}
	key, p := dotted(path), l.place(n.pos)
	l.where[key] = p
	if _, isItem := path[len(path)-1].(int); !isItem && s.form != formObject && s.form != formDict {
		l.sources[key] = p.origin
	}
}

// locate makes a problem of a path: it stands where the nearest part of the path that was given does.
func (l *loader) locate(path []any, message string) problem {
	for n := len(path); n > 0; n-- {
		if p, ok := l.where[dotted(path[:n])]; ok {
			return problem{p.pos, p.origin, path, message}
		}
	}
	return problem{path: path, message: message}
}

// read returns the content of a regular file that n names, or reports why not.
func (l *loader) read(n *node, limit int64, at []any) ([]byte, bool) {
	b, err := l.opts.read(n.text, limit)
	if l.bytes += len(b); err == nil && l.bytes > maxFileBytes {
		err = fmt.Errorf("the files of the configuration are larger than %d bytes together", maxFileBytes)
	}
	if err != nil {
		l.report(n.pos, at, fmt.Sprintf("%s cannot be read: %v", quoted(n.text), reason(err)))
	}
	return b, err == nil
}

func (o Options) read(name string, limit int64) ([]byte, error) {
	files := o.Files
	if files == nil {
		full := resolve(o.Dir, name)
		files, name = os.DirFS(filepath.Dir(full)), filepath.Base(full)
	}
	name = path.Clean(name)
	st, err := fs.Stat(files, name)
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular(): // opening a pipe could block for ever
		return nil, errors.New("it is not a regular file")
	}
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("it is larger than %d bytes", limit)
	}
	return b, err
}

// ownVariables are those that other parts of the program read.
var ownVariables = []string{"AGENTD_TOKEN", "AGENTD_CONFIG", "AGENTD_RUN_ID", "AGENTD_AGENT_ID", "AGENTD_CALL_ID",
	secret.Passphrase, secret.PassphraseAt, secret.AllowLiterals, secret.Environment}

func (l *loader) environment(v reflect.Value) {
	byName, names := map[string]setting{}, slices.Clone(ownVariables)
	for _, s := range settings() {
		byName[s.variable()] = s
		names = append(names, s.variable())
	}
	given := map[string]string{}
	for _, entry := range l.opts.Env {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, "AGENTD_") {
			given[name] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		l.origin = name
		if s, ok := byName[name]; ok {
			l.set(v, s, given[name])
		} else if slices.Contains(ownVariables, name) {
			continue
		} else if l.problems.full() {
			l.report(pos{}, []any{name}, "there is no such variable")
		} else {
			l.report(pos{}, []any{name}, "there is no such variable"+didYouMean(fault.Nearest(name, names)))
		}
	}
}

func (l *loader) overrides(v reflect.Value) {
	byPath, paths := map[string]setting{}, []string{}
	for _, s := range settings() {
		byPath[dotted(s.path)] = s
		paths = append(paths, dotted(s.path))
	}
	for _, path := range slices.Sorted(maps.Keys(l.opts.Overrides)) {
		l.origin = "flag " + path
		if s, ok := byPath[path]; ok {
			l.set(v, s, l.opts.Overrides[path])
		} else {
			l.report(pos{}, []any{path}, "there is no such setting"+didYouMean(fault.Nearest(path, paths)))
		}
	}
}

func (l *loader) set(v reflect.Value, s setting, text string) {
	if !utf8.ValidString(text) {
		l.report(pos{}, s.path, "is not UTF-8")
		return
	}
	l.member(v.FieldByIndex(s.index), s.field, fromText(s.field.shape, text), s.path)
}
