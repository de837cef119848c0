package config_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/golden"
)

func TestGolden(t *testing.T) {
	golden.Check(t, "testdata/schema.json", string(config.Schema()))
	golden.Check(t, "testdata/fields.md", config.Markdown())
}

func load(t *testing.T, file string) *config.Config {
	t.Helper()
	c, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatalf("Load(%q) = %v", file, err)
	}
	return c
}

// exported compares what configurations hold, not where it came from.
func exported(c *config.Config) map[string]any {
	m := map[string]any{}
	for sf, v := range reflect.ValueOf(*c).Fields() {
		if sf.IsExported() {
			m[sf.Name] = v.Interface()
		}
	}
	return m
}

func TestDefaults(t *testing.T) {
	if err := config.Default().Validate(); err != nil {
		t.Errorf("Default().Validate() = %v, want nil", err)
	}
	defaults := map[string]string{}
	for _, f := range config.Fields() {
		defaults[f.Path] = f.Default
	}
	for path, want := range map[string]string{
		"server.host":                        `"127.0.0.1"`,
		"server.port":                        `8080`,
		"server.basePath":                    `"/v1"`,
		"server.maxBodyBytes":                `4194304`,
		"server.allowHosts":                  `[]`,
		"server.idempotency.requireKey":      `"warn"`,
		"server.idempotency.ttlSeconds":      `86400`,
		"server.cors.allowOrigins":           `[]`,
		"server.cors.allowHeaders":           `["Authorization","Content-Type","Idempotency-Key","X-CSRF-Token","Last-Event-ID"]`,
		"server.csrf.enabled":                `true`,
		"server.csrf.cookieName":             `"svc_csrf"`,
		"server.rateLimit.perIpRequests":     `60`,
		"server.shutdown.drainTimeoutMs":     `30000`,
		"auth.kind":                          `"token"`,
		"auth.pepperRef":                     ``,
		"auth.tokenPrefix":                   `"svc"`,
		"storage.durability":                 `"full"`,
		"storage.encryption.enabled":         `false`,
		"audit.enabled":                      `false`,
		"audit.cipher":                       `"chacha20"`,
		"audit.wait":                         `"all"`,
		"metrics.enabled":                    `true`,
		"metrics.requireAuth":                `false`,
		"health.walWarnThresholdBytes":       `52428800`,
		"health.diskWarnThresholdBytes":      `536870912`,
		"retention.enabled":                  `true`,
		"hardening.umask":                    `63`,
		"tools.<id>.input":                   `{"type":"object","properties":{}}`,
		"tools.<id>.maxBytes":                `1048576`,
		"agents.<id>.maxSteps":               `50`,
		"agents.<id>.historyTokens":          `8000`,
		"agents.<id>.forwardEvents":          `"lifecycle"`,
		"agents.<id>.toolChoice":             `"auto"`,
		"agents.<id>.toolRetry.maxAttempts":  `3`,
		"agents.<id>.toolRetry.backoffMs":    `250`,
		"agents.<id>.recovery":               `"resume"`,
		"agents.<id>.protocol":               `"text"`,
		"agents.<id>.fallbacks.<n>.provider": ``,
	} {
		if got, ok := defaults[path]; !ok || got != want {
			t.Errorf("default of %s = %s (declared: %v), want %s", path, got, ok, want)
		}
	}
	if got := config.Default(); got.Server.RateLimit.PerIPRequests != 60 || got.Server.RateLimit.Window.Duration() != time.Minute {
		t.Errorf("Default().Server.RateLimit = %+v, want 60 a minute", got.Server.RateLimit)
	}
}

func TestFieldsAreDocumented(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range config.Fields() {
		if f.Doc == "" || !strings.HasSuffix(f.Doc, ".") || strings.Contains(f.Doc, "\n") {
			t.Errorf("%s: doc = %q, want prose on one line", f.Path, f.Doc)
		}
		if f.Type == "" {
			t.Errorf("%s has no type in words", f.Path)
		}
		if name := variable(f.Path); seen[name] {
			t.Errorf("%s or its variable %s is declared twice", f.Path, name)
		} else {
			seen[name] = true
		}
	}
}

// variable is the environment variable of a setting.
func variable(path string) string {
	return "AGENTD_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// The full example gives every field a value, so a new field must be added to it.
func TestFullExampleIsFull(t *testing.T) {
	text, err := os.ReadFile("testdata/full.jsonc")
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^//.*$`).ReplaceAll(text, nil)
	text = regexp.MustCompile(`,(\s*[}\]])`).ReplaceAll(text, []byte("$1"))
	var whole any
	if err := json.Unmarshal(text, &whole); err != nil {
		t.Fatal(err)
	}
	for _, f := range config.Fields() {
		values := []any{whole}
		for part := range strings.SplitSeq(f.Path, ".") {
			var inner []any
			for _, v := range values {
				switch v := v.(type) {
				case map[string]any:
					if part == "<id>" {
						inner = slices.AppendSeq(inner, maps.Values(v))
					} else if x, ok := v[part]; ok {
						inner = append(inner, x)
					}
				case []any:
					inner = append(inner, v...)
				}
			}
			values = inner
		}
		if len(values) == 0 {
			t.Errorf("testdata/full.jsonc does not set %s", f.Path)
		}
	}
}

func TestFullExample(t *testing.T) {
	c := load(t, "testdata/full.jsonc")
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]any{
		"retries that are zero":     {c.Providers["local"].Retries, 0},
		"headers":                   {c.Providers["local"].Headers, map[string]config.Value{"X-Team": {Text: "ops"}, "X-Key": {Ref: "env:TEAM_KEY"}}},
		"price of nothing":          {*c.Providers["local"].Prices["qwen3-4.1"].CachedRead, 0.0},
		"script path":               {c.Providers["demo"].Script.Path, filepath.Join(dir, "demo.script.json")},
		"script content":            {string(c.Providers["demo"].Script.Data), "{\"turns\": [{\"text\": \"hi\"}]}\n"},
		"lines":                     {c.Tools["weather"].Description, config.Text{Text: "Current weather\nof a city"}},
		"schema":                    {string(c.Tools["weather"].Input), `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`},
		"default schema":            {string(c.Tools["deploy"].Input), `{"type":"object","properties":{}}`},
		"program with a slash":      {c.Tools["deploy"].Command, []string{filepath.Join(dir, "deploy.sh"), "--now"}},
		"working folder":            {c.Tools["deploy"].Cwd, filepath.Join(dir, "work")},
		"condition":                 {string(c.Tools["deploy"].Approval.When), `{"env":"prod"}`},
		"fields of other kinds":     {c.Tools["deploy"].MaxBytes, 0},
		"text of a file":            {c.Agents["assistant"].Instructions, config.Text{Text: "You help with operations.\nBe brief."}},
		"temperature that is zero":  {*c.Agents["assistant"].Temperature, 0.0},
		"tool choice":               {c.Agents["assistant"].ToolChoice, config.ToolChoice{Tool: "weather"}},
		"fallbacks":                 {c.Agents["assistant"].Fallbacks, []config.Fallback{{Provider: "demo", Model: "any"}}},
		"bare program":              {c.Agents["bot"].Command, []string{"python3", "bot.py"}},
		"absolute working folder":   {c.Agents["bot"].Cwd, "/srv"},
		"defaults beside a value":   {c.Agents["remote"].Timeout.Duration(), 10 * time.Minute},
		"defaults of the same kind": {c.Agents["remote"].MaxSteps, 0},
		"storage path as written":   {c.Storage.Path, "data/x.db"},
		"storage path resolved":     {c.Resolve(c.Storage.Path), filepath.Join(dir, "data/x.db")},
		"audit path":                {c.AuditPath(), "chain.db"},
		"default audit path":        {config.Default().AuditPath(), filepath.Join(filepath.Dir(config.Default().Storage.Path), "audit.db")},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s = %#v, want %#v", name, pair[0], pair[1])
		}
	}
	if err := c.Validate(); err != nil {
		t.Errorf("Validate() of a loaded configuration = %v, want nil", err)
	}
}

func TestEffectiveApproval(t *testing.T) {
	for _, tt := range []struct {
		tool config.Tool
		want string
	}{
		{config.Tool{}, "always"},
		{config.Tool{SideEffect: "pure"}, "never"},
		{config.Tool{SideEffect: "read-only"}, "never"},
		{config.Tool{SideEffect: "external-stateful"}, "always"},
		{config.Tool{SideEffect: "pure", Approval: config.Approval{Word: "always"}}, "always"},
		{config.Tool{Approval: config.Approval{Word: "never"}}, "never"},
		{config.Tool{Approval: config.Approval{Edit: true}}, "always"},
		{config.Tool{SideEffect: "pure", Approval: config.Approval{Edit: true}}, "never"},
	} {
		if got := tt.tool.EffectiveApproval(); got != tt.want {
			t.Errorf("EffectiveApproval() of %q, %q = %s, want %s", tt.tool.SideEffect, tt.tool.Approval.Word, got, tt.want)
		}
	}
}

func TestPrecedence(t *testing.T) {
	env := []string{"AGENTD_SERVER_PORT=2", "AGENTD_SERVER_HOST=env", "AGENTD_SERVER_ALLOWHOSTS= a , b ", "AGENTD_METRICS_ENABLED=false",
		"AGENTD_AUTH_PERIPLOCKOUTMS=15", "AGENTD_AUTH_PEPPERREF=file:p", "AGENTD_SERVER_CORS_ALLOWMETHODS=", "AGENTD_RUN_ID=r",
		"AGENTD_AUTH_KIND=none", "AGENTD_AUTH_KIND=token"}
	c, err := config.Parse([]byte(`{"server": {"port": 1, "host": "file", "basePath": "/file"}}`), config.Options{
		Name: "c", Env: env, Overrides: map[string]string{"server.port": "3"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]any{
		"flag over variable":    {c.Server.Port, 3},
		"variable over file":    {c.Server.Host, "env"},
		"file over default":     {c.Server.BasePath, "/file"},
		"default":               {c.Server.MaxBodyBytes, 4 << 20},
		"list in a variable":    {c.Server.AllowHosts, []string{"a", "b"}},
		"empty list":            {c.Server.CORS.AllowMethods, []string{}},
		"bool in a variable":    {c.Metrics.Enabled, false},
		"number in a variable":  {c.Auth.PerIPLockout, config.Millis(15)},
		"ref in a variable":     {c.Auth.PepperRef, config.Ref("file:p")},
		"last of two variables": {c.Auth.Kind, "token"},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s = %#v, want %#v", name, pair[0], pair[1])
		}
	}
}

func TestPrint(t *testing.T) {
	c := load(t, "testdata/full.jsonc")
	printed := c.Print()
	if bytes.Contains(printed, []byte("hunter2")) {
		t.Error("Print() shows the default of a reference, which is a secret")
	}
	if got := c.Auth.PepperRef.String(); got != "env:PEPPER?default=***" {
		t.Errorf("String() of a reference with a default = %q, want it hidden", got)
	}
	again, err := config.Parse(printed, config.Options{Dir: "testdata"})
	if err != nil {
		t.Fatalf("Parse(Print()) = %v", err)
	}
	again.Auth.PepperRef = c.Auth.PepperRef
	if got, want := exported(again), exported(c); !reflect.DeepEqual(got, want) {
		t.Errorf("Parse(Print()) = %+v, want %+v", got, want)
	}
}

func TestTargets(t *testing.T) {
	dir, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	want := []config.Target{
		{Kind: "provider", ID: "local", Setting: "providers.local.baseUrl", Address: "127.0.0.1:8000"},
		{Kind: "tool", ID: "deploy", Setting: "tools.deploy.command", Command: []string{filepath.Join(dir, "deploy.sh"), "--now"}},
		{Kind: "tool", ID: "weather", Setting: "tools.weather.url", Address: "wx.intra:443"},
		{Kind: "tool", ID: "weather", Setting: "tools.weather.allowHosts", Address: "wx2.intra:8443"},
		{Kind: "tool", ID: "weather", Setting: "tools.weather.allowHosts", Address: "wx3.intra:443"},
		{Kind: "agent", ID: "bot", Setting: "agents.bot.command", Command: []string{"python3", "bot.py"}},
		{Kind: "agent", ID: "remote", Setting: "agents.remote.url", Address: "bot.intra:443"},
		{Kind: "notify", ID: "0", Setting: "notify.0.url", Address: "alerts.example.com:443"},
	}
	if got := load(t, "testdata/full.jsonc").Targets(); !reflect.DeepEqual(got, want) {
		t.Errorf("Targets() = %+v, want %+v", got, want)
	}
	c := &config.Config{Providers: map[string]config.Provider{"p": {BaseURL: "http://[::1]/v1"}}}
	if got := c.Targets()[0].Address; got != "[::1]:80" {
		t.Errorf("Targets() of an IPv6 address = %s, want [::1]:80", got)
	}
	if got := config.Default().Targets(); len(got) != 0 {
		t.Errorf("Default().Targets() = %v, want nothing", got)
	}
}

func TestRefs(t *testing.T) {
	want := []config.NamedRef{
		{Path: []any{"storage", "encryption", "passphraseRef"}, Ref: "file:pass"},
		{Path: []any{"audit", "passphraseRef"}, Ref: "ENV:AUDIT_PASS"},
		{Path: []any{"auth", "pepperRef"}, Ref: "env:PEPPER?default=hunter2"},
		{Path: []any{"providers", "local", "apiKeyRef"}, Ref: "env:LLM_KEY"},
		{Path: []any{"providers", "local", "headers", "X-Key"}, Ref: "env:TEAM_KEY"},
		{Path: []any{"tools", "weather", "headers", "Authorization"}, Ref: "env:WX_TOKEN"},
		{Path: []any{"agents", "bot", "env", "KEY"}, Ref: "env:BOT_KEY"},
		{Path: []any{"agents", "remote", "hmacRef"}, Ref: "env:HOOK_KEY"},
		{Path: []any{"hooks", "github", "verify", "secretRefs", 0}, Ref: "env:HOOK"},
		{Path: []any{"hooks", "github", "verify", "secretRefs", 1}, Ref: "env:HOOK_NEXT"},
		{Path: []any{"hooks", "meter", "verify", "secretRefs", 0}, Ref: "env:METER"},
		{Path: []any{"notify", 0, "secretRefs", 0}, Ref: "env:NOTIFY_KEY"},
	}
	if got := load(t, "testdata/full.jsonc").Refs(); !reflect.DeepEqual(got, want) {
		t.Errorf("Refs() = %v, want %v", got, want)
	}
}

// Validate sees in Go values what Parse sees in files.
func TestValidate(t *testing.T) {
	c := config.Default()
	c.Server.Port = 70000
	c.Server.AllowHosts = []string{"a", "a b"}
	c.Auth.PepperRef = "hunter2hunter2"
	c.Auth.TokenEnvironments = nil
	c.Tools = map[string]config.Tool{"no name": {Kind: "exec", URL: "http://h", SideEffect: "pure"}}
	c.Agents = map[string]config.Agent{"a": {
		Kind: "llm", Provider: "p", HistoryTokens: 1, ForwardEvents: "all", Recovery: "fail", MaxSteps: 1, MaxParallelTools: 1,
		Temperature: new(3.0), Output: []byte("text"), ToolRetry: config.ToolRetry{MaxAttempts: 1},
	}, "b": {Kind: "x"}}
	want := []string{
		`server/port | want a number from 0 to 65535, got 70000`,
		`server/allowHosts/1 | want a host, or host:port`,
		`auth/pepperRef | want a reference such as env:NAME or file:path; the value is not shown, because it may be a secret`,
		`auth/tokenEnvironments | want at least one item`,
		`tools/no name | key "no name": want 1 to 64 letters, digits, _ and -`,
		`tools/no name/description | is empty`,
		`tools/no name/input | want an object, got null; leave the key out for its default`,
		`tools/no name/url | "url" is not a field of kind exec; it belongs to http`,
		`tools/no name/command | want at least one item`,
		`agents/a/model | is empty`,
		`agents/a/temperature | want a number from 0 to 2, got 3`,
		`agents/a/toolChoice | want auto, required or none, got ""`,
		`agents/a/output | want an object, got text`,
		`agents/a/provider | there is no provider "p"`,
		`agents/b/kind | want llm, exec or http, got "x"`,
	}
	got := problems(t, c.Validate())
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("Validate() = problems\n%s\nwant also %s", strings.Join(got, "\n"), w)
		}
	}
}

func TestLoad(t *testing.T) {
	_, err := config.Load(filepath.Join(t.TempDir(), "none.json"), nil, nil)
	if e := fault.Of(err); e.Kind != fault.ConfigInvalid || !strings.HasSuffix(e.Message, "none.json cannot be read: no such file or directory.") || !strings.Contains(e.NextStep(), "agentd init") {
		t.Errorf("Load(no file) = %v, hint %q, want config-invalid with a hint", e, e.NextStep())
	}
	c, err := config.Load("", []string{"AGENTD_SERVER_PORT=1"}, map[string]string{"server.host": "h"})
	if err != nil || c.Server.Port != 1 || c.Server.Host != "h" || !filepath.IsAbs(c.Dir) {
		t.Errorf("Load(\"\") = %+v, %v, want defaults, the variable and the override", c, err)
	}
	if _, err := config.Parse([]byte("\uFEFF{}"), config.Options{}); err != nil {
		t.Errorf("Parse(byte order mark) = %v, want nil", err)
	}
	for _, name := range []string{"clock", "calculator", "session_search", "read_result"} {
		if !config.BuiltinTool(name) {
			t.Errorf("BuiltinTool(%q) = false, want true", name)
		}
	}
}

// Texts and scripts can come from files that are embedded in a program.
func TestFilesOption(t *testing.T) {
	c, err := parse(agents(`"instructions": {"file": "./prompts/x.md"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Agents["a"].Instructions; got.Text != "You help.\nAlways." {
		t.Errorf("instructions = %q, want those of the embedded file", got)
	}
	if got := c.Providers["p"].Script; got.Path != "demo.script.json" || len(got.Data) == 0 {
		t.Errorf("script = %s with %d bytes, want the embedded file", got.Path, len(got.Data))
	}
}

func FuzzParse(f *testing.F) {
	full, err := os.ReadFile("testdata/full.jsonc")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte(agents(`"instructions": {"file": "prompts/x.md"}, "tools": ["look"]`)))
	f.Add([]byte(`{"server": {"port": 1.5e3, "host": "\ud83d\ude00", // x` + "\n" + `}, /* */ "server": null,} x`))
	f.Add([]byte(`{"agents": {"a": {"kind": "llm", "output": null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o := config.Options{Files: files, Dir: "/etc/agentd"}
		fileCost.Check(t, len(data), func() { config.Parse(data, o) }) //nolint:errcheck // it is looked at below
		c, err := config.Parse(data, o)
		if err != nil {
			if e := fault.Of(err); e.Kind != fault.ConfigInvalid || len(e.Issues) == 0 {
				t.Fatalf("Parse = %v, want config-invalid with issues", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("Validate() of what Parse returned = %v", err)
		}
		printed := c.Print()
		again, err := config.Parse(printed, o)
		if err != nil {
			t.Fatalf("Parse(Print()) = %v\n%s", err, printed)
		}
		if !bytes.Contains(printed, []byte("***")) && !reflect.DeepEqual(exported(again), exported(c)) {
			t.Fatalf("Parse(Print()) is another configuration:\n%s\n%s", printed, again.Print())
		}
	})
}
