// Package config is the tree of settings: what there is to configure, its defaults, rules and documentation. A field is
// declared once, by its struct tag, which package shape explains.
//
// A value comes from, strongest first: an override (a command-line flag), the environment, the file, the default.
// The variable of a setting is AGENTD_ and its path in upper case with dots as underscores: AGENTD_SERVER_PORT.
// Variables reach the settings, not the map sections (providers, tools, agents, workflows, triggers, hooks).
//
//	file -> read over the defaults -> environment, overrides (load.go) -> cross checks (semantic.go)
package config

import (
	"cmp"
	"path/filepath"
	"reflect"
	"slices"

	"agentd/server/graph"
	"agentd/server/shape"
)

// Config is the tree. It is plain data: whoever holds it may read it, and nobody changes it once a server has it.
// Start from [Default], not from the zero value, when one is made in Go.
type Config struct {
	Schema        string        `json:"$schema" doc:"Address of the JSON Schema, for editors. agentd ignores it."`
	Server        Server        `json:"server" doc:"The listener and its answers."`
	Storage       Storage       `json:"storage" doc:"The database."`
	Retention     Retention     `json:"retention" doc:"What the sweep deletes."`
	Audit         Audit         `json:"audit" doc:"The tamper-evident chain."`
	Secrets       Secrets       `json:"secrets" doc:"Where secrets come from."`
	Outbound      Outbound      `json:"outbound" doc:"Connections that the server makes."`
	Auth          Auth          `json:"auth" doc:"Who may call."`
	Observability Observability `json:"observability" doc:"The log."`
	Hardening     Hardening     `json:"hardening" doc:"Protections of the process, applied at start."`
	Metrics       Metrics       `json:"metrics" doc:"The metrics endpoint."`
	Health        Health        `json:"health" doc:"Limits at which the health report warns."`

	Providers map[string]Provider `json:"providers" check:"keys=id" doc:"Model providers by id."`
	Tools     map[string]Tool     `json:"tools" check:"keys=tool" doc:"Tools by the name that models call."`
	Agents    map[string]Agent    `json:"agents" check:"keys=id" doc:"Agents by id."`

	Workflows map[string]graph.Workflow `json:"workflows" check:"keys=id" doc:"Workflows by id."`

	Triggers map[string]Trigger `json:"triggers" check:"keys=id" doc:"Triggers by id: what starts runs at a time or upon an event."`
	Hooks    map[string]Hook    `json:"hooks" check:"keys=id" doc:"Webhooks that other systems send to POST /hooks/<name>, by name."`
	Notify   []Notify           `json:"notify" default:"" check:"..64" doc:"Receivers of notifications."`

	// Dir is the folder that relative paths of the configuration mean; see [Config.Resolve].
	Dir string `json:"-"`
}

// tree is what the tags declare.
var tree = shape.With(reflect.TypeFor[Config](), textRules)

// Default returns the configuration of an empty file.
func Default() *Config {
	c := &Config{}
	tree.Default(c)
	return c
}

// Validate checks a configuration that was not loaded, and returns nil or one error of kind config-invalid with every
// problem. Load and Parse have validated what they return.
func (c *Config) Validate() error {
	r := &shape.Reader{File: true, MaxDepth: 64}
	r.Check(tree, c)
	c.checkMeaning(r)
	return invalid(r)
}

// Schema returns the JSON Schema (draft 2020-12) of the file. References between parts of the file are checked by
// loading it only.
func Schema() []byte { return tree.Schema("Configuration of agentd") }

// Fields documents every field of the file, in the order of the tree.
func Fields() []shape.Row { return tree.Rows() }

// Markdown returns the documentation of every field: one table of the settings, and one for each map section.
func Markdown() string { return tree.Markdown() }

// Print returns the effective configuration as indented JSON in the order of the tree, with a line break at its end.
// Secrets appear as their references, texts from files as they are. Parsing it in the same folder gives the same
// configuration.
func (c *Config) Print() []byte { return tree.Print(c) }

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
func (c *Config) AuditPath() string { return cmp.Or(c.Audit.Path, c.beside("audit.db")) }

// SecretsPath is the encrypted file of secrets, absolute: Secrets.Path or, where that is empty, secrets.kse beside
// Storage.Path.
func (c *Config) SecretsPath() string {
	return c.Resolve(cmp.Or(c.Secrets.Path, c.beside("secrets.kse")))
}

// AuditCheckpoints is Audit.Checkpoint.Path or, where that is empty, beside AuditPath.
func (c *Config) AuditCheckpoints() string {
	return cmp.Or(c.Audit.Checkpoint.Path, c.AuditPath()+".checkpoints")
}

func (c *Config) beside(name string) string { return filepath.Join(filepath.Dir(c.Storage.Path), name) }

// BuiltinTool reports whether name is a tool that agents may list without a declaration. Such a name cannot be
// declared.
func BuiltinTool(name string) bool { return slices.Contains(builtinTools, name) }

var builtinTools = []string{"clock", "calculator", "session_search", "read_result"}
