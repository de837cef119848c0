package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/server/secret"
	"agentd/server/shape"
)

// Options is what [Parse] needs to know besides the text.
type Options struct {
	Name      string            // how messages call the text; "agentd.json" when empty
	Dir       string            // the folder that relative paths mean; "" is the working folder
	Files     fs.FS             // when set, texts and scripts are read from it instead of from Dir
	Env       []string          // NAME=value, as os.Environ gives it; of duplicates the last counts
	Overrides map[string]string // by path: {"server.port": "0"}; stronger than Env
}

// maxBytes is how long a configuration file may be.
const maxBytes = 4 << 20

// Load reads the file and applies env (see [Options]) and overrides to it. An empty path stands for an empty file in
// the working folder. The error is of kind config-invalid and names every problem.
func Load(file string, env []string, overrides map[string]string) (*Config, error) {
	o := Options{Name: file, Env: env, Overrides: overrides}
	if file == "" {
		return Parse([]byte("{}"), o)
	}
	f, err := os.Open(file)
	if err == nil {
		defer f.Close()
		var data []byte
		if data, err = io.ReadAll(io.LimitReader(f, maxBytes+1)); err == nil {
			o.Dir = filepath.Dir(file)
			return Parse(data, o)
		}
	}
	return nil, fault.Invalid(fmt.Sprintf("%s cannot be read: %v.", file, fault.Innermost(err))).
		Advise("Create one with `agentd init`, or name another with --config.").Because(err)
}

// Parse reads a configuration from memory; see [Load]. It takes time and memory in proportion to the text, but much of
// both: each object of a map section is made whole, so that a thousand bytes for each byte are not unusual. A text has at
// most 4 MiB. If the text is not sound JSON, only that and problems of variables and overrides are reported.
func Parse(data []byte, o Options) (*Config, error) {
	c := Default()
	c.Dir = c.Resolve(o.Dir)
	l := loader{Options: o, dir: c.Dir}
	if l.Name == "" {
		l.Name = "agentd.json"
	}
	l.reader = &shape.Reader{Name: l.Name, File: true, MaxBytes: maxBytes, MaxDepth: 64, Open: l.open,
		Unknown: func(path []any) string { return cmp.Or(advice(shape.Dotted(path)), misplaced(path)) }}
	sound := l.reader.Read(data, tree, c)
	l.environment(c)
	l.overrides(c)
	if sound {
		c.checkMeaning(l.reader)
	}
	if err := invalid(l.reader); err != nil {
		return nil, err
	}
	c.absolute(o.Files == nil)
	return c, nil
}

// invalid is nil when nothing is wrong.
func invalid(r *shape.Reader) error {
	switch issues, n := r.Issues(), r.Count(); n {
	case 0:
		return nil
	case 1:
		return fault.Invalid("The configuration has a problem.", issues...)
	default:
		return fault.Invalid(fmt.Sprintf("The configuration has %d problems.", n), issues...)
	}
}

// absolute makes programs with a slash, working folders and, where scripts are files, their paths absolute.
func (c *Config) absolute(scripts bool) {
	program := func(command []string, folder *string) {
		if *folder = c.Resolve(*folder); strings.Contains(command[0], "/") {
			command[0] = c.Resolve(command[0])
		}
	}
	for id, p := range c.Providers {
		if p.Kind == "scripted" && scripts {
			p.Script.Path = c.Resolve(p.Script.Path)
			c.Providers[id] = p
		}
	}
	for id, t := range c.Tools {
		if t.Kind == "exec" {
			program(t.Command, &t.Cwd)
			c.Tools[id] = t
		}
	}
	for id, a := range c.Agents {
		if a.Kind == "exec" {
			program(a.Command, &a.Cwd)
			c.Agents[id] = a
		}
	}
}

type loader struct {
	Options
	dir    string
	bytes  int // read from files that the configuration names
	reader *shape.Reader
}

// open returns the content of a regular file.
func (l *loader) open(name string, limit int64) ([]byte, error) {
	b, err := l.read(name, limit)
	if l.bytes += len(b); err == nil && l.bytes > maxFileBytes {
		err = fmt.Errorf("the files of the configuration are larger than %d bytes together", maxFileBytes)
	}
	return b, fault.Innermost(err)
}

func (l *loader) read(name string, limit int64) ([]byte, error) {
	files := l.Files
	if files == nil {
		full := resolve(l.dir, name)
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

func variable(path string) string {
	return "AGENTD_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

func (l *loader) environment(c *Config) {
	given := map[string]string{}
	for _, entry := range l.Env {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, "AGENTD_") && !slices.Contains(ownVariables, name) {
			given[name] = value
		}
	}
	l.assign(c, given, variable, "variable", "%s", ownVariables)
}

func (l *loader) overrides(c *Config) {
	l.assign(c, l.Overrides, func(path string) string { return path }, "setting", "flag %s", nil)
}

// assign sets settings to texts. called is the name by which a path is known; further names are known as well.
func (l *loader) assign(c *Config, given map[string]string, called func(path string) string, what, origin string, further []string) {
	byName, advised := map[string]shape.Setting{}, map[string]string{}
	for _, s := range tree.Settings() {
		byName[called(shape.Dotted(s.Path))] = s
	}
	for path := range unsupported {
		advised[called(path)] = path + " " + advice(path)
	}
	known := slices.AppendSeq(slices.Clone(further), maps.Keys(byName))
	slices.Sort(known)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		from := fmt.Sprintf(origin, name)
		if s, ok := byName[name]; ok {
			l.reader.Set(c, s, given[name], from)
			continue
		}
		message := advised[name]
		if message == "" {
			message = "there is no such " + what
			if !l.reader.Full() {
				message += shape.DidYouMean(fault.Nearest(name, known))
			}
		}
		l.reader.Report(from, message, name)
	}
}
