package config

import (
	"cmp"
	"encoding/json"
	"maps"
	"time"

	"agentd/server/webhook"
	"agentd/triggers"
)

// Trigger starts runs. Kind says which fields mean something; the others are zero.
type Trigger struct {
	Kind string `json:"kind" check:"required" enum:"cron|interval|idle|event" doc:"cron: at the times of a cron text; interval: once each period; idle: after a quiet period; event: when somebody emits an event."`

	Spec     string `json:"spec" for:"cron" check:"required" doc:"Cron text of five fields: minute, hour, day of month, month and day of week, which must all match; or @hourly, @daily, @weekly, @monthly or @yearly."`
	Timezone string `json:"timezone" for:"cron" default:"UTC" doc:"Time zone of the cron text, by its IANA name, such as Europe/Berlin."`
	Every    Millis `json:"everyMs" for:"interval" check:"required 1000..3153600000000" doc:"Length of the period."`
	After    Millis `json:"afterMs" for:"idle" check:"required 1000..3153600000000" doc:"How long nothing must happen: no run in progress, none started or ended, no session written. That is: in the session, else with the agent that the trigger names, else anywhere. The trigger fires once per quiet period."`
	Event    string `json:"event" for:"event" check:"required event" doc:"Name of the event."`
	If       string `json:"if" for:"event" check:"1.." doc:"An expression that is true or false: whether the trigger fires. Absent: it does."`

	Agent    string          `json:"agent" check:"1.." doc:"Id of the agent that runs. One of agent and workflow is required."`
	Workflow string          `json:"workflow" check:"1.." doc:"Id of the workflow that runs."`
	Input    json.RawMessage `json:"input" doc:"Template of the input. It may read due, trigger and now, and for kind event also event and headers. Absent: an empty text for an agent, {} for a workflow."`
	Session  string          `json:"session" check:"1.." doc:"Template of the id of the session that runs belong to. For kind idle, it has no expressions. A session of another principal requires the scope sessions:write. Absent: none."`
	User     string          `json:"user" check:"1.." doc:"Id of the user that runs are for. Absent: runs have no user memory."`
	Scopes   []string        `json:"scopes" default:"" check:"scope" doc:"What runs may do as the principal trigger:<id>. Absent: start the target."`

	Catchup       string `json:"catchupPolicy" for:"cron|interval" default:"none" enum:"none|last|all" doc:"What happens to dues that were missed while the server was stopped: none of them fires, the last one, or the newest, as many as maxCatchupRuns, in order."`
	MaxCatchup    int    `json:"maxCatchupRuns" for:"cron|interval" default:"1" check:"1..1000" doc:"How many missed dues fire at most, for catchupPolicy all."`
	CatchupWindow Millis `json:"catchupWindowMs" for:"cron|interval" check:"1.." doc:"Age from which on a missed due does not fire any more. Absent: the greater of 24 hours and two periods."`
	Jitter        Millis `json:"jitterMs" for:"cron|interval" default:"0" check:"0..86400000" doc:"Most by which a firing starts after its due. The delay is always the same for a trigger."`

	Expires       string       `json:"expiresAt" doc:"From when on the trigger does not fire any more, as 2030-01-01T00:00:00Z. Absent: never."`
	Overlap       string       `json:"overlap" enum:"skip|queue|allow" doc:"What happens while an earlier run of the trigger has not ended: the firing is skipped, waits in a queue, or starts. Absent: allow for kind event, skip for the others."`
	QueueMax      int          `json:"queueMax" check:"1..100000" doc:"How many firings may wait in the queue; more are skipped. Absent: 1000 for kind event, 1 for the others."`
	Retry         TriggerRetry `json:"retry" doc:"Further attempts to start a run. Once a run exists, there are none."`
	DisableAfter  int          `json:"disableAfterFailures" default:"0" check:"0..1000000" doc:"Number of failures in a row after which the trigger is disabled: starts that failed, and runs. 0: never."`
	Tags          []string     `json:"tags" default:"" check:"..64" doc:"Words for people to sort triggers by."`
	StartDisabled bool         `json:"disabled" default:"false" doc:"Whether the trigger is disabled when the configuration first declares it. Later, what was said with enable or disable counts."`
}

// TriggerRetry is how often a trigger tries to start a run.
type TriggerRetry struct {
	MaxAttempts int    `json:"maxAttempts" default:"1" check:"1..100" doc:"Attempts in all."`
	Backoff     Millis `json:"backoffMs" default:"1000" check:"0..86400000" doc:"Wait before the second attempt. It doubles each time."`
}

// Hook takes webhooks in: requests to POST /hooks/<name> that carry a signature instead of a token.
type Hook struct {
	Event   string   `json:"event" check:"required event" doc:"Name of the event that a request emits."`
	Verify  Verify   `json:"verify" check:"given" doc:"How the sender signs its requests."`
	Headers []string `json:"headers" default:"" check:"token ..32" doc:"Headers of the request that expressions may read as headers. Most schemes do not sign them."`
}

// Verify is a scheme of signatures.
type Verify struct {
	Scheme          string `json:"scheme" check:"required" enum:"github|hmac-sha256|standard-webhooks|stripe" doc:"The sender's scheme."`
	SecretRefs      []Ref  `json:"secretRefs" check:"required 1..8 ref" doc:"References to the secrets of which one makes the signature. With two, the sender can change from one to the other."`
	Header          string `json:"header" check:"1.." doc:"For hmac-sha256: the header with the signature."`
	Encoding        string `json:"encoding" enum:"hex|base64" doc:"For hmac-sha256: how the signature is written."`
	Prefix          string `json:"prefix" check:"1.." doc:"For hmac-sha256: what stands before the signature, such as sha256=. Absent: nothing."`
	TimestampHeader string `json:"timestampHeader" check:"1.." doc:"For hmac-sha256: the header with the time in seconds since 1970, which is signed with a point before the body. Absent: no time is signed, and old requests are not recognised."`
}

// Declaration is a trigger as its engine takes it.
func (t Trigger) Declaration() triggers.Declaration {
	d := triggers.Declaration{
		Kind: t.Kind, Spec: cmp.Or(t.Spec, t.Event), Timezone: t.Timezone, EveryMs: int64(t.Every), AfterMs: int64(t.After),
		Agent: t.Agent, Workflow: t.Workflow, Input: t.Input, Session: t.Session, If: t.If, User: t.User,
		CatchUpPolicy: t.Catchup, MaxCatchUpRuns: t.MaxCatchup, CatchUpWindowMs: int64(t.CatchupWindow), JitterMs: int64(t.Jitter),
		Overlap: t.Overlap, QueueMax: t.QueueMax, Retry: triggers.Retry{MaxAttempts: t.Retry.MaxAttempts, BackoffMs: int64(t.Retry.Backoff)},
		DisableAfter: t.DisableAfter, Scopes: t.Scopes, Tags: t.Tags, Disabled: t.StartDisabled,
	}
	if at, err := time.Parse(time.RFC3339, t.Expires); err == nil {
		d.ExpiresAt = at.UnixMilli()
	}
	return d
}

// Dues returns the first n dues of a trigger of kind cron after a time; none of another kind.
func (t Trigger) Dues(after time.Time, n int) []time.Time {
	if t.Kind != "cron" {
		return nil
	}
	text, err := triggers.Parse(t.Spec)
	zone, noZone := triggers.Zones{}.Load(t.Timezone)
	if err != nil || noZone != nil {
		return nil
	}
	return text.In(zone).Upcoming(after, n)
}

// triggers checks the triggers whose form is right.
func (k checker) triggers() {
	compiler := triggers.NewCompiler()
	for id, t := range sorted(k.Triggers) {
		if k.Full() {
			return
		}
		if k.Wrong("triggers", id) {
			continue
		}
		at := func(path ...any) []any { return under([]any{"triggers", id}, path...) }
		if _, ok := k.Agents[t.Agent]; !ok && t.Agent != "" {
			k.unknown("agent", t.Agent, maps.Keys(k.Agents), at("agent"))
		}
		if _, ok := k.Workflows[t.Workflow]; !ok && t.Workflow != "" {
			k.unknown("workflow", t.Workflow, maps.Keys(k.Workflows), at("workflow"))
		}
		if _, err := time.Parse(time.RFC3339, t.Expires); err != nil && t.Expires != "" {
			k.Problem("want a time such as 2030-01-01T00:00:00Z", at("expiresAt")...)
		}
		for _, p := range compiler.Check(t.Declaration()) {
			if path := at(p.Path...); !k.Wrong(path...) {
				k.ProblemWithin(p.Message, p.Offset, path...)
			}
		}
	}
}

// Scheme is how the sender of a hook signs.
func (h Hook) Scheme() webhook.Scheme {
	v := h.Verify
	return webhook.Scheme{Name: v.Scheme, Header: v.Header, Encoding: v.Encoding, Prefix: v.Prefix, TimestampHeader: v.TimestampHeader}
}

// hooks checks the hooks whose form is right.
func (k checker) hooks() {
	for name, h := range sorted(k.Hooks) {
		if k.Wrong("hooks", name) {
			continue
		}
		for _, issue := range h.Scheme().Check() {
			k.Problem(issue.Message, under([]any{"hooks", name, "verify"}, issue.Path...)...)
		}
	}
}
