package fault

// Kinds that answer a request about a workflow or one of its threads.
var (
	ThreadNotFound = declare("thread-not-found", 404,
		"The workflow has no thread with this id.",
		"List the threads with `GET /workflows/{id}/threads`.")
	PauseNotFound = declare("pause-not-found", 404,
		"No wait of the workflow can have this name.",
		"Use a name that `GET /workflows/{id}/state` shows among `pendingPauses`, or one that an `await` of the workflow declares.")
	AwaitPayloadInvalid = declare("awakeable-payload-invalid", 400,
		"The answer does not match the schema of its `await`. The thread still waits.",
		"Correct the value as the message says, and send it again.")

	ThreadOpen = declare("checkpoint-version-conflict", 409,
		"The thread has a run that has not ended, or another request changed the thread at the same moment.",
		"Resume or abort the run that `runId` names, wait for it, or choose another `threadId`.")
	ResumeWithoutSuspension = declare("resume-without-suspension", 409,
		"The thread does not wait for this: its run has ended, or nothing in it waits for an answer.",
		"Read `GET /workflows/{id}/state`. A failed or aborted thread continues with `POST /workflows/{id}/retry`, an ended one begins again with `/execute`.")
	ConcurrentResume = declare("concurrent-resume-rejected", 409,
		"Another request has answered the wait.",
		"Read `GET /workflows/{id}/state` before you answer again.")
	PauseAmbiguous = declare("pause-ambiguous", 409,
		"The thread waits for several answers, and the request names none of them.",
		"Send the `name` of one of the waits that `waiting` lists.")
	AnswersFull = declare("pause-answers-full", 409,
		"The thread keeps as many answers for later waits as it may.",
		"Wait until the thread has reached the waits of the earlier answers.")
	NotRetryable = declare("workflow-not-retryable", 409,
		"The thread has not failed or been aborted, or a `fail` node ended it.",
		"Read `GET /workflows/{id}/state`. Begin again with `POST /workflows/{id}/execute` once the thread has ended.")
	ThreadRunning = declare("workflow-thread-running", 409,
		"The thread is running, so agentd does not delete it.",
		"Abort its run with `POST /runs/{runId}/abort`, then delete the thread.")
	WorkflowVersionMismatch = declare("workflow-version-mismatch", 409,
		"The thread began under another `version` of the workflow.",
		"Resume with `allowVersionMismatch: true` to continue under the present definition, or restore the earlier version.")
	WorkflowDivergence = declare("workflow-divergence", 409,
		"The thread is at a node that the present definition of the workflow lacks.",
		"Restore the node, or abort the run and begin another thread.")
	ForkUnsupported = declare("workflow-fork-unsupported", 501,
		"agentd does not fork threads.",
		"Begin another thread with `POST /workflows/{id}/execute`.")
)

// Codes that a failed or aborted run of a workflow, or one of its nodes, carries in its error. A `fail` node adds its own.
var (
	WorkflowCancelTimeout = declare("workflow-cancel-timeout", 0,
		"A node did not stop in time after the run was aborted.",
		"Make the node end when its context ends, or raise `CancelGrace`.")
	WorkflowTimeout = declare("workflow-timeout", 0,
		"The run took longer than the `timeoutMs` of its workflow.",
		"Raise `timeoutMs`, then continue with `POST /workflows/{id}/retry`.")
	MaxStepsExceeded = declare("max-steps-exceeded", 0,
		"A branch took more than `maxSteps` steps between two of its waits.",
		"Raise `maxSteps`, or check why the loop does not end.")
	NodeFailed = declare("node-execution-failed", 0,
		"A node failed.",
		"Read the message, then continue with `POST /workflows/{id}/retry`.")
	NodeTimeout = declare("node-timeout", 0,
		"A node took longer than its `timeoutMs`.",
		"Raise `timeoutMs` of the node, or name a path for this in `onError` or `late`.")
	UnknownNode = declare("unknown-node", 0,
		"A node names a next node that the workflow does not have.",
		"Correct the name.")
	DeadEnd = declare("dead-end", 0,
		"No edge leads on from the nodes that have ended, and none leads to the end.",
		"Add an edge for this case.")
	ExpressionFailed = declare("expression-failed", 0,
		"An expression has no value: a key is missing, types do not fit, or it exceeds a limit.",
		"Correct the expression that the message names, or guard it with `has()` or `default()`.")
	InvalidChannelWrite = declare("invalid-channel-write", 0,
		"A node wrote to a channel that the workflow does not declare.",
		"Declare the channel, or correct its name.")
	MultiWrite = declare("multi-write-into-latest-value", 0,
		"Two tasks of one step wrote to a channel that takes one write.",
		"Use a channel that merges, such as a list, or write from one task.")
	ReducerFailed = declare("reducer-failed", 0,
		"A value cannot be merged into the state.",
		"Save a value of the type that the key's `merge` needs.")
	StateInvalid = declare("state-validation-failed", 0,
		"The workflow's check of the state refused it.",
		"Correct the values that the message names.")
	StateNotSerializable = declare("state-not-serializable", 0,
		"A value of the state is not JSON, such as NaN or infinity.",
		"Save numbers, texts, lists and objects only.")
	StateTooLarge = declare("state-too-large", 413,
		"The state is larger than `maxStateBytes`.",
		"Save less, or raise `maxStateBytes` of the workflow.")
	PauseNameTaken = declare("pause-name-taken", 0,
		"A node waits under a name under which the thread waits already.",
		"Give the two waits different names.")
	PauseReplayDivergence = declare("pause-replay-divergence", 0,
		"A node that runs again after a pause made other calls than before.",
		"Restore the node's code, or begin another thread. A node must make the same calls in the same order.")
	ApprovalDenied = declare("approval-denied", 0,
		"People denied an approval, or it expired, and the node has no `denied`.",
		"Add `denied` or `onError` to the node to handle this case.")
)
