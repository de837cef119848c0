package graph

import (
	"encoding/json"

	"agentd/server/shape"
)

// A Workflow is the declaration of a workflow, as a configuration has it. Values that are templates are json.RawMessage, and
// texts in them hold ${ expression }; see package expr.
type Workflow struct {
	Description   string              `json:"description" doc:"Description of the workflow, for people, and for models that call it as a tool."`
	Version       string              `json:"version" check:"0..128" doc:"A pin. If it has changed since a thread began, a resume fails with workflow-version-mismatch unless the caller allows the mismatch. Absent: threads finish under the definition that they began with, without asking."`
	Input         json.RawMessage     `json:"input" check:"object" doc:"JSON Schema of the input. Absent: any input."`
	State         map[string]StateKey `json:"state" check:"keys=id" doc:"Keys of the state, by name."`
	Output        json.RawMessage     `json:"output" doc:"Template of the output. Absent: the state."`
	Start         string              `json:"start" check:"required" doc:"The node that a run begins with."`
	Nodes         map[string]NodeForm `json:"nodes" check:"required keys=id" doc:"Nodes by name. No node is called end."`
	Timeout       shape.Millis        `json:"timeoutMs" check:"1.." doc:"Time limit of a run, waits included. Absent: none."`
	OnError       *HandlerForm        `json:"onError" doc:"Where a run continues after a failure that no node handled. It does so once in a run."`
	MaxSteps      int                 `json:"maxSteps" default:"200" check:"1..1000000" doc:"Number of steps that a branch may take between two of its waits."`
	KeepSteps     int                 `json:"keepSteps" default:"1000" check:"1..100000" doc:"Number of steps of a thread that agentd keeps. Older ones are folded into the state."`
	MaxStateBytes int                 `json:"maxStateBytes" default:"4194304" check:"1..67108864" doc:"Largest state, in bytes of JSON."`
}

// A StateKey declares one key of the state.
type StateKey struct {
	Initial json.RawMessage `json:"initial" doc:"Value that the key starts with. Absent: [] for append and union, 0 for sum, {} for shallow, null for the others."`
	Merge   string          `json:"merge" default:"replace" enum:"replace|append|sum|max|min|union|shallow" doc:"How a value that a node saves is merged into the old one."`
}

// A NodeForm is one node. Kind says which fields mean something; the others are zero.
type NodeForm struct {
	Kind string `json:"kind" check:"required" enum:"tool|agent|workflow|set|branch|parallel|map|sleep|await|approval|fail" doc:"What the node does."`
	Work
	Next    string       `json:"next" for:"tool|agent|workflow|set|parallel|map|sleep|await|approval" check:"required" doc:"The node that follows, or end."`
	Save    string       `json:"save" for:"tool|agent|workflow|map|await|approval" check:"1.." doc:"Key of the state that the node's value is merged into. Absent: the value is dropped."`
	OnError *HandlerForm `json:"onError" for:"tool|agent|workflow|set|parallel|map|sleep|await|approval" doc:"Where to continue after a failure."`

	Cases []CaseForm `json:"cases" for:"branch" check:"required 1..1000" doc:"Conditions in order. The first that is true decides."`
	Else  string     `json:"else" for:"branch" check:"required" doc:"The node that follows if no condition is true, or end."`

	Branches []string `json:"branches" for:"parallel" check:"required 1..256" doc:"First node of each branch. A branch ends where its path reaches end. A node is in one branch only, and no path leads out."`

	Over        json.RawMessage `json:"over" for:"map" check:"required" doc:"Template of the list, at most 10000 elements. It is evaluated once."`
	Do          *ElementForm    `json:"do" for:"map" check:"required" doc:"The node that runs for each element, without next, save, onError, late and denied."`
	Concurrency int             `json:"concurrency" for:"map" default:"8" check:"1..256" doc:"Elements that may be in work at once. Those that wait count."`
	Failures    string          `json:"failures" for:"map" default:"stop" enum:"stop|collect" doc:"stop: the first failure ends the map. collect: the map ends when all elements have, and its value has {ok, value} or {ok, error} for each."`

	Late   string `json:"late" for:"await" check:"1.." doc:"The node that follows if nobody answered in time, or end. Absent: the node fails with node-timeout."`
	Denied string `json:"denied" for:"approval" check:"1.." doc:"The node that follows if the approval was denied or has expired, or end. Absent: the node fails with approval-denied."`

	Code    string          `json:"code" for:"fail" check:"required code" doc:"Code of the error."`
	Message json.RawMessage `json:"message" for:"fail" check:"required" doc:"Template of the error's message."`
}

// An ElementForm is the node of a map. It has no place among the other nodes, so it names none.
type ElementForm struct {
	Kind string `json:"kind" check:"required" enum:"tool|agent|workflow|set|sleep|await|approval" doc:"What is done for an element."`
	Work
}

// Work is what a node does, as far as it leads to no other node.
type Work struct {
	Tool string          `json:"tool" for:"tool" check:"required" doc:"Name of the tool."`
	Args json.RawMessage `json:"args" for:"tool" doc:"Template of the arguments. Absent: {}."`

	Agent    string          `json:"agent" for:"agent" check:"required" doc:"Id of the agent."`
	Workflow string          `json:"workflow" for:"workflow" check:"required" doc:"Id of the workflow that runs as a child."`
	Input    json.RawMessage `json:"input" for:"agent|workflow" doc:"Template of the input. Absent: an empty text for an agent, {} for a workflow."`
	Session  string          `json:"session" for:"agent" default:"none" doc:"Session that the agent's run takes a turn in: none, thread for one that belongs to the thread, or a template of its id."`

	Values map[string]json.RawMessage `json:"values" for:"set" check:"required" doc:"Templates by the key of the state that their value is merged into."`

	For   json.RawMessage `json:"forMs" for:"sleep" doc:"Template of the time to sleep, in milliseconds. One of forMs and until is required."`
	Until json.RawMessage `json:"until" for:"sleep" doc:"Template of the time to sleep until: RFC 3339 with an offset, or milliseconds since 1970. A time in the past continues at once."`

	Name   string          `json:"name" for:"await|approval" check:"required id" doc:"Name of the wait, which answers give. Waits that stand at one time have different names."`
	Schema json.RawMessage `json:"schema" for:"await" check:"object" doc:"JSON Schema of the answer. Absent: any answer."`
	Show   json.RawMessage `json:"show" for:"approval" doc:"Template of what the people who decide are shown."`
	Terms  Terms           `json:"terms" for:"approval" doc:"Conditions for granting."`

	Timeout shape.Millis `json:"timeoutMs" for:"tool|agent|workflow|set|parallel|map|sleep|await|approval" check:"1.." doc:"Time limit: of one attempt of a tool, of the whole node otherwise, waits included. Absent: none."`
	Retry   *RetryForm   `json:"retry" for:"tool|agent|workflow" doc:"Further attempts after a failure. Absent: none."`
}

// A CaseForm is one condition of a branch.
type CaseForm struct {
	If   string `json:"if" check:"required" doc:"An expression that is true or false."`
	Next string `json:"next" check:"required" doc:"The node that follows if it is true, or end."`
}

// A HandlerForm says where to continue after a failure.
type HandlerForm struct {
	Next string   `json:"next" check:"required" doc:"The node that follows, or end."`
	Save string   `json:"save" check:"1.." doc:"Key of the state that {code, message, node} is merged into."`
	On   []string `json:"on" check:"1.. code" doc:"Codes of the errors that are handled. Absent: all."`
}

// A RetryForm says how often a failed node is tried.
type RetryForm struct {
	MaxAttempts int          `json:"maxAttempts" default:"3" check:"1..1000" doc:"Attempts in all."`
	Backoff     shape.Millis `json:"backoffMs" default:"250" check:"0..86400000" doc:"Longest wait before the second attempt. It doubles with each attempt; the wait itself is a random part of it."`
	MaxBackoff  shape.Millis `json:"maxBackoffMs" default:"60000" check:"0..86400000" doc:"Limit of the doubling."`
	On          []string     `json:"on" check:"1.. code" doc:"Codes of the errors after which agentd tries again. Absent: known failures except invalid input, denials and expression-failed."`
}

// Terms are what an approval takes, of a node or of a tool call.
type Terms struct {
	Expires                   shape.Millis `json:"expiresMs" check:"1000.." doc:"Time after which agentd denies what nobody has decided. Absent: never."`
	Approvers                 int          `json:"approvers" default:"1" check:"1..10" doc:"How many different principals must grant. One is enough to deny."`
	RequireDifferentPrincipal bool         `json:"requireDifferentPrincipal" default:"false" doc:"The principal that started the run may not grant."`
}
