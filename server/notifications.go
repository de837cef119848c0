package server

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"time"

	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/notify"
	"agentd/server/outbound"
	"agentd/server/secret"
	"agentd/server/webhook"
	"agentd/store"
	"agentd/triggers"
)

// watching is the time between two looks at the health of the server, for receivers that want to know of failures.
const watching = 10 * time.Second

// openNotify makes what reports to receivers outside. Where no agent runs, it writes notifications and sends none.
func (s *Server) openNotify(p *parts, secrets *secret.Resolver, guard *outbound.Guard) (*notify.Daemon, error) {
	o := notify.Options{Store: p.db.Notifications(), Runs: p.db.Runs(), Metrics: p.metrics, Logger: s.log, Redact: s.known.Text,
		Arguments: func(ctx context.Context, runID, callID string) (json.RawMessage, error) {
			return p.engine.PendingArguments(ctx, runID, callID)
		}}
	for i, n := range s.cfg.Notify {
		t := notify.Target{ID: notify.TargetID(n.URL), URL: n.URL, On: n.On, Agents: n.Agents}
		if n.Template != nil {
			var problems []graph.Problem
			if t.Template, problems = graph.Template(n.Template, config.NotifyVars()); len(problems) > 0 {
				return nil, fault.Invalid("The template of a notification is not valid.", fault.At(problems[0].Message, append([]any{"notify", i, "template"}, problems[0].Path...)...))
			}
		}
		if s.runs() {
			if err := s.reach(&t, i, n, secrets, guard); err != nil {
				return nil, err
			}
		}
		o.Targets = append(o.Targets, t)
	}
	return notify.New(o), nil
}

// reach adds what requests to a receiver need.
func (s *Server) reach(t *notify.Target, i int, n config.Notify, secrets *secret.Resolver, guard *outbound.Guard) (err error) {
	var keys [][]byte
	for _, ref := range n.SecretRefs {
		key, err := secrets.Resolve(string(ref))
		if err != nil {
			return secret.Unresolvable("notify.secretRefs", ref.String(), err)
		}
		keys = append(keys, key)
	}
	if t.Signer, err = webhook.NewSigner(keys...); err != nil {
		return fault.Invalid("The secrets of a receiver cannot sign.", fault.At(fault.Of(err).Message, "notify", i, "secretRefs"))
	}
	u, err := url.Parse(n.URL)
	if err != nil {
		return fault.Invalid("The address of a receiver cannot be read.", fault.At("want an address", "notify", i, "url"))
	}
	t.Transport = guard.Transport("notify."+strconv.Itoa(i)+".url", outbound.HostPort(u))
	return nil
}

// dueMissed is what a notification holds of dues that a trigger has missed.
type dueMissed struct {
	Trigger  string `json:"trigger"`
	Starts   string `json:"starts"` // the agent or workflow
	FirstDue string `json:"firstDue"`
	LastDue  string `json:"lastDue"`
	Count    int64  `json:"count"`
}

func (p *parts) missed(tx *store.Tx, target string, f triggers.Firing) error {
	return p.notify.Write(tx, notify.TriggerMissed, target, dueMissed{f.Trigger, target, f.Due, f.LastDue, f.Count})
}

// checkFailed is what a notification holds of a check that fails.
type checkFailed struct {
	Check   string `json:"check"`
	Message string `json:"message,omitempty"`
}

// chainBroken is what a notification holds of a break in the audit chain.
type chainBroken struct {
	Entry  int64  `json:"entry"`
	Reason string `json:"reason"`
}

// watch reports, until ctx ends, when a check begins to fail and when the audit chain is found broken: once for each change, as
// far as this process knows.
func (s *Server) watch(p *parts) func(context.Context) error {
	return func(ctx context.Context) error {
		var failing []string
		broken := false
		for {
			report, _ := p.health.Report(ctx)
			if ctx.Err() != nil {
				return nil
			}
			for _, name := range report.Failing {
				if !slices.Contains(failing, name) {
					p.notify.Tell(ctx, notify.HealthFailing, checkFailed{name, report.Message(name)})
				}
			}
			failing = report.Failing
			if p.audit != nil {
				b := p.audit.Broken()
				if b != nil && !broken {
					p.notify.Tell(ctx, notify.AuditBroken, chainBroken{b.Seq, b.Reason})
				}
				broken = b != nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(watching):
			}
		}
	}
}
