// Package health combines named checks into one answer: ok, degraded or failing.
//
// Probes may ask often and without a token. A [Rollup] therefore runs each check at most once in an [Interval], shares its
// result with all callers in that time, and answers within [Timeout] whatever the checks do.
package health

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"agentd/server/shape"
)

// Timeout is how long a check may take. One that takes longer fails.
const Timeout = 2 * time.Second

// Interval is how long the result of a check is used.
const Interval = time.Second

// A Status is what a check found. Any other value, the zero value too, counts as [Fail].
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// A Result is what one check found.
type Result struct {
	Status  Status
	Message string       // optional; anybody may read it, so it must hold no secret
	Fields  shape.Object // JSON members beside status and message
}

// A Check looks at one part of the server. It returns soon after ctx is done, changes nothing, and is never called
// while an earlier call of it has not returned. A panic is a failure: it is logged, and the answer does not show its value.
type Check func(ctx context.Context) Result

// A Rollup is the checks of a server. Make one with [New].
type Rollup struct {
	version string
	log     *slog.Logger
	start   time.Time
	running sync.WaitGroup // checks that have not returned
	checks  []*check       // in the order of their registration

	mu sync.Mutex // guards the calls of the checks, and their results
}

type check struct {
	name string
	run  Check
	call *call // the latest; nil: none
}

// A call of a check is shared by the probes that come before it has returned, or less than an Interval after it began.
type call struct {
	ctx    context.Context // ends after Timeout, or when the check has returned
	begun  time.Time
	over   bool   // the check has returned
	result Result // late until the check has returned in time
}

var late = Result{Status: Fail, Message: "The check did not answer in time."}

// New returns a rollup without checks for a server of the given version that started at start. Checks that panic are logged.
func New(version string, start time.Time, log *slog.Logger) *Rollup {
	return &Rollup{version: version, start: start, log: log}
}

// Register adds a check, before the first Report. Its name is not taken.
func (r *Rollup) Register(name string, run Check) {
	r.checks = append(r.checks, &check{name: name, run: run})
}

// A Report is the answer to a probe.
type Report struct {
	Status        string `json:"status" enum:"ok|degraded|failing" doc:"failing when any check fails, else degraded when any warns"`
	Version       string `json:"version"`
	UptimeSeconds int64  `json:"uptimeSeconds"`
	Checks        Checks `json:"checks"`

	Failing []string `json:"-"` // the names of the checks that fail
}

// Message is what a check that failed said.
func (r *Report) Message(check string) string {
	for i := 0; i < len(r.Checks); i += 2 {
		if found, ok := r.Checks[i+1].(shape.Object); ok && r.Checks[i] == check && len(found) >= 4 && found[2] == "message" {
			message, _ := found[3].(string)
			return message
		}
	}
	return ""
}

// Checks are what the checks found, by their names.
type Checks shape.Object

// MarshalJSON keeps the order of the checks.
func (c Checks) MarshalJSON() ([]byte, error) { return shape.Object(c).MarshalJSON() }

// OpenAPISchema is the JSON Schema of what MarshalJSON writes.
func (Checks) OpenAPISchema() json.RawMessage {
	return json.RawMessage(`{"type":"object","description":"What each check found, by its name.","additionalProperties":` +
		`{"type":"object","description":"Further members depend on the check.","required":["status"],"properties":{` +
		`"status":{"type":"string","enum":["ok","warn","fail"]},"message":{"type":"string"}}}}`)
}

// Report runs the checks concurrently and combines what they found. The status is 200, or 503 when a check failed. A
// check that has no result when ctx is done counts as failed, and continues for others who ask.
func (r *Rollup) Report(ctx context.Context) (Report, int) {
	calls := make([]*call, len(r.checks))
	for i, c := range r.checks {
		calls[i] = r.join(ctx, c)
	}
	report, code := Report{Status: "ok", Version: r.version}, http.StatusOK
	for i, c := range calls {
		select {
		case <-c.ctx.Done():
		case <-ctx.Done():
		}
		r.mu.Lock()
		found := c.result
		r.mu.Unlock()
		switch found.Status {
		case OK:
		case Warn:
			if code == http.StatusOK {
				report.Status = "degraded"
			}
		default:
			found.Status, report.Status, code = Fail, "failing", http.StatusServiceUnavailable
			report.Failing = append(report.Failing, r.checks[i].name)
		}
		members := shape.Object{"status", found.Status}
		if found.Message != "" {
			members = append(members, "message", found.Message)
		}
		report.Checks = append(report.Checks, r.checks[i].name, append(members, found.Fields...))
	}
	report.UptimeSeconds = int64(time.Since(r.start) / time.Second)
	return report, code
}

// Wait returns when no check runs any more. The owner of the rollup calls it after the last Report returned.
func (r *Rollup) Wait() { r.running.Wait() }

// join returns the latest call of c if it is under way or recent, and starts one otherwise.
func (r *Rollup) join(ctx context.Context, c *check) *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.call != nil && (!c.call.over || time.Since(c.call.begun) < Interval) {
		return c.call
	}
	// Others may share this call, so it does not end with the request that happened to start it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Timeout)
	made := &call{ctx: ctx, begun: time.Now(), result: late}
	c.call = made
	r.running.Go(func() {
		defer cancel()
		result := r.ask(ctx, c)
		r.mu.Lock()
		defer r.mu.Unlock()
		if made.over = true; ctx.Err() == nil {
			made.result = result
		}
	})
	return made
}

func (r *Rollup) ask(ctx context.Context, c *check) (result Result) {
	defer func() {
		if v := recover(); v != nil {
			r.log.Error("health check panicked", "check", c.name, "panic", v, "stack", string(debug.Stack()))
			result = Result{Status: Fail, Message: "The check panicked; see the server's log."}
		}
	}()
	return c.run(ctx)
}
