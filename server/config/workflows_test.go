package config_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"agentd/server/config"
)

// workflow is a configuration with a workflow w, and tools and an agent that it can name. The workflow begins in line 5.
func workflow(text string) string {
	return `{"providers": {"p": {"kind": "scripted", "script": "demo.script.json"}}, "auth": {"pepperRef": "env:X"},
"tools": {"orders": {"kind": "http", "description": "d", "url": "http://h/"}},
"agents": {"writer": {"kind": "llm", "provider": "p", "model": "m"}},
"workflows": {"v": {"start": "a", "nodes": {"a": {"kind": "fail", "code": "c", "message": ""}}}, "w":
` + text + `}}`
}

// nodes is a workflow that starts at a, with a key k and the given nodes.
func nodes(text string) string {
	return workflow(`{"start": "a", "state": {"k": {}, "l": {"merge": "append"}}, "nodes": {` + "\n" + text + "}}")
}

const (
	toEnd  = `"next": "end"`
	orders = `"kind": "tool", "tool": "orders"`
)

func TestWorkflowProblems(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		// The form.
		{"no start", workflow(`{"nodes": {}}`), `workflows/w/start | c:5:1: "start" is missing`},
		{"unknown field", workflow(`{"start": "a", "nods": {}}`), `workflows/w/nods | c:5:16: unknown key "nods"; did you mean "nodes"?`},
		{"doubled node", nodes(`"a": {` + orders + `, ` + toEnd + `}, "a": {` + orders + `, ` + toEnd + `}`), `workflows/w/nodes/a | c:6:57: duplicate key "a"; the first is at 6:1`},
		{"unknown kind", nodes(`"a": {"kind": "tol"}`), `workflows/w/nodes/a/kind | c:6:15: want tool, agent, workflow, set, branch, parallel, map, sleep, await, approval or fail, got "tol"; did you mean "tool"?`},
		{"foreign field", nodes(`"a": {` + orders + `, ` + toEnd + `, "cases": []}`), `workflows/w/nodes/a/cases | c:6:56: "cases" is not a field of kind tool; it belongs to branch`},
		{"branch without else", nodes(`"a": {"kind": "branch", "cases": [{"if": "true", ` + toEnd + `}]}`), `workflows/w/nodes/a/else | c:6:6: "else" is missing`},
		{"branch without cases", nodes(`"a": {"kind": "branch", "cases": [], "else": "end"}`), `workflows/w/nodes/a/cases | c:6:34: want at least one item`},
		{"a branch fails nothing itself", nodes(`"a": {"kind": "branch", "timeoutMs": 1, "cases": [{"if": "true", ` + toEnd + `}], "else": "end"}`), `"timeoutMs" is not a field of kind branch`},
		{"no next", nodes(`"a": {` + orders + `}`), `workflows/w/nodes/a/next | c:6:6: "next" is missing`},
		{"timeout that is not positive", nodes(`"a": {` + orders + `, ` + toEnd + `, "timeoutMs": 0}`), `workflows/w/nodes/a/timeoutMs | c:6:69: want a number from 1 to`},
		{"run's timeout that is not positive", workflow(`{"timeoutMs": -1, "start": "a", "nodes": {}}`), `workflows/w/timeoutMs | c:5:15: want a number from 1 to`},
		{"too many attempts", nodes(`"a": {` + orders + `, ` + toEnd + `, "retry": {"maxAttempts": 1001}}`), `workflows/w/nodes/a/retry/maxAttempts | c:6:81: want a number from 1 to 1000`},
		{"no attempts", nodes(`"a": {` + orders + `, ` + toEnd + `, "retry": {"maxAttempts": 0}}`), `workflows/w/nodes/a/retry/maxAttempts | c:6:81: want a number from 1 to 1000`},
		{"back-off beyond its limit", nodes(`"a": {` + orders + `, ` + toEnd + `, "retry": {"backoffMs": 9, "maxBackoffMs": 5}}`), `workflows/w/nodes/a/retry/backoffMs | c:6:79: is longer than maxBackoffMs, which is 5`},
		{"retry of an approval", nodes(`"a": {"kind": "approval", "name": "n", ` + toEnd + `, "retry": {}}`), `"retry" is not a field of kind approval; it belongs to tool, agent or workflow`},
		{"codes", nodes(`"a": {` + orders + `, ` + toEnd + `, "onError": {` + toEnd + `, "on": ["No"]}}`), `workflows/w/nodes/a/onError/on/0 | c:6:90: want a code`},
		{"state too large", workflow(`{"maxStateBytes": 67108865, "start": "a", "nodes": {}}`), `workflows/w/maxStateBytes | c:5:19: want a number from 1 to 67108864`},
		{"unknown merge", workflow(`{"state": {"k": {"merge": "add"}}, "start": "a", "nodes": {}}`), `workflows/w/state/k/merge | c:5:27: want replace, append`},

		// Names.
		{"unknown tool", nodes(`"a": {"kind": "tool", "tool": "order", ` + toEnd + `}`), `workflows/w/nodes/a/tool | c:6:31: there is no tool "order"; did you mean "orders"?`},
		{"a tool that workflows do not have", nodes(`"a": {"kind": "tool", "tool": "read_result", ` + toEnd + `}`), `workflows/w/nodes/a/tool | c:6:31: there is no tool "read_result"`},
		{"unknown agent", nodes(`"a": {"kind": "agent", "agent": "writr", ` + toEnd + `}`), `workflows/w/nodes/a/agent | c:6:33: there is no agent "writr"; did you mean "writer"?`},
		{"unknown workflow", nodes(`"a": {"kind": "workflow", "workflow": "x", ` + toEnd + `}`), `workflows/w/nodes/a/workflow | c:6:39: there is no workflow "x"`},
		{"unknown start", workflow(`{"start": "b", "nodes": {"a": {"kind": "fail", "code": "c", "message": ""}}}`), `workflows/w/start | c:5:11: there is no node "b"`},
		{"start at the end", workflow(`{"start": "end", "nodes": {"a": {"kind": "fail", "code": "c", "message": ""}}}`), `workflows/w/start | c:5:11: want a node, got "end"`},
		{"no nodes", workflow(`{"start": "a", "nodes": {}}`), `workflows/w/start | c:5:11: there is no node "a"`},
		{"unknown next", nodes(`"a": {` + orders + `, "next": "ned"}`), `workflows/w/nodes/a/next | c:6:49: there is no node "ned"`},
		{"unknown next of a case", nodes(`"a": {"kind": "branch", "cases": [{"if": "true", "next": "b"}], "else": "end"}`), `workflows/w/nodes/a/cases/0/next | c:6:58: there is no node "b"`},
		{"unknown else", nodes(`"a": {"kind": "branch", "cases": [{"if": "true", "next": "end"}], "else": "b"}`), `workflows/w/nodes/a/else | c:6:75: there is no node "b"`},
		{"unknown late", nodes(`"a": {"kind": "await", "name": "n", "timeoutMs": 1, "late": "b", ` + toEnd + `}`), `workflows/w/nodes/a/late | c:6:61: there is no node "b"`},
		{"unknown denied", nodes(`"a": {"kind": "approval", "name": "n", "denied": "b", ` + toEnd + `}`), `workflows/w/nodes/a/denied | c:6:50: there is no node "b"`},
		{"unknown handler", nodes(`"a": {` + orders + `, ` + toEnd + `, "onError": {"next": "b"}}`), `workflows/w/nodes/a/onError/next | c:6:76: there is no node "b"`},
		{"unknown handler of the workflow", workflow(`{"start": "a", "onError": {"next": "b"}, "nodes": {"a": {"kind": "fail", "code": "c", "message": ""}}}`), `workflows/w/onError/next | c:5:36: there is no node "b"`},
		{"unknown branch", nodes(`"a": {"kind": "parallel", "branches": ["b"], ` + toEnd + `}`), `workflows/w/nodes/a/branches/0 | c:6:40: there is no node "b"`},
		{"empty branch", nodes(`"a": {"kind": "parallel", "branches": ["end"], ` + toEnd + `}`), `workflows/w/nodes/a/branches/0 | c:6:40: want a node, got "end"`},
		{"empty save", nodes(`"a": {` + orders + `, ` + toEnd + `, "save": ""}`), `workflows/w/nodes/a/save | c:6:64: is empty`},
		{"empty save of a handler", nodes(`"a": {` + orders + `, ` + toEnd + `, "onError": {` + toEnd + `, "save": ""}}`), `workflows/w/nodes/a/onError/save | c:6:91: is empty`},
		{"empty late", nodes(`"a": {"kind": "await", "name": "n", "timeoutMs": 1, "late": "", ` + toEnd + `}`), `workflows/w/nodes/a/late | c:6:61: is empty`},
		{"empty denied", nodes(`"a": {"kind": "approval", "name": "n", "denied": "", ` + toEnd + `}`), `workflows/w/nodes/a/denied | c:6:50: is empty`},
		{"reserved name", nodes(`"a": {` + orders + `, ` + toEnd + `}, "end": {` + orders + `, ` + toEnd + `}`), `workflows/w/nodes/end | c:6:64: "end" is reserved`},
		{"unknown key", nodes(`"a": {` + orders + `, ` + toEnd + `, "save": "kk"}`), `workflows/w/nodes/a/save | c:6:64: the state has no key "kk"; did you mean "k"?`},
		{"unknown key of a handler", nodes(`"a": {` + orders + `, ` + toEnd + `, "onError": {` + toEnd + `, "save": "x"}}`), `workflows/w/nodes/a/onError/save | c:6:91: the state has no key "x"`},
		{"unknown key of a set", nodes(`"a": {"kind": "set", "values": {"x": 1}, ` + toEnd + `}`), `workflows/w/nodes/a/values/x | c:6:38: the state has no key "x"`},
		{"a set that sets nothing", nodes(`"a": {"kind": "set", "values": {}, ` + toEnd + `}`), `workflows/w/nodes/a/values | c:6:32: is empty; name a key`},

		// Paths.
		{"unreachable", nodes(`"a": {` + orders + `, ` + toEnd + `}, "b": {` + orders + `, ` + toEnd + `}`), `workflows/w/nodes/b | c:6:62: no path leads to this node`},
		{"no end", nodes(`"a": {` + orders + `, "next": "b"}, "b": {` + orders + `, "next": "a"}`), `workflows/w/nodes/a | c:6:6: no path from this node leads to "end"`},
		{"a part without an end", nodes(`"a": {"kind": "branch", "cases": [{"if": "true", "next": "b"}], "else": "end"}, "b": {` + orders + `, "next": "c"}, "c": {` + orders + `, "next": "b"}`), `workflows/w/nodes/b | c:6:86: no path from this node leads to "end"`},
		{"a branch without an end", nodes(parallel(`"b": {` + orders + `, "next": "d"}, "d": {` + orders + `, "next": "b"}, "c": {` + orders + `, ` + toEnd + `}`)), `workflows/w/nodes/b | c:7:6: no path from this node leads to "end"`},
		{"out of a branch", nodes(`"a": {"kind": "parallel", "branches": ["b"], "next": "c"}, "b": {` + orders + `, "next": "c"}, "c": {` + orders + `, ` + toEnd + `}`), `workflows/w/nodes/b/next | c:6:108: leads from branch 0 of "a" to "c", which is outside of it; a path stays in its branch`},
		{"a shared node", nodes(`"a": {"kind": "parallel", "branches": ["b", "c"], ` + toEnd + `}, "b": {` + orders + `, "next": "c"}, "c": {` + orders + `, ` + toEnd + `}`), `workflows/w/nodes/a/branches/1 | c:6:45: leads from branch 1 of "a" to "c", which is in branch 0 of "a"`},
		{"twice the same branch", nodes(`"a": {"kind": "parallel", "branches": ["b", "b"], ` + toEnd + `}, "b": {` + orders + `, ` + toEnd + `}`), `workflows/w/nodes/a/branches/1 | c:6:45: leads from branch 1 of "a" to "b", which is in branch 0 of "a"`},
		{"a parallel in itself", nodes(`"a": {"kind": "parallel", "branches": ["a"], ` + toEnd + `}`), `workflows/w/nodes/a/branches/0 | c:6:40: leads from branch 0 of "a" to "a", which is outside of it`},
		{"a handler across", nodes(`"a": {"kind": "parallel", "branches": ["b", "c"], ` + toEnd + `}, "b": {` + orders + `, ` + toEnd + `}, "c": {` + orders + `, ` + toEnd + `, "onError": {"next": "b"}}`), `workflows/w/nodes/c/onError/next | c:6:198: leads from branch 1 of "a" to "b", which is in branch 0 of "a"`},
		{"the workflow's handler in a branch", workflow(`{"start": "a", "onError": {"next": "b"}, "nodes": {"a": {"kind": "parallel", "branches": ["b"], ` + toEnd + `}, "b": {` + orders + `, ` + toEnd + `}}}`), `workflows/w/nodes/a/branches/0 | c:5:91: leads from branch 0 of "a" to "b", which is outside of it`},
		{"too many nodes", nodes(many(`"n%": {"kind": "fail", "code": "c", "message": ""}`, 1001)), `workflows/w/nodes | c:5:71: a workflow has at most 1000 nodes`},
		{"too many names of nodes", nodes(`"a": {"kind": "branch", "cases": [` + many(`{"if": "true", "next": "end"}`, 1000) + `], "else": "end"}, ` + many(`"b%": {"kind": "branch", "cases": [`+many(`{"if": "true", "next": "end"}`, 999)+`], "else": "end"}`, 5)), `workflows/w/nodes | c:5:71: nodes name other nodes more than 5000 times`},
		{"too deep", nodes(`"a": {"kind": "parallel", "branches": ["n0"], ` + toEnd + `}, ` + many(`"n%": {"kind": "parallel", "branches": ["n+"], `+toEnd+`}`, 16) + `, "n16": {` + orders + `, ` + toEnd + `}`), `workflows/w/nodes/n15 | c:6:1026: is inside 16 others of its kind`},

		// The node of a map.
		{"a branch in a map", nodes(`"a": {"kind": "map", "over": "${ [1] }", "do": {"kind": "branch"}, ` + toEnd + `}`), `workflows/w/nodes/a/do/kind | c:6:57: want tool, agent, workflow, set, sleep, await or approval, got "branch"`},
		{"a node in a map leads nowhere", nodes(`"a": {"kind": "map", "over": "${ [1] }", "do": {` + orders + `, "next": "end"}, ` + toEnd + `}`), `workflows/w/nodes/a/do/next | c:6:83: has no place in the node of a map`},
		{"a node in a map saves nothing", nodes(`"a": {"kind": "map", "over": "${ [1] }", "do": {` + orders + `, "save": "k"}, ` + toEnd + `}`), `workflows/w/nodes/a/do/save | c:6:83: has no place in the node of a map`},
		{"a node in a map handles nothing", nodes(`"a": {"kind": "map", "over": "${ [1] }", "do": {` + orders + `, "onError": {}}, ` + toEnd + `}`), `workflows/w/nodes/a/do/onError | c:6:83: has no place in the node of a map`},
		{"over what is no list", nodes(`"a": {"kind": "map", "over": {"a": 1}, "do": {` + orders + `}, ` + toEnd + `}`), `workflows/w/nodes/a/over | c:6:30: got an object, want a list`},
		{"over a text", nodes(`"a": {"kind": "map", "over": "state.l", "do": {` + orders + `}, ` + toEnd + `}`), `workflows/w/nodes/a/over | c:6:30: got a text, want a list, or a text that is one ${ expression } and nothing else`},
		{"over too much", nodes(`"a": {"kind": "map", "over": [` + many("%", 10_001) + `], "do": {` + orders + `}, ` + toEnd + `}`), `workflows/w/nodes/a/over | c:6:30: a map has at most 10000 elements`},
		{"concurrency", nodes(`"a": {"kind": "map", "over": [], "concurrency": 257, "do": {` + orders + `}, ` + toEnd + `}`), `workflows/w/nodes/a/concurrency | c:6:49: want a number from 1 to 256`},
		{"bad expression in a map", nodes(`"a": {"kind": "map", "over": [], "do": {` + orders + `, "args": {"x": "${ itm }"}}, ` + toEnd + `}`), `workflows/w/nodes/a/do/args/x | c:6:93: `},

		// Expressions.
		{"unknown variable", nodes(`"a": {` + orders + `, "args": {"x": ["${ inpt.a }"]}, ` + toEnd + `}`), `workflows/w/nodes/a/args/x/0 | c:6:60: `},
		{"place after escapes", nodes(`"a": {` + orders + `, "args": "\u00e9\n😀\ud83d\ude00\"${ inpt }", ` + toEnd + `}`), `workflows/w/nodes/a/args | c:6:76: `},
		{"place in lines", nodes(`"a": {` + orders + `, "args": {"x": "${ 1 +` + `\n` + `inpt }"}, ` + toEnd + `}`), `workflows/w/nodes/a/args/x | c:6:64: `},
		{"unknown key of the state", nodes(`"a": {"kind": "branch", "cases": [{"if": "state.kk == 1", ` + toEnd + `}], "else": "end"}`), `workflows/w/nodes/a/cases/0/if | c:6:49: `},
		{"no bool", nodes(`"a": {"kind": "branch", "cases": [{"if": "1 + 1", ` + toEnd + `}], "else": "end"}`), `workflows/w/nodes/a/cases/0/if | c:6:43: `},
		{"item outside of a map", nodes(`"a": {` + orders + `, "args": {"x": "${ item }"}, ` + toEnd + `}`), `workflows/w/nodes/a/args/x | c:6:59: `},
		{"index over a map", nodes(`"a": {"kind": "map", "over": "${ [index] }", "do": {` + orders + `}, ` + toEnd + `}`), `workflows/w/nodes/a/over | c:6:35: `},
		{"event", nodes(`"a": {` + orders + `, "args": {"x": "${ event }"}, ` + toEnd + `}`), `workflows/w/nodes/a/args/x | c:6:59: `},
		{"unknown field of error", nodes(`"a": {` + orders + `, "args": {"x": "${ error.cod }"}, ` + toEnd + `}`), `workflows/w/nodes/a/args/x | c:6:6`},
		{"bad output", workflow(`{"start": "a", "output": {"x": "${ 1 + }"}, "nodes": {"a": {` + orders + `, ` + toEnd + `}}}`), `workflows/w/output/x | c:5:`},
		{"bad message", nodes(`"a": {"kind": "fail", "code": "c", "message": "${ x }"}`), `workflows/w/nodes/a/message | c:6:51: `},
		{"arguments that are no object", nodes(`"a": {` + orders + `, "args": [], ` + toEnd + `}`), `workflows/w/nodes/a/args | c:6:49: got a list, want an object`},
		{"arguments that are a text", nodes(`"a": {` + orders + `, "args": "x", ` + toEnd + `}`), `workflows/w/nodes/a/args | c:6:49: got a text, want an object, or a text that is one ${ expression } and nothing else`},
		{"arguments that are a text with an expression in it", nodes(`"a": {` + orders + `, "args": "${ input } ", ` + toEnd + `}`), `workflows/w/nodes/a/args | c:6:49: got a text, want an object`},
		{"over a text with an expression in it", nodes(`"a": {"kind": "map", "over": "x ${ state.l }", "do": {` + orders + `}, ` + toEnd + `}`), `workflows/w/nodes/a/over | c:6:30: got a text, want a list`},
		{"a number beyond doubles", nodes(`"a": {` + orders + `, "args": {"x": 1e999}, ` + toEnd + `}`), `workflows/w/nodes/a/args | c:6:49: `},
		{"a session by its name", nodes(`"a": {"kind": "agent", "agent": "writer", "session": "thraed", ` + toEnd + `}`), `workflows/w/nodes/a/session | c:6:54: want none, thread, or a template`},
		{"bad session", nodes(`"a": {"kind": "agent", "agent": "writer", "session": "x-${ x }", ` + toEnd + `}`), `workflows/w/nodes/a/session | c:6:60: `},

		// The state.
		{"an initial template", workflow(`{"state": {"k": {"initial": "${ input }"}}, "start": "a", "nodes": {"a": {` + orders + `, ` + toEnd + `}}}`), `workflows/w/state/k/initial | c:5:`},
		{"an initial template without names", workflow(`{"state": {"k": {"initial": "${ 1 }"}}, "start": "a", "nodes": {"a": {` + orders + `, ` + toEnd + `}}}`), `workflows/w/state/k/initial | c:5:29: an initial value is no template`},
		{"an initial value that cannot be merged", workflow(`{"state": {"k": {"merge": "sum", "initial": []}}, "start": "a", "nodes": {"a": {` + orders + `, ` + toEnd + `}}}`), `workflows/w/state/k/initial | c:5:45: got a list, want a number: the key merges with sum`},
		{"an initial value that is not comparable", workflow(`{"state": {"k": {"merge": "max", "initial": {}}}, "start": "a", "nodes": {"a": {` + orders + `, ` + toEnd + `}}}`), `workflows/w/state/k/initial | c:5:45: got an object, want null, a number or a text: the key merges with max`},
		{"initial values that are too large", workflow(`{"maxStateBytes": 11, "state": {"a": {"initial": "123456"}, "b": {}, "c": {}}, "start": "a", "nodes": {"a": {` + orders + `, ` + toEnd + `}}}`), `workflows/w/state/b | c:5:66: with this key, a run begins with 12 bytes of state; maxStateBytes is 11`},
		{"two branches write", nodes(parallel(`"b": {` + orders + `, "save": "k", ` + toEnd + `}, "c": {` + orders + `, "save": "k", ` + toEnd + `}`)), `workflows/w/nodes/b/save | c:7:49: "c" writes the key "k" at the same time`},
		{"two branches write, by a handler", nodes(parallel(`"b": {` + orders + `, "onError": {"save": "k", ` + toEnd + `}, ` + toEnd + `}, "c": {"kind": "set", "values": {"k": 1}, ` + toEnd + `}`)), `workflows/w/nodes/b/onError/save | c:7:61: "c" writes the key "k" at the same time`},
		{"one branch reads what another writes", nodes(parallel(`"b": {` + orders + `, "args": {"x": "${ state.l }"}, ` + toEnd + `}, "c": {` + orders + `, "save": "l", ` + toEnd + `}`)), `workflows/w/nodes/b/args | c:7:49: reads the key "l", which "c" writes in another branch`},
		{"one branch reads everything", nodes(parallel(`"b": {"kind": "branch", "cases": [{"if": "size(state) > 1", ` + toEnd + `}], "else": "end"}, "c": {` + orders + `, "save": "l", ` + toEnd + `}`)), `workflows/w/nodes/b/cases/0/if | c:7:42: reads the key "l", which "c" writes in another branch`},
		{"one branch reads, deep below", nodes(parallel(`"b": {"kind": "parallel", "branches": ["d"], ` + toEnd + `}, "c": {` + orders + `, "save": "l", ` + toEnd + `}, "d": {` + orders + `, "args": {"x": "${ state.l }"}, ` + toEnd + `}`)), `workflows/w/nodes/d/args | c:7:`},
		{"elements write", nodes(`"a": {"kind": "map", "over": [], "do": {"kind": "set", "values": {"k": 1}}, ` + toEnd + `}`), `workflows/w/nodes/a/do/values/k | c:6:72: elements of the map write the key "k" at the same time`},
		{"an element reads what others write", nodes(`"a": {"kind": "map", "over": [], "do": {"kind": "set", "values": {"l": "${ state.l }"}}, ` + toEnd + `}`), `workflows/w/nodes/a/do/values/l | c:6:72: an element reads the key "l" while others write it`},

		// Waits.
		{"two waits at one time", nodes(parallel(`"b": {"kind": "await", "name": "n", ` + toEnd + `}, "c": {"kind": "approval", "name": "n", ` + toEnd + `}`)), `workflows/w/nodes/c/name | c:7:87: "b" waits under the name "n" at the same time`},
		{"two waits of maps", nodes(parallel(`"b": {"kind": "map", "over": [1], "do": {"kind": "await", "name": "n"}, ` + toEnd + `}, "c": {"kind": "map", "over": [1], "do": {"kind": "await", "name": "n"}, ` + toEnd + `}`)), `workflows/w/nodes/c/do/name | c:7:`},
		{"late without a time", nodes(`"a": {"kind": "await", "name": "n", "late": "end", ` + toEnd + `}`), `workflows/w/nodes/a/late | c:6:45: late needs timeoutMs`},
		{"no name", nodes(`"a": {"kind": "await", ` + toEnd + `}`), `workflows/w/nodes/a/name | c:6:6: "name" is missing`},
		{"terms that nobody can meet", strings.Replace(nodes(`"a": {"kind": "approval", "name": "n", "terms": {"approvers": 2}, `+toEnd+`}`), `"pepperRef": "env:X"`, `"kind": "none"`, 1), `workflows/w/nodes/a/terms | c:6:49: with auth.kind none`},
		{"terms that nobody can meet, in a map", strings.Replace(nodes(`"a": {"kind": "map", "over": [], "do": {"kind": "approval", "name": "n", "terms": {"requireDifferentPrincipal": true}}, `+toEnd+`}`), `"pepperRef": "env:X"`, `"kind": "none"`, 1), `workflows/w/nodes/a/do/terms | c:6:83: with auth.kind none`},
		{"a sleep without a time", nodes(`"a": {"kind": "sleep", ` + toEnd + `}`), `workflows/w/nodes/a | c:6:6: a sleep has either forMs or until`},
		{"a sleep with two times", nodes(`"a": {"kind": "sleep", "forMs": 1, "until": 1, ` + toEnd + `}`), `workflows/w/nodes/a | c:6:6: a sleep has either forMs or until`},
		{"a sleep of no time", nodes(`"a": {"kind": "sleep", "forMs": -1, ` + toEnd + `}`), `workflows/w/nodes/a/forMs | c:6:33: want milliseconds from 0 to 253402300799999`},
		{"a sleep without an end", nodes(`"a": {"kind": "sleep", "forMs": 253402300800000, ` + toEnd + `}`), `workflows/w/nodes/a/forMs | c:6:33: want milliseconds from 0 to 253402300799999`},
		{"a sleep of parts of milliseconds", nodes(`"a": {"kind": "sleep", "forMs": 1.5, ` + toEnd + `}`), `workflows/w/nodes/a/forMs | c:6:33: want milliseconds from 0 to 253402300799999`},
		{"a sleep of a text with an expression in it", nodes(`"a": {"kind": "sleep", "forMs": "${ input.n }ms", ` + toEnd + `}`), `workflows/w/nodes/a/forMs | c:6:33: got a text, want a number`},
		{"a sleep until a time beyond all", nodes(`"a": {"kind": "sleep", "until": 253402300800000, ` + toEnd + `}`), `workflows/w/nodes/a/until | c:6:33: want a time before the year 10000`},
		{"a sleep of a word", nodes(`"a": {"kind": "sleep", "forMs": "1h", ` + toEnd + `}`), `workflows/w/nodes/a/forMs | c:6:33: got a text, want a number`},
		{"a time without an offset", nodes(`"a": {"kind": "sleep", "until": "2027-01-01T00:00:00", ` + toEnd + `}`), `workflows/w/nodes/a/until | c:6:33: want a time before the year 10000 such as`},

		// Schemas.
		{"bad schema of the input", workflow(`{"input": {"properties": {"a": {"type": "txt"}}}, "start": "a", "nodes": {"a": {` + orders + `, ` + toEnd + `}}}`), `workflows/w/input/properties/a/type | c:5:41: `},
		{"bad schema of an answer", nodes(`"a": {"kind": "await", "name": "n", "schema": {"items": 1}, ` + toEnd + `}`), `workflows/w/nodes/a/schema/items | c:6:57: `},
		{"a schema that is none", nodes(`"a": {"kind": "await", "name": "n", "schema": true, ` + toEnd + `}`), `workflows/w/nodes/a/schema | c:6:47: want an object, got true or false`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(tt.text)
			got := problems(t, err)
			if len(got) == 0 || !strings.Contains(got[0], tt.want) {
				t.Errorf("Parse(...) = %q, want a problem %q, of\n%.900s", got, tt.want, tt.text[strings.Index(tt.text, "\"w\":"):])
			}
		})
	}
}

// many repeats a text with commas between, % being the number, and + the next one.
func many(text string, n int) string {
	var all []string
	for i := range n {
		all = append(all, strings.NewReplacer("%", strconv.Itoa(i), "n+", "n"+strconv.Itoa(i+1)).Replace(text))
	}
	return strings.Join(all, ", ")
}

// parallel is a node a with the branches b and c.
func parallel(rest string) string {
	return `"a": {"kind": "parallel", "branches": ["b", "c"], ` + toEnd + "},\n" + rest
}

// What a workflow may do, and checks could take for a mistake.
func TestWorkflowsAreSound(t *testing.T) {
	for name, text := range map[string]string{
		"loop":                    nodes(`"a": {` + orders + `, "next": "b"}, "b": {"kind": "branch", "cases": [{"if": "state.k == null", "next": "a"}], "else": "end"}`),
		"built-in tools":          nodes(`"a": {"kind": "tool", "tool": "clock", "next": "b"}, "b": {"kind": "tool", "tool": "calculator", "args": {"expression": "1+1"}, "next": "end"}`),
		"a state that is full":    workflow(`{"maxStateBytes": 12, "state": {"a": {"initial": "123456"}, "b": {}}, "start": "a", "nodes": {"a": {` + orders + `, ` + toEnd + `}}}`),
		"itself as a child":       nodes(`"a": {"kind": "workflow", "workflow": "w", ` + toEnd + `}`),
		"one name after another":  nodes(`"a": {"kind": "await", "name": "n", "next": "b"}, "b": {"kind": "await", "name": "n", ` + toEnd + `}`),
		"one name in one branch":  nodes(parallel(`"b": {"kind": "await", "name": "n", "next": "d"}, "d": {"kind": "await", "name": "n", ` + toEnd + `}, "c": {` + orders + `, ` + toEnd + `}`)),
		"append in two branches":  nodes(parallel(`"b": {` + orders + `, "save": "l", ` + toEnd + `}, "c": {` + orders + `, "save": "l", ` + toEnd + `}`)),
		"write and read in order": nodes(parallel(`"b": {` + orders + `, "save": "k", "next": "d"}, "d": {` + orders + `, "args": {"x": "${ state.k }"}, ` + toEnd + `}, "c": {` + orders + `, ` + toEnd + `}`)),
		"only errors end it":      nodes(`"a": {"kind": "sleep", "forMs": "${ 5 * 60 }", "next": "a", "onError": {"next": "end"}}`),
		"nothing but sleep":       nodes(`"a": {"kind": "sleep", "until": 5, ` + toEnd + `}`),
		"error anywhere":          nodes(`"a": {` + orders + `, "args": {"x": "${ default(error.code, 'none') }"}, ` + toEnd + `}`),
		"ids and the time":        nodes(`"a": {"kind": "agent", "agent": "writer", "session": "s-${ thread }", "input": "${ run } ${ default(session, 'none') } ${ now } ${ input.x.y }", ` + toEnd + `}`),
		"braces":                  nodes(`"a": {` + orders + `, "args": {"x": "$${ x } ${ {'a': '}'}.a }"}, ` + toEnd + `}`),
		"map":                     nodes(`"a": {"kind": "map", "over": "${ state.l }", "do": {` + orders + `, "args": {"x": "${ item.id + index }"}, "retry": {}, "timeoutMs": 5}, "save": "l", ` + toEnd + `}`),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parse(text)
			if err != nil {
				t.Fatalf("Parse(%s) = %v", text, problems(t, err))
			}
			again, err := config.Parse(c.Print(), config.Options{Name: "c", Dir: "/etc/agentd", Files: files})
			if err != nil {
				t.Fatalf("Parse(Print()) = %v, from\n%s", problems(t, err), c.Print())
			}
			g, _ := c.Graph("w")
			h, _ := again.Graph("w")
			if string(g.Source) != string(h.Source) {
				t.Errorf("the source of the printed workflow is\n%s\nwant\n%s", h.Source, g.Source)
			}
		})
	}
}

// The examples of the manual are configurations without problems.
func TestManualExamples(t *testing.T) {
	for name, want := range map[string]int{"workflows": 2, "triggers": 1} {
		page, err := os.ReadFile("../manual/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		examples := regexp.MustCompile("(?s)```\n(\\{\n.*?\n\\})\n```").FindAllStringSubmatch(string(page), -1)
		for _, example := range examples {
			if c, err := parse(example[1]); err != nil || len(c.Workflows) == 0 {
				t.Errorf("Parse(%s) = %q, want a workflow and no problems", example[1], problems(t, err))
			}
		}
		if len(examples) < want {
			t.Errorf("the page on %s has %d examples, want all of them", name, len(examples))
		}
	}
}
