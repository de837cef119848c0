package event

import "slices"

// A Type is one row of the catalogue.
type Type struct {
	Name      string
	Transient bool // lives in the replay ring only; a later durable event has its content
	Child     bool // forwarded from a child run to its parent by default (policy "lifecycle")
	Answer    bool // a part of the answer: clients that may start the agent but not read it get it on the run's stream
	// Fields are the members of its payload besides "type": name:kind, where ? after the name marks those that may be
	// absent. Kinds are string (when none is given), int, number, bool, object, any, and components of the OpenAPI document.
	Fields string
	When   string
}

const (
	AgentStart         = "agent.start"
	AgentEnd           = "agent.end"
	AgentError         = "agent.error"
	AgentCancelling    = "agent.cancelling"
	AgentFellback      = "agent.model.fellback"
	StepStart          = "step.start"
	StepEnd            = "step.end"
	TextDelta          = "text.delta"
	TextComplete       = "text.complete"
	ReasoningDelta     = "reasoning.delta"
	ToolCallStart      = "tool.call.start"
	ToolCallDelta      = "tool.call.delta"
	ToolCallEnd        = "tool.call.end"
	ToolCallIncomplete = "tool.call.incomplete"
	ToolStart          = "tool.execute.start"
	ToolProgress       = "tool.execute.progress"
	ToolPartial        = "tool.execute.partial"
	ToolEnd            = "tool.execute.end"
	ToolError          = "tool.execute.error"
	ApprovalRequested  = "tool.approval.requested"
	ApprovalGranted    = "tool.approval.granted"
	ApprovalDenied     = "tool.approval.denied"
	Handoff            = "handoff"
	SubagentEvent      = "subagent.event"
	FileGenerated      = "file.generated"
	SourceCited        = "source.cited"

	WorkflowStart      = "workflow.start"
	WorkflowResumed    = "workflow.resumed"
	WorkflowStepStart  = "workflow.step.start"
	WorkflowTaskStart  = "workflow.task.start"
	WorkflowTaskEnd    = "workflow.task.end"
	WorkflowUpdate     = "workflow.channel.update"
	WorkflowCheckpoint = "workflow.checkpoint.written"
	WorkflowStepEnd    = "workflow.step.end"
	WorkflowCustom     = "workflow.custom"
	WorkflowSuspended  = "workflow.suspended"
	WorkflowCancelling = "workflow.cancelling"
	WorkflowError      = "workflow.error"
	WorkflowEnd        = "workflow.end"
)

var catalogue = []Type{
	{Name: AgentStart, Answer: true, Fields: "runId, agentId", When: "A run begins, or continues after an approval or a restart."},
	{Name: StepStart, Fields: "stepNumber:int", When: "A step begins: one model call and the tool calls that it requests."},
	{Name: TextDelta, Transient: true, Answer: true, Fields: "delta", When: "A piece of the answer's text."},
	{Name: ReasoningDelta, Transient: true, Fields: "delta", When: "A piece of the model's reasoning."},
	{Name: ToolCallStart, Fields: "toolCallId, toolName", When: "The model begins to write a tool call."},
	{Name: ToolCallDelta, Transient: true, Fields: "toolCallId, argsDelta", When: "A piece of a tool call's arguments, as raw JSON text."},
	{Name: ToolCallEnd, Fields: "toolCallId, finalArgs:any", When: "A tool call is complete."},
	{Name: ToolCallIncomplete, Fields: "toolCallId, toolName, finishReason, argsPrefix", When: "The model's answer was cut off inside a tool call."},
	{Name: TextComplete, Answer: true, Fields: "text", When: "The whole text of the step; it replaces its deltas."},
	{Name: AgentFellback, Fields: "runId, sessionId, agentId, from, to, reason, stepNumber:int, attempt:int", When: "A model failed and the next one takes over. Text that the failed model streamed is void."},
	{Name: ToolStart, Child: true, Fields: "toolCallId, toolName, childRunId?", When: "A tool call starts, or begins to wait for approval. childRunId names the run of a called agent."},
	{Name: ToolProgress, Transient: true, Child: true, Fields: "toolName, toolCallId, current:number, total?:number, message?, stepNumber:int, ts:int", When: "A tool reports its progress."},
	{Name: ToolPartial, Transient: true, Child: true, Fields: "toolName, toolCallId, chunk:object, chunkIndex:int, stepNumber:int, ts:int", When: "A piece of a tool's output."},
	{Name: ToolEnd, Child: true, Fields: "toolCallId, toolName, result:any, durationMs:int, bufferTruncated?:bool", When: "A tool call succeeded."},
	{Name: ToolError, Child: true, Fields: "toolCallId, toolName, error:CallError", When: "A tool call failed."},
	{Name: ApprovalRequested, Child: true, Fields: "toolCallId, toolName, args?:any, argsDigest, reason?, subRunToolCallId?", When: "A tool call waits for a person's decision."},
	{Name: ApprovalGranted, Child: true, Fields: "toolCallId, subRunToolCallId?, by?", When: "A person allowed a tool call."},
	{Name: ApprovalDenied, Child: true, Fields: "toolCallId, reason?, subRunToolCallId?, by?", When: "A tool call was denied, by a person or because of an abort."},
	{Name: Handoff, Fields: "fromAgentId, toAgentId", When: "The conversation goes to another agent, as a child run."},
	{Name: SubagentEvent, Child: true, Fields: "toolCallId, agentName, event:Event", When: "An event of a child run, with the parent's tool call and the child's agent. Events of grandchildren nest."},
	{Name: FileGenerated, Fields: "mimeType, data:Bytes", When: "The agent created a file."},
	{Name: SourceCited, Fields: "uri, title?", When: "The agent names a source."},
	{Name: StepEnd, Fields: "stepNumber:int, usage:Usage", When: "A step is complete."},
	{Name: AgentCancelling, Answer: true, Fields: "runId, drain:bool, onPendingApprovals", When: "Somebody requested an abort."},
	{Name: AgentError, Child: true, Answer: true, Fields: "error:RunError", When: "The run failed. agent.end follows."},
	{Name: AgentEnd, Answer: true, Fields: "runId, result:RunResult", When: "The run has ended or waits for approval. It is always the last event."},

	{Name: WorkflowStart, Fields: "runId, threadId, workflowId", When: "A run of a workflow begins."},
	{Name: WorkflowResumed, Fields: "threadId, stepNumber:int, state?:object, stateOmitted?:bool", When: "A thread that waited continues: after an answer, a decision, a timer, a retry or a restart."},
	{Name: WorkflowStepStart, Transient: true, Fields: "stepNumber:int, state?:object, stateOmitted?:bool", When: "A step begins. stateOmitted stands for a state of more than 16 KiB, and in a replay for any."},
	{Name: WorkflowTaskStart, Fields: "stepNumber:int, taskId, nodeName, attempt?:int, childRunId?", When: "A node begins. childRunId names the run of an agent or a workflow that it started. A replay shows it only where the node did not end in the same commit."},
	{Name: WorkflowTaskEnd, Fields: "stepNumber:int, taskId, nodeName, status, durationMs:int, error?:RunError", When: "A node has ended: status is completed, failed or paused."},
	{Name: WorkflowUpdate, Transient: true, Fields: "stepNumber:int, channel, version:int, value?:any", When: "A step has changed a key of the state."},
	{Name: WorkflowCheckpoint, Transient: true, Fields: "checkpointId, stepNumber:int", When: "A step is durable."},
	{Name: WorkflowStepEnd, Transient: true, Fields: "stepNumber:int, state?:object, stateOmitted?:bool", When: "A step is complete."},
	{Name: WorkflowCustom, Transient: true, Fields: "taskId, name, payload:any", When: "A node of a Go program reports something."},
	{Name: WorkflowSuspended, Fields: "runId, threadId, status, stepNumber:int, state?:object, stateOmitted?:bool, value:any, pendingApprovals?:any", When: "The run waits, and nothing in it runs: status is suspended or awaiting_approval. value is what its first wait shows."},
	{Name: WorkflowCancelling, Fields: "runId, drain:bool, onPendingApprovals", When: "Somebody requested an abort."},
	{Name: WorkflowError, Fields: "threadId, error:RunError", When: "The run failed. workflow.end follows."},
	{Name: WorkflowEnd, Fields: "runId, threadId, status, state?:object, stateOmitted?:bool, output?:any, error?:RunError, pendingApprovals?:any", When: "The run has ended: status is completed, failed or aborted. It is always the last event."},
}

var byName = func() map[string]Type {
	m := make(map[string]Type, len(catalogue))
	for _, t := range catalogue {
		m[t.Name] = t
	}
	return m
}()

// Catalogue returns every type. The caller owns the slice.
func Catalogue() []Type { return slices.Clone(catalogue) }

// Transient reports whether events of this type live in the replay ring only. A type that is not in the catalogue
// is durable.
func Transient(typ string) bool { return byName[typ].Transient }

// ForChildren reports whether a parent forwards events of this type from its children by default.
func ForChildren(typ string) bool { return byName[typ].Child }

// InAnswer reports whether clients that may start an agent and not read it get events of this type.
func InAnswer(typ string) bool { return byName[typ].Answer }
