// Package config is the whole configuration: its tree, defaults, checks, documentation and JSON Schema.
//
// A field of the tree is declared once, by its struct tag; everything else is derived from that:
//
//	json     its name; the names from the root, joined by dots, are its path
//	default  its default: text as it is, lists separated by commas, anything else as JSON; a field without one is
//	         optional, its zero value means absent
//	check    its rules, separated by spaces: required; some (a list that is not empty); null (null means absent);
//	         a range such as 0..65535, 1.. or >0..1; the name of a rule of rules.go; keys=RULE for the keys of a map
//	enum     the texts it may be, separated by |
//	for      the kinds it belongs to, separated by |, in a type that has a kind
//	doc      what it does, as one line of prose
//
// A value comes from, strongest first: an override (a command-line flag), the environment, the file, the default.
// The variable of a setting is AGENTD_ and its path in upper case with dots as underscores: AGENTD_SERVER_PORT.
// Variables reach the settings, not the map sections (providers, tools, agents).
//
//	file -> parse (jsonc.go) -> decode over the defaults (decode.go) -> environment, overrides (load.go)
//	     -> cross checks (semantic.go, unsupported.go)
package config

import (
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// Config is the tree. It is plain data: whoever holds it may read it, and nobody changes it once a server has it.
// Start from [Default], not from the zero value, when one is made in Go.
type Config struct {
	Schema        string        `json:"$schema" doc:"Address of the JSON Schema, for editors; ignored."`
	Server        Server        `json:"server" doc:"The listener and what it answers."`
	Storage       Storage       `json:"storage" doc:"The database."`
	Retention     Retention     `json:"retention" doc:"What the sweep deletes."`
	Audit         Audit         `json:"audit" doc:"The tamper-evident chain."`
	Secrets       Secrets       `json:"secrets" doc:"Where secrets come from."`
	Outbound      Outbound      `json:"outbound" doc:"Connections that the server makes."`
	Auth          Auth          `json:"auth" doc:"Who may call."`
	Observability Observability `json:"observability" doc:"The log."`
	Hardening     Hardening     `json:"hardening" doc:"What the process does to itself at start."`
	Metrics       Metrics       `json:"metrics" doc:"The metrics endpoint."`
	Health        Health        `json:"health" doc:"When the health report warns."`

	Providers map[string]Provider `json:"providers" check:"keys=id" doc:"Model providers by id."`
	Tools     map[string]Tool     `json:"tools" check:"keys=tool" doc:"Tools by the name that models call."`
	Agents    map[string]Agent    `json:"agents" check:"keys=id" doc:"Agents by id."`

	// Dir is the folder that relative paths of the configuration mean; see [Config.Resolve].
	Dir string `json:"-"`

	sources map[string]string
}

// Default returns the configuration of an empty file.
func Default() *Config {
	c := &Config{}
	applyDefaults(reflect.ValueOf(c).Elem(), tree, "")
	return c
}

// Validate checks a configuration that was not loaded, and returns nil or one error of kind config-invalid with every
// problem. Load and Parse have validated what they return.
func (c *Config) Validate() error {
	var p problems
	v := reflect.ValueOf(c).Elem()
	verify(v, tree, nil, func(message string, path ...any) { p.add(problem{path: path, message: message}) })
	hidden := p.paths()
	c.checkMeaning(func(message string, path ...any) {
		if !hidden.cover(path) {
			p.add(problem{path: path, message: message})
		}
	}, p.full)
	return p.err("The configuration")
}

// Resolve returns p as an absolute path, or as it is where the working folder is unknown; a relative one is relative
// to the folder of the configuration. Storage.Path and those of Audit are kept as they were written and need it.
func (c *Config) Resolve(p string) string { return resolve(c.Dir, p) }

func resolve(dir, p string) string {
	if !filepath.IsAbs(p) {
		p = filepath.Join(dir, p)
	}
	if abs, err := filepath.Abs(p); err == nil {
		return abs
	}
	return p
}

// AuditPath is Audit.Path or, where that is empty, audit.db beside Storage.Path.
func (c *Config) AuditPath() string {
	if c.Audit.Path != "" {
		return c.Audit.Path
	}
	return filepath.Join(filepath.Dir(c.Storage.Path), "audit.db")
}

// SecretsPath is the encrypted file of secrets, absolute: Secrets.Path or, where that is empty, secrets.kse beside
// Storage.Path.
func (c *Config) SecretsPath() string {
	if c.Secrets.Path != "" {
		return c.Resolve(c.Secrets.Path)
	}
	return c.Resolve(filepath.Join(filepath.Dir(c.Storage.Path), "secrets.kse"))
}

// AuditCheckpoints is Audit.Checkpoint.Path or, where that is empty, beside AuditPath.
func (c *Config) AuditCheckpoints() string {
	if c.Audit.Checkpoint.Path != "" {
		return c.Audit.Checkpoint.Path
	}
	return c.AuditPath() + ".checkpoints"
}

// Sources tells where each value that is not a default came from: the path of the field, to file:line:column, the
// name of a variable or "flag PATH". It is empty for a configuration that was not loaded. The caller owns the map.
func (c *Config) Sources() map[string]string { return maps.Clone(c.sources) }

// BuiltinTool reports whether name is a tool that agents may list without a declaration. Such a name cannot be
// declared.
func BuiltinTool(name string) bool { return slices.Contains(builtinTools, name) }

var builtinTools = []string{"clock", "calculator", "session_search", "read_result"}

// dotted writes a path for people: server.cors.allowOrigins.0.
func dotted(path []any) string {
	var b strings.Builder
	for i, e := range path {
		if i > 0 {
			b.WriteByte('.')
		}
		appendElement(&b, e)
	}
	return b.String()
}
