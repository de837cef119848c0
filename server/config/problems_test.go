package config_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"agentd/server/config"
	"agentd/server/fault"
)

var files = fstest.MapFS{
	"demo.script.json": {Data: []byte(`{"turns": [{"text": "hi"}]}`)},
	"prompts/x.md":     {Data: []byte("You help.\nAlways.\n")},
	"latin1.md":        {Data: []byte("caf\xe9")},
	"big.md":           {Data: []byte(strings.Repeat("x", 1<<20+1))},
}

func parse(text string, env ...string) (*config.Config, error) {
	return config.Parse([]byte(text), config.Options{Name: "c", Dir: "/etc/agentd", Files: files, Env: env})
}

// problems are the issues of err as "path: message".
func problems(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.ConfigInvalid {
		t.Fatalf("error = %v, want one of kind config-invalid", err)
	}
	var all []string
	for _, is := range e.Issues {
		var path []string
		for _, p := range is.Path {
			path = append(path, fmt.Sprint(p))
		}
		all = append(all, strings.Join(path, "/")+" | "+is.Message)
	}
	return all
}

// agents is a configuration with the given members of an agent a, and a provider p and tools to refer to.
func agents(agent string) string {
	return `{"providers": {"p": {"kind": "scripted", "script": "demo.script.json"}},
"tools": {"look": {"kind": "http", "description": "d", "url": "http://h/{q}", "sideEffect": "read-only"}},
"agents": {"a": {"kind": "llm", "provider": "p", "model": "m", ` + agent + `}}}`
}

func tool(members string) string {
	return `{"tools": {"t": {"kind": "http", "description": "d", "url": "http://h/", ` + members + `}}}`
}

func TestProblems(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		env        []string
		want       []string
	}{
		// Syntax.
		{"empty", ``, nil, []string{` | c:1:1: is not valid JSON: unexpected end of JSON input`}},
		{"only comments", "// a\n/* b */", nil, []string{` | c:2:8: is not valid JSON: unexpected end of JSON input`}},
		{"no object", `[]`, nil, []string{` | c:1:1: want an object, got a list`}},
		{"trailing data", "{}\n{}", nil, []string{` | c:2:1: is not valid JSON: invalid character '{' after top-level value`}},
		{"open object", `{"server": {`, nil, []string{` | c:1:13: is not valid JSON: unexpected end of JSON input`}},
		{"open comment", "{ /* x", nil, []string{` | c:1:3: is not valid JSON: invalid character '/' looking for beginning of object key string`}},
		{"single quotes", `{'server': {}}`, nil, []string{` | c:1:2: is not valid JSON: invalid character '\'' looking for beginning of object key string`}},
		{"no colon", `{"server" {}}`, nil, []string{` | c:1:11: is not valid JSON: invalid character '{' after object key`}},
		{"no comma", "{\"server\": {}\n\"auth\": {}}", nil, []string{` | c:2:1: is not valid JSON: invalid character '"' after object key:value pair`}},
		{"two commas", `{"server": {},,}`, nil, []string{` | c:1:15: is not valid JSON: invalid character ',' looking for beginning of object key string`}},
		{"bare word", `{"server": {"host": localhost}}`, nil, []string{` | c:1:21: is not valid JSON: invalid character 'l' looking for beginning of value`}},
		{"leading zero", `{"server": {"port": 080}}`, nil, []string{` | c:1:22: is not valid JSON: invalid character '8' after object key:value pair`}},
		{"no digits", `{"server": {"port": -}}`, nil, []string{` | c:1:22: is not valid JSON: invalid character '}' in numeric literal`}},
		{"half exponent", `{"server": {"port": 1e}}`, nil, []string{` | c:1:23: is not valid JSON: invalid character '}' in exponent of numeric literal`}},
		{"bad escape", `{"server": {"host": "a\x"}}`, nil, []string{` | c:1:24: is not valid JSON: invalid character 'x' in string escape code`}},
		{"half surrogate", `{"server": {"host": "\ud83d"}}`, nil, []string{`server/host | c:1:21: want a host name or an IP address, without a port`}},
		{"line break in text", "{\"server\": {\"host\": \"a\nb\"}}", nil, []string{` | c:1:23: is not valid JSON: invalid character '\n' in string literal`}},
		{"open text", `{"server": {"host": "a`, nil, []string{` | c:1:23: is not valid JSON: unexpected end of JSON input`}},
		{"not UTF-8", "{\"server\": {\"host\": \"\xff\"}}", nil, []string{` | c:1:22: is not UTF-8`}},
		{"too deep", strings.Repeat("[", 70) + strings.Repeat("]", 70), nil, []string{` | c:1:65: is nested deeper than 64`}},
		{"too large", strings.Repeat(" ", 4<<20+1), nil, []string{` | c:1:1: is larger than 4194304 bytes`}},
		{"broken off", "{\n\"server\": {\"prot\": 1},\n\"agents\": {\"a\": {\"kind\": \"llm\", ", nil, []string{
			` | c:3:33: is not valid JSON: unexpected end of JSON input`,
		}},

		// Keys.
		{"duplicate key", "{\"server\": {},\n \"server\": {}}", nil, []string{`server | c:2:2: duplicate key "server"; the first is at 1:2`}},
		{"duplicate key in a schema", tool("\n" + `"input": {"type": "object", "type": "object"}`), nil, []string{`tools/t/input/type | c:2:29: duplicate key "type"; the first is at 2:11`}},
		{"escaped duplicate", `{"auth": {}, "\u0061uth": {}}`, nil, []string{`auth | c:1:14: duplicate key "auth"; the first is at 1:2`}},
		{"unknown section", `{"servr": {}}`, nil, []string{`servr | c:1:2: unknown key "servr"; did you mean "server"?`}},
		{"nothing near", `{"zzzzzz": {}}`, nil, []string{`zzzzzz | c:1:2: unknown key "zzzzzz"`}},
		{"case counts", `{"Server": {}}`, nil, []string{`Server | c:1:2: unknown key "Server"; did you mean "server"?`}},
		{"characters count, not bytes", `{/* é😀 */ "servr": {}}`, nil, []string{`servr | c:1:11: unknown key "servr"; did you mean "server"?`}},
		{"reserved section", `{"mcpServers": {}, "x": {"memory": 1}}`, nil, []string{
			`mcpServers | c:1:2: is not supported: this version does not have it yet; leave it out`,
			`x | c:1:20: unknown key "x"`}},
		{"all at once", "{\n\"server\": {\"prot\": 1, \"host\": 5},\n\"auth\": {\"kind\": \"tokn\"}, \"nope\": 1}", []string{"AGENTD_SERVER_PORT=x"}, []string{
			`server/prot | c:2:12: unknown key "prot"; did you mean "port"?`,
			`server/host | c:2:31: want text, got a number`,
			`auth/kind | c:3:18: want token or none, got "tokn"; did you mean "token"?`,
			`nope | c:3:27: unknown key "nope"`,
			`server/port | AGENTD_SERVER_PORT: want a whole number, got text`,
		}},

		// Types and ranges.
		{"null", `{"server": {"port": null}}`, nil, []string{`server/port | c:1:21: want a whole number, got null; leave the key out for its default`}},
		{"text for bool", `{"server": {"trustProxy": "yes"}}`, nil, []string{`server/trustProxy | c:1:27: want true or false, got text`}},
		{"text for list", `{"server": {"allowHosts": "a"}}`, nil, []string{`server/allowHosts | c:1:27: want a list, got text`}},
		{"number in list", `{"server": {"allowHosts": ["a", 1]}}`, nil, []string{`server/allowHosts/1 | c:1:33: want text, got a number`}},
		{"list for section", `{"server": []}`, nil, []string{`server | c:1:12: want an object, got a list`}},
		{"fraction", `{"server": {"port": 1.5}}`, nil, []string{`server/port | c:1:21: want a whole number, written with digits only, got 1.5`}},
		{"exponent", `{"server": {"port": 1e3}}`, nil, []string{`server/port | c:1:21: want a whole number, written with digits only, got 1e3`}},
		{"out of range", `{"server": {"port": 65536}}`, nil, []string{`server/port | c:1:21: want a number from 0 to 65535, got 65536`}},
		{"below", `{"server": {"port": -1}}`, nil, []string{`server/port | c:1:21: want a number from 0 to 65535, got -1`}},
		{"beyond int64", `{"server": {"port": 99999999999999999999}}`, nil, []string{`server/port | c:1:21: want a smaller number, got 99999999999999999999`}},
		{"beyond time.Duration", `{"server": {"shutdown": {"drainTimeoutMs": 9223372036855}}}`, nil, []string{`server/shutdown/drainTimeoutMs | c:1:44: want a number from 1 to 9223372036854, got 9223372036855`}},
		{"beyond float", agents("\n" + `"temperature": 1e999`), nil, []string{`agents/a/temperature | c:4:16: want a smaller number`}},
		{"settings without effect", `{"retention": {"dlqExhaustedDays": 30}, "storage": {"mode": "server"}}`, []string{"AGENTD_RETENTION_MEMORYHISTORYDAYS=3"}, []string{
			"retention/dlqExhaustedDays | c:1:16: is not supported: this version has no consolidator; leave it out",
			`storage/mode | c:1:53: is not supported: one server owns the database file; leave it out`,
			"AGENTD_RETENTION_MEMORYHISTORYDAYS | AGENTD_RETENTION_MEMORYHISTORYDAYS: retention.memoryHistoryDays is not supported: this version has no memory; leave it out"}},
		{"base path", `{"server": {"basePath": "/v1/"}}`, nil, []string{`server/basePath | c:1:25: want a path such as /v1, without a slash at its end, or nothing`}},
		{"host with port", `{"server": {"host": "localhost:80"}}`, nil, []string{`server/host | c:1:21: want a host name or an IP address, without a port`}},
		{"origin with path", `{"server": {"cors": {"allowOrigins": ["https://a/"]}}}`, nil, []string{`server/cors/allowOrigins/0 | c:1:39: want * or an origin such as https://app.example.com, without a path`}},
		{"no environments", `{"auth": {"tokenEnvironments": []}}`, nil, []string{`auth/tokenEnvironments | c:1:32: want at least one item`}},
		{"unknown environment", `{"auth": {"tokenEnvironments": ["live", "prod"]}}`, nil, []string{`auth/tokenEnvironments/1 | c:1:41: want live, test or local, got "prod"`}},
		{"token prefix", `{"auth": {"tokenPrefix": "a_b"}}`, nil, []string{`auth/tokenPrefix | c:1:26: want 1 to 16 small letters, digits and -, a letter first`}},

		// References.
		{"naked secret", `{"auth": {"pepperRef": "hunter2hunter2hunter2"}}`, nil, []string{`auth/pepperRef | c:1:24: want a reference such as env:NAME or file:path; the value is not shown, because it may be a secret`}},
		{"short secret", `{"auth": {"pepperRef": "abc"}}`, nil, []string{`auth/pepperRef | c:1:24: want a reference such as env:NAME or file:path; the value is not shown, because it may be a secret`}},
		{"secret with a colon", `{"auth": {"pepperRef": "hunter2:hunter2"}}`, nil, []string{`auth/pepperRef | c:1:24: want a reference such as env:NAME or file:path; the value is not shown, because it may be a secret`}},
		{"private hosts", `{"outbound": {"allowPrivate": ["a b", "http://h"]}}`, nil, []string{
			`outbound/allowPrivate/0 | c:1:32: want a host name or an IP address, without a port`,
			`outbound/allowPrivate/1 | c:1:39: want a host name or an IP address, without a port`}},
		{"host beyond ASCII", `{"agents": {"a": {"kind": "http", "url": "http://bücher.example/"}}}`, nil, []string{
			`agents/a/url | c:1:42: want a host in ASCII: write xn--... for other letters`}},
		{"no keyring", `{"auth": {"pepperRef": "keyring:pepper"}}`, nil, []string{`auth/pepperRef | c:1:24: this build has no keyring, so it cannot resolve keyring: references; use env:, file:, encrypted-file: or ref:`}},
		{"env without name", `{"auth": {"pepperRef": "env:?default=hunter2"}}`, nil, []string{`auth/pepperRef | c:1:24: want env: and the name of a variable`}},
		{"file without path", `{"auth": {"pepperRef": "file:"}}`, nil, []string{`auth/pepperRef | c:1:24: want file: and a path`}},
		{"naked secret in a variable", `{}`, []string{"AGENTD_AUTH_PEPPERREF=hunter2hunter2"}, []string{`auth/pepperRef | AGENTD_AUTH_PEPPERREF: want a reference such as env:NAME or file:path; the value is not shown, because it may be a secret`}},
		{"header reference", tool("\n" + `"headers": {"A": {"ref": "x"}, "B": {"rf": ""}, "C": 1, "D d": "", "E": {}}`), nil, []string{
			`tools/t/headers/A/ref | c:2:26: want a reference such as env:NAME or file:path; the value is not shown, because it may be a secret`,
			`tools/t/headers/B/rf | c:2:38: unknown key "rf"; did you mean "ref"?`,
			`tools/t/headers/C | c:2:54: want text or reference, got a number`,
			`tools/t/headers/D d | c:2:57: key "D d": want a token of HTTP, without spaces`,
			`tools/t/headers/E/ref | c:2:73: "ref" is missing`,
		}},
		{"header injection", tool("\n" + `"headers": {"A": "x\r\nB: y"}`), nil, []string{`tools/t/headers/A | c:2:18: want a text without line breaks and control characters`}},

		// Variables.
		{"unknown variable", `{}`, []string{"AGENTD_SERVER_PRT=1", "AGENTD_TOKN=x", "AGENTD_ZZZZZZZZZZZZZZZZZZ=", "AGENTD_TOKEN=ok", "HOME=/"}, []string{
			`AGENTD_SERVER_PRT | AGENTD_SERVER_PRT: there is no such variable; did you mean "AGENTD_SERVER_PORT"?`,
			`AGENTD_TOKN | AGENTD_TOKN: there is no such variable; did you mean "AGENTD_TOKEN"?`,
			`AGENTD_ZZZZZZZZZZZZZZZZZZ | AGENTD_ZZZZZZZZZZZZZZZZZZ: there is no such variable`,
		}},
		{"map section by variable", `{}`, []string{"AGENTD_AGENTS_A_MODEL=m"}, []string{`AGENTD_AGENTS_A_MODEL | AGENTD_AGENTS_A_MODEL: there is no such variable`}},
		{"bad variables", `{}`, []string{"AGENTD_SERVER_PORT=80 // x", "AGENTD_METRICS_ENABLED=1", "AGENTD_AUTH_KIND=", "AGENTD_SERVER_ALLOWHOSTS=a,,b"}, []string{
			`auth/kind | AGENTD_AUTH_KIND: want token or none, got ""`,
			`metrics/enabled | AGENTD_METRICS_ENABLED: want true or false, got a number`,
			`server/allowHosts/1 | AGENTD_SERVER_ALLOWHOSTS: want a host, or host:port`,
			`server/port | AGENTD_SERVER_PORT: want a whole number, got text`,
		}},

		{"stores of secrets", `{}`, []string{"AGENTD_SECRETS_SOURCE=keyring,encrypted-file, env"}, nil},
		{"stores of secrets that are none", `{}`, []string{"AGENTD_SECRETS_SOURCE=env,auto"}, []string{
			`secrets/source | AGENTD_SECRETS_SOURCE: want auto, or one or several of keyring, encrypted-file and env with commas between them`}},
		{"a store of secrets twice", `{"secrets": {"source": "env,env"}}`, nil, []string{`secrets/source | c:1:24: want each store once`}},

		// Kinds and required fields.
		{"no kind", `{"providers": {"p": {}}}`, nil, []string{`providers/p/kind | c:1:21: "kind" is missing`}},
		{"unknown kind", `{"providers": {"p": {"kind": "openai", "baseUrl": 1}}}`, nil, []string{
			`providers/p/kind | c:1:30: want openai-compatible or scripted, got "openai"`,
			`providers/p/baseUrl | c:1:51: want text, got a number`}},
		{"field of another kind", `{"agents": {"a": {"kind": "exec", "command": ["x"], "url": "http://h/"}}}`, nil, []string{`agents/a/url | c:1:53: "url" is not a field of kind exec; it belongs to http`}},
		{"missing fields", `{"agents": {"a": {"kind": "llm"}}}`, nil, []string{
			`agents/a/provider | c:1:18: "provider" is missing`,
			`agents/a/model | c:1:18: "model" is missing`}},
		{"misspelt is not missing", `{"tools": {"t": {"kind": "http", "descripton": "d", "url": "http://h"}}}`, nil, []string{`tools/t/descripton | c:1:34: unknown key "descripton"; did you mean "description"?`}},
		{"empty id", `{"agents": {"": {"kind": "http", "url": "http://h"}, "a b": {"kind": "http", "url": "http://h"}}}`, nil, []string{
			`agents/ | c:1:13: key "": want 1 to 128 letters, digits, _ and -`,
			`agents/a b | c:1:54: key "a b": want 1 to 128 letters, digits, _ and -`}},
		{"long tool name", `{"tools": {"` + strings.Repeat("t", 65) + `": {"kind": "http", "description": "d", "url": "http://h"}}}`, nil, []string{
			`tools/` + strings.Repeat("t", 65) + ` | c:1:12: key "` + strings.Repeat("t", 40) + `…": want 1 to 64 letters, digits, _ and -`}},

		// Providers.
		{"base address", `{"providers": {"p": {"kind": "openai-compatible", "baseUrl": "ftp://h"}}}`, nil, []string{`providers/p/baseUrl | c:1:62: want an http or https address without a query`}},
		{"base address with password", `{"providers": {"p": {"kind": "openai-compatible", "baseUrl": "http://u:p@h"}}}`, nil, []string{`providers/p/baseUrl | c:1:62: want an address without user and password; a header can carry them as a reference`}},
		{"base address without host", `{"providers": {"p": {"kind": "openai-compatible", "baseUrl": "http://:80/"}}}`, nil, []string{`providers/p/baseUrl | c:1:62: want an http or https address`}},
		{"no such script", `{"providers": {"p": {"kind": "scripted", "script": "x.json"}}}`, nil, []string{`providers/p/script | c:1:52: "x.json" cannot be read: file does not exist`}},
		{"script outside", `{"providers": {"p": {"kind": "scripted", "script": "../x"}}}`, nil, []string{`providers/p/script | c:1:52: "../x" cannot be read: file does not exist`}},
		{"half a price", `{"providers": {"p": {"kind": "scripted", "script": "demo.script.json", "prices": {"m": {"inputPerMTok": -1}}}}}`, nil, []string{
			`providers/p/prices/m/outputPerMTok | c:1:88: "outputPerMTok" is missing`,
			`providers/p/prices/m/inputPerMTok | c:1:105: want a number from 0 up, got -1`}},

		// Texts.
		{"texts", agents("\n" + `"description": {"file": "nope.md"}, "instructions": {"file": "prompts"}`), nil, []string{
			`agents/a/description/file | c:4:25: "nope.md" cannot be read: file does not exist`,
			`agents/a/instructions/file | c:4:62: "prompts" cannot be read: it is not a regular file`}},
		{"more texts", agents("\n" + `"description": {"file": "latin1.md"}, "instructions": {"file": "big.md"}`), nil, []string{
			`agents/a/description/file | c:4:25: "latin1.md" is not UTF-8 text`,
			`agents/a/instructions/file | c:4:64: "big.md" cannot be read: it is larger than 1048576 bytes`}},
		{"lines", agents("\n" + `"description": ["a", 1], "instructions": {"file": 1, "x": 1}`), nil, []string{
			`agents/a/description/1 | c:4:22: want text, got a number`,
			`agents/a/instructions/file | c:4:51: want text, got a number`,
			`agents/a/instructions/x | c:4:54: unknown key "x"`}},
		{"number for text", agents("\n" + `"description": 1`), nil, []string{`agents/a/description | c:4:16: want text, lines or file, got a number`}},
		{"empty description", `{"tools": {"t": {"kind": "http", "description": "", "url": "http://h"}}}`, nil, []string{`tools/t/description | c:1:49: is empty`}},

		// Tools.
		{"built-in", `{"tools": {"clock": {"kind": "http", "description": "d", "url": "http://h"}}}`, nil, []string{`tools/clock | c:1:21: "clock" is a built-in tool; give this one another name`}},
		{"slot in host", `{"tools": {"t": {"kind": "http", "description": "d", "url": "http://{h}/"}}}`, nil, []string{`tools/t/url | c:1:61: want an http or https address with {name} in its path or query only`}},
		{"slot in port", `{"tools": {"t": {"kind": "http", "description": "d", "url": "http://h:{p}/"}}}`, nil, []string{`tools/t/url | c:1:61: want an http or https address with {name} in its path or query only`}},
		{"open slot", `{"tools": {"t": {"kind": "http", "description": "d", "url": "http://h/{a"}}}`, nil, []string{`tools/t/url | c:1:61: want the name of an argument between { and }`}},
		{"port", `{"tools": {"t": {"kind": "http", "description": "d", "url": "http://h:65536/"}}}`, nil, []string{`tools/t/url | c:1:61: want a port from 1 to 65535`}},
		{"schema", tool("\n" + `"input": true`), nil, []string{`tools/t/input | c:2:10: want an object, got true or false`}},
		{"approval", tool("\n" + `"approval": "sometimes"`), nil, []string{`tools/t/approval | c:2:13: want always or never, got "sometimes"`}},
		{"approval when", tool("\n" + `"approval": {"when": 1}`), nil, []string{`tools/t/approval/when | c:2:22: want an object, got a number`}},
		{"retry", tool("\n" + `"onUnknownOutcome": "retry"`), nil, []string{`tools/t/onUnknownOutcome | c:2:21: retry may run a call twice: it needs idempotent to be true`}},
		{"body of GET", tool("\n" + `"body": {}`), nil, []string{`tools/t/body | c:2:9: a GET request has no body; set method`}},
		{"redirect hosts", tool("\n" + `"allowHosts": ["h", "h:80", "[::1]:80", "http://h", "*.h"]`), nil, []string{
			`tools/t/allowHosts/3 | c:2:41: want a host, or host:port`,
			`tools/t/allowHosts/4 | c:2:53: want a host, or host:port`}},
		{"no command", `{"tools": {"t": {"kind": "exec", "description": "d", "command": []}}}`, nil, []string{`tools/t/command | c:1:65: want at least one item`}},
		{"empty program", `{"tools": {"t": {"kind": "exec", "description": "d", "command": [""]}}}`, nil, []string{`tools/t/command/0 | c:1:66: want a text that is not empty, without NUL`}},

		// Agents.
		{"unknown names", agents("\n" + `"tools": ["lok", "clock"], "fallbacks": [{"provider": "q", "model": "m"}, {"provider": "p", "model": "m"}]`), nil, []string{
			`agents/a/tools/0 | c:4:11: there is no tool "lok"; did you mean "look"?`,
			`agents/a/fallbacks/0/provider | c:4:55: there is no provider "q"; did you mean "p"?`,
			`agents/a/fallbacks/1 | c:4:75: this model is already tried before`}},
		{"unknown workflow as a tool", agents("\n" + `"tools": ["look", "workflow:refund"]`), nil, []string{
			`agents/a/tools/1 | c:4:19: there is no workflow "refund"`}},
		{"misspelt built-in tool", agents("\n" + `"tools": ["calculater"]`), nil, []string{
			`agents/a/tools/0 | c:4:11: there is no tool "calculater"; did you mean "calculator"?`}},
		{"twice", agents("\n" + `"tools": ["look", "look"]`), nil, []string{`agents/a/tools/1 | c:4:19: "look" is listed twice`}},
		{"tool choice", agents("\n" + `"toolChoice": {"tool": "look"}`), nil, []string{`agents/a/toolChoice | c:4:15: there is no tool of this agent "look"`}},
		{"required tool choice", agents("\n" + `"toolChoice": "required"`), nil, []string{`agents/a/toolChoice | c:4:15: the model must call a tool, but the agent has none`}},
		{"wrong tool choice", agents("\n" + `"toolChoice": "any"`), nil, []string{`agents/a/toolChoice | c:4:15: want auto, required or none, got "any"`}},
		{"permissions", agents("\n" + `"tools": ["look"], "permissions": {"deny": ["look:x", "lok:q=*"], "allow": ["look:q=a*"]}`), nil, []string{
			`agents/a/permissions/deny/0 | c:4:45: want tool or tool:argument=glob`,
			`agents/a/permissions/deny/1 | c:4:55: there is no tool of this agent "lok"; did you mean "look"?`}},
		{"budget", agents("\n" + `"budget": {"tokens": 0, "costUsd": -1, "wallMs": 1.5}, "temperature": 3, "output": "text"`), nil, []string{
			`agents/a/budget/tokens | c:4:22: want a number from 1 up, got 0`,
			`agents/a/budget/costUsd | c:4:36: want a number above 0, got -1`,
			`agents/a/budget/wallMs | c:4:50: want a whole number, written with digits only, got 1.5`,
			`agents/a/temperature | c:4:71: want a number from 0 to 2, got 3`,
			`agents/a/output | c:4:84: want an object, got text`}},
		{"http agent", `{"agents": {"a": {"kind": "http", "url": "/run", "stream": "ws"}}}`, nil, []string{
			`agents/a/url | c:1:42: want an http or https address`,
			`agents/a/stream | c:1:60: want sse, got "ws"`}},
		{"protocol", `{"agents": {"a": {"kind": "exec", "command": ["x"], "protocol": "json"}}}`, nil, []string{`agents/a/protocol | c:1:65: want text or jsonl, got "json"; did you mean "jsonl"?`}},

		// What this version does not have.
		{"sub-agents", agents("\n" + `"subAgents": ["a", "b"], "handoffs": ["c"]`), nil, []string{
			`agents/a/subAgents/0 | c:4:15: an agent cannot call itself`,
			`agents/a/subAgents/1 | c:4:20: there is no agent "b"; did you mean "a"?`,
			`agents/a/handoffs/0 | c:4:39: there is no agent "c"; did you mean "a"?`}},
		{"hand-offs", agents("\n" + `"handoffs": ["a", {"agent": "b"}, {"agent": "a", "mode": "transfer"}]`), nil, []string{
			`agents/a/handoffs/0 | c:4:14: an agent cannot call itself`,
			`agents/a/handoffs/1 | c:4:19: there is no agent "b"; did you mean "a"?`,
			`agents/a/handoffs/2 | c:4:35: an agent cannot call itself`,
			`agents/a/handoffs/2 | c:4:35: "a" is listed twice`,
			`agents/a/handoffs/2 | c:4:35: a tool is named transfer_to_a as well`}},
		{"forms of hand-offs", agents("\n" + `"handoffs": [1, "a b", {"agent": "b", "mode": "transfers"}, {"mode": "return", "agents": "b"}, {"agent": "a b"}]`), nil, []string{
			`agents/a/handoffs/0 | c:4:14: want id or {agent, mode}, got a number`,
			`agents/a/handoffs/1 | c:4:17: want 1 to 128 letters, digits, _ and -`,
			`agents/a/handoffs/2 | c:4:24: there is no agent "b"; did you mean "a"?`,
			`agents/a/handoffs/2/mode | c:4:47: want return or transfer, got "transfers"; did you mean "transfer"?`,
			`agents/a/handoffs/3/agents | c:4:80: unknown key "agents"; did you mean "agent"?`,
			`agents/a/handoffs/4/agent | c:4:106: want 1 to 128 letters, digits, _ and -`}},
		{"approval that changes nothing", tool("\n" + `"approval": {"edit": false}`), nil, []string{`tools/t/approval | c:2:13: want "always", "never", {"when": {...}} or {"edit": true, ...}`}},
		{"approval of nothing", tool("\n" + `"approval": {}`), nil, []string{`tools/t/approval | c:2:13: want "always", "never", {"when": {...}} or {"edit": true, ...}`}},
		{"approval always and when", tool("\n" + `"approval": {"always": true, "when": {}}`), nil, []string{`tools/t/approval | c:2:13: want "when" or "always", not both`}},
		{"approval of another kind", tool("\n" + `"approval": {"edits": true}`), nil, []string{`tools/t/approval/edits | c:2:14: unknown key "edits"; did you mean "edit"?`}},
		{"approvals are asked for", agents("\n" + `"tools": ["look"], "permissions": {"ask": ["look"]}`), nil, nil},
		{"approval by condition", strings.Replace(agents(`"tools": ["look"]`), `"sideEffect"`, `"approval": {"when": {}}, "sideEffect"`, 1), nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(tt.text, tt.env...)
			if got := problems(t, err); !slices.Equal(got, tt.want) {
				t.Errorf("Parse(%.200s) = problems\n%s\nwant\n%s", tt.text, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func TestProblemsAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, `"key%d": 1,`, i)
	}
	_, err := parse("{" + b.String() + "}")
	got := problems(t, err)
	if len(got) != 101 || got[100] != " | and 4900 more" {
		t.Errorf("Parse(5000 unknown keys) = %d problems, the last %q, want 101, the last one a count", len(got), got[len(got)-1])
	}
}

func TestOverrides(t *testing.T) {
	o := config.Options{Overrides: map[string]string{"server.prt": "1", "server.port": "x", "agents.a.model": "m"}}
	_, err := config.Parse([]byte(`{}`), o)
	want := []string{
		`agents.a.model | flag agents.a.model: there is no such setting`,
		`server/port | flag server.port: want a whole number, got text`,
		`server.prt | flag server.prt: there is no such setting; did you mean "server.port"?`,
	}
	if got := problems(t, err); !slices.Equal(got, want) {
		t.Errorf("Parse with overrides %v = problems\n%s\nwant\n%s", slices.Sorted(maps.Keys(o.Overrides)), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
