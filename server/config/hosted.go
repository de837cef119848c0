package config

import (
	"encoding/json"

	"agentd/server/graph"
)

// Provider is a model provider. Kind says which fields mean something; the others are zero.
type Provider struct {
	Kind        string           `json:"kind" check:"required" enum:"openai-compatible|scripted" doc:"openai-compatible: a server with /chat/completions; scripted: turns read from a file."`
	BaseURL     string           `json:"baseUrl" for:"openai-compatible" check:"required baseurl" doc:"Address before /chat/completions, such as http://127.0.0.1:8000/v1."`
	APIKeyRef   Ref              `json:"apiKeyRef" for:"openai-compatible" check:"ref" doc:"The bearer key. Absent: no key is sent."`
	Headers     map[string]Value `json:"headers" for:"openai-compatible" check:"keys=token" doc:"Further headers."`
	Timeout     Millis           `json:"timeoutMs" for:"openai-compatible" default:"120000" check:"1.." doc:"Longest wait for the headers of an answer."`
	IdleTimeout Millis           `json:"idleTimeoutMs" for:"openai-compatible" default:"60000" check:"1.." doc:"Longest pause within an answer."`
	Stream      bool             `json:"stream" for:"openai-compatible" default:"true" doc:"Request answers in pieces. false is for a server that cannot stream tool calls: it sends each answer whole, within timeoutMs."`
	Retries     int              `json:"retries" for:"openai-compatible" default:"3" check:"0..10" doc:"Further attempts after a temporary failure."`
	Script      Script           `json:"script" for:"scripted" check:"required" doc:"The file of turns, at most 4 MiB of JSON."`
	Prices      map[string]Price `json:"prices" check:"keys=nonempty" doc:"Prices by model."`
}

// Price is in US dollars per million tokens.
type Price struct {
	Input      float64  `json:"inputPerMTok" check:"required 0.." doc:"US dollars per million input tokens."`
	Output     float64  `json:"outputPerMTok" check:"required 0.." doc:"US dollars per million output tokens."`
	CachedRead *float64 `json:"cachedReadPerMTok" check:"0.." doc:"Price of input read from a cache. Absent: the input price."`
	CacheWrite *float64 `json:"cacheWritePerMTok" check:"0.." doc:"Price of input written to a cache. Absent: the input price."`
	Reasoning  *float64 `json:"reasoningPerMTok" check:"0.." doc:"Price of reasoning. Absent: the output price."`
}

// Tool is something that models can call. Kind says which fields mean something; the others are zero.
type Tool struct {
	Kind             string          `json:"kind" check:"required" enum:"http|exec" doc:"http: a request; exec: a program that reads the arguments as JSON on stdin."`
	Description      Text            `json:"description" check:"required" doc:"Description of the tool, for the model."`
	Input            json.RawMessage `json:"input" default:"{\"type\":\"object\",\"properties\":{}}" check:"object" doc:"JSON Schema of the arguments."`
	SideEffect       string          `json:"sideEffect" default:"side-effecting" enum:"pure|read-only|side-effecting|external-stateful" doc:"What a call changes outside of agentd."`
	Approval         Approval        `json:"approval" doc:"Whether a person must grant a call: always, never, or {when: {arg: glob}} for calls whose arguments match all globs. With edit: true in an object, beside when or always: true, a grant may change the arguments. Absent: never for pure and read-only tools; always for other tools, unless the agent's permissions allow the call."`
	ApprovalTerms    ApprovalTerms   `json:"approvalTerms" doc:"Conditions for granting a call."`
	OnUnknownOutcome string          `json:"onUnknownOutcome" default:"ask" enum:"ask|error|retry" doc:"What to do if nobody knows whether a call took effect, after a crash, a timeout or a broken answer: ask a person, report an error to the model, or retry (idempotent tools only)."`
	Idempotent       bool            `json:"idempotent" default:"false" doc:"A second call with the same call id has no further effect."`
	Timeout          Millis          `json:"timeoutMs" default:"60000" check:"1.." doc:"Time limit of a call."`
	MaxResultTokens  int             `json:"maxResultTokens" default:"16384" check:"0.." doc:"Longest result that the model receives, in tokens. 0: no limit."`
	Truncation       string          `json:"truncation" default:"middle" enum:"middle|tail|spill" doc:"What happens to a longer result: agentd removes its middle, keeps only its end, or stores it beside the transcript."`
	Limits           Limits          `json:"limits" doc:"Limits of the tool's calls in all runs, of agents and workflows. Calls over a limit wait before they begin, at most 4096 of a tool, and 3072 of one principal; further calls fail as rate_limited."`
	ExecutionMode    string          `json:"executionMode" default:"parallel" enum:"parallel|sequential" doc:"Whether a call may run in parallel with other calls of the same step."`

	Method     string           `json:"method" for:"http" default:"GET" enum:"GET|HEAD|POST|PUT|PATCH|DELETE" doc:"Request method."`
	URL        string           `json:"url" for:"http" check:"required urltemplate" doc:"Address. {name} in its path or query stands for an argument."`
	Headers    map[string]Value `json:"headers" for:"http" check:"keys=token" doc:"Further headers."`
	Body       json.RawMessage  `json:"body" for:"http" check:"object" doc:"Template of the JSON body. {name} inside a text stands for an argument."`
	MaxBytes   int              `json:"maxBytes" for:"http" default:"1048576" check:"1..1073741824" doc:"Longest answer, in bytes."`
	AllowHosts []string         `json:"allowHosts" for:"http" default:"" check:"hostport" doc:"Further hosts, or host:port, that agentd follows redirects to."`

	Command        []string         `json:"command" for:"exec" check:"required 1.. program" doc:"Program and arguments. A program with a slash is relative to the folder of this file. A bare name is looked up in PATH at each call."`
	Cwd            string           `json:"cwd" for:"exec" default:"." check:"1.." doc:"Working folder, relative to the folder of this file."`
	Env            map[string]Value `json:"env" for:"exec" check:"keys=variable" doc:"Environment variables of the program."`
	InheritEnv     []string         `json:"inheritEnv" for:"exec" default:"" check:"variable" doc:"Further variables that the program receives from the server's environment."`
	CleanEnv       bool             `json:"cleanEnv" for:"exec" default:"false" doc:"Do not pass PATH, HOME, LANG, TZ and TMPDIR of the server to the program."`
	MaxOutputBytes int              `json:"maxOutputBytes" for:"exec" default:"8388608" check:"1..1073741824" doc:"Longest output, in bytes. agentd drops the rest and sets bufferTruncated in the result."`
}

// EffectiveApproval is the mode of Approval or, where that leaves it open, the one that follows from SideEffect.
func (t Tool) EffectiveApproval() string {
	switch mode := t.Approval.Mode(); {
	case mode != "":
		return mode
	case t.SideEffect == "pure", t.SideEffect == "read-only":
		return "never"
	}
	return "always"
}

// Agent is something that can be run. Kind says which fields mean something; the others are zero.
type Agent struct {
	Kind          string `json:"kind" check:"required" enum:"llm|exec|http" doc:"llm: a model with tools; exec: a program; http: a server."`
	Description   Text   `json:"description" doc:"Description of the agent, for people and other agents."`
	HistoryTokens int    `json:"historyTokens" default:"8000" check:"0.." doc:"How much of the session's transcript a run receives, in tokens."`
	ForwardEvents string `json:"forwardEvents" default:"lifecycle" enum:"none|lifecycle|all" doc:"Events of a child run that the parent forwards."`
	Recovery      string `json:"recovery" for:"llm|exec" default:"resume" enum:"resume|fail" doc:"Whether a run continues from its last durable step after a restart of the server, or fails."`

	Provider         string          `json:"provider" for:"llm" check:"required" doc:"Id of the provider."`
	Model            string          `json:"model" for:"llm" check:"required" doc:"Name of the model."`
	Fallbacks        []Fallback      `json:"fallbacks" for:"llm" default:"" doc:"Models that take over if the model fails, in this order."`
	Instructions     Text            `json:"instructions" for:"llm" doc:"The system message."`
	Temperature      *float64        `json:"temperature" for:"llm" check:"0..2" doc:"Sampling temperature. Absent: the model's default."`
	MaxOutputTokens  int             `json:"maxOutputTokens" for:"llm" check:"1.." doc:"Longest answer, in tokens. Absent: the model's limit."`
	Tools            []string        `json:"tools" for:"llm" default:"" check:"agenttool" doc:"Tools that the agent may call: declared ones, clock, calculator, session_search and read_result, and workflows as workflow:<id>, which the model calls as workflow_<id> with the workflow's input as arguments."`
	ToolChoice       ToolChoice      `json:"toolChoice" for:"llm" default:"auto" doc:"Whether the model may, must or must not call tools, or which one it must call."`
	MaxParallelTools int             `json:"maxParallelTools" for:"llm" default:"8" check:"1..256" doc:"Calls of one step that may run at once."`
	ToolRetry        ToolRetry       `json:"toolRetry" for:"llm" doc:"Retries of tool calls that the tool refused because of a rate limit."`
	SubAgents        []string        `json:"subAgents" for:"llm" default:"" check:"id" doc:"Agents that the agent may call as tools, each as subagent_<id>."`
	Handoffs         []Handoff       `json:"handoffs" for:"llm" default:"" doc:"Agents that the agent may hand the conversation to, each as the tool transfer_to_<id>: an id, or {agent, mode}. With mode return, the default, the final answer of that agent is the result of the call. With mode transfer, it is the run's answer, and the session's next messages go to that agent until it hands the conversation back."`
	HandoffFilter    HandoffFilter   `json:"handoffFilter" for:"llm" doc:"Which part of the conversation a hand-off passes on. It never passes on the system message or reasoning."`
	Permissions      Permissions     `json:"permissions" for:"llm" doc:"Rules for the agent's tool calls. deny takes precedence over ask, and ask over allow."`
	Output           json.RawMessage `json:"output" for:"llm" check:"object null" doc:"JSON Schema of the answer. null or absent: text."`
	MaxSteps         int             `json:"maxSteps" for:"llm" default:"50" check:"1..10000" doc:"Number of steps after which a run fails."`
	Budget           Budget          `json:"budget" for:"llm" doc:"Limits of one run."`
	Record           bool            `json:"record" for:"llm" default:"false" doc:"Record runs, so that agentd replay can run them again."`

	CallerInstructions string `json:"callerInstructions" for:"llm" default:"refuse" enum:"refuse|append" doc:"Whether to refuse system and developer messages in the input of a run, or to append them to the instructions, marked as the caller's."`

	Command    []string         `json:"command" for:"exec" check:"required 1.. program" doc:"Program and arguments. A program with a slash is relative to the folder of this file. A bare name is looked up in PATH at each run."`
	Protocol   string           `json:"protocol" for:"exec" default:"text" enum:"text|jsonl" doc:"text: the input on stdin, the answer on stdout; jsonl: one JSON object per line, both ways."`
	Cwd        string           `json:"cwd" for:"exec" default:"." check:"1.." doc:"Working folder, relative to the folder of this file."`
	Env        map[string]Value `json:"env" for:"exec" check:"keys=variable" doc:"Environment variables of the program."`
	InheritEnv []string         `json:"inheritEnv" for:"exec" default:"" check:"variable" doc:"Further variables that the program receives from the server's environment."`
	CleanEnv   bool             `json:"cleanEnv" for:"exec" default:"false" doc:"Do not pass PATH, HOME, LANG, TZ and TMPDIR of the server to the program."`

	URL     string           `json:"url" for:"http" check:"required url" doc:"Address that agentd posts runs to."`
	Stream  string           `json:"stream" for:"http" enum:"sse" doc:"sse: the agent answers with an event stream. Absent: with one JSON object."`
	Headers map[string]Value `json:"headers" for:"http" check:"keys=token" doc:"Further headers."`
	HMACRef Ref              `json:"hmacRef" for:"http" check:"ref" doc:"The key that agentd signs requests with. Absent: no signature."`

	Timeout        Millis `json:"timeoutMs" for:"exec|http" default:"600000" check:"1.." doc:"Time limit of a run."`
	MaxOutputBytes int    `json:"maxOutputBytes" for:"exec|http" default:"8388608" check:"1..1073741824" doc:"Longest output of a run, in bytes."`
}

// Fallback is a model that takes over.
type Fallback struct {
	Provider string `json:"provider" check:"required" doc:"Id of the provider."`
	Model    string `json:"model" check:"required" doc:"Name of the model."`
}

// ApprovalTerms are what an approval of a tool call takes.
type ApprovalTerms = graph.Terms

// Limits are those of the calls of a tool.
type Limits struct {
	Concurrent int `json:"concurrent" check:"1.." doc:"Calls at once. Absent: no limit."`
	PerMinute  int `json:"perMinute" check:"1..100000" doc:"Calls that begin in any 60 seconds, counted since the start of the server. Absent: no limit."`
}

// HandoffFilter is what of a conversation a hand-off passes on.
type HandoffFilter struct {
	Kind           string `json:"kind" default:"last-n" enum:"last-n|full|last-user" doc:"The last n messages, all messages, or the user's last message."`
	N              int    `json:"n" default:"10" check:"1..10000" doc:"Number of messages, for last-n."`
	StripToolCalls bool   `json:"stripToolCalls" default:"false" doc:"Omit tool calls and their outcomes."`
}

// ToolRetry is how often a tool call that was refused for its rate is tried.
type ToolRetry struct {
	MaxAttempts int    `json:"maxAttempts" default:"3" check:"1..10" doc:"Attempts in all."`
	Backoff     Millis `json:"backoffMs" default:"250" check:"0..3600000" doc:"Wait before the second attempt. It doubles each time."`
}

// Permissions are patterns over tool calls: a tool, or tool:argument=glob. They can make an agent stricter than its
// tools are, or allow a call of a tool whose own approval is not always.
type Permissions struct {
	Deny  []string `json:"deny" default:"" check:"permission" doc:"Calls that agentd refuses."`
	Ask   []string `json:"ask" default:"" check:"permission" doc:"Calls that a person must grant."`
	Allow []string `json:"allow" default:"" check:"permission" doc:"Calls that need no grant."`
}

// Budget is what one run may use; zero means no limit.
type Budget struct {
	Tokens    int     `json:"tokens" check:"1.." doc:"Tokens of all model calls. Absent: no limit."`
	CostUSD   float64 `json:"costUsd" check:">0.." doc:"Cost in US dollars. Absent: no limit."`
	ToolCalls int     `json:"toolCalls" check:"1.." doc:"Number of tool calls. Absent: no limit."`
	Wall      Millis  `json:"wallMs" check:"1.." doc:"Time from start to end. Absent: no limit."`
}
