package run

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/store"
)

// A Decider is the principal that decides, and whom it and the others that count for a run count as.
type Decider struct {
	name     string
	lineages map[string]string // by the names of principals
}

// Decider finds out whom those count as that pending approvals name. name is anonymous when empty.
func (e *Engine) Decider(ctx context.Context, name string, pending []journal.Approval) (Decider, error) {
	d := Decider{name: cmp.Or(name, Anonymous), lineages: map[string]string{}}
	if e.opts.Lineages == nil {
		return d, nil
	}
	names := []string{d.name}
	for _, a := range pending {
		names = slices.Concat(names, a.GrantedBy, strings.Split(a.NotBy, store.For))
	}
	lineages, err := e.opts.Lineages(ctx, names)
	for i, lineage := range lineages {
		d.lineages[names[i]] = lineage
	}
	return d, err
}

// Name is the principal's.
func (d Decider) Name() string { return d.name }

// is reports whether a principal counts as the one that decides.
func (d Decider) is(name string) bool {
	return cmp.Or(d.lineages[name], name) == cmp.Or(d.lineages[d.name], d.name)
}

// Vote counts a grant of an approval and reports whether more are needed. The error is approver-refused where the principal
// may not grant it, or has done so before.
func (d Decider) Vote(a *journal.Approval) (more bool, err error) {
	refuse := func(format string, args ...any) (bool, error) {
		return false, fault.New(fault.ApproverRefused, format, args...).With("toolCallId", a.ToolCallID)
	}
	switch {
	case slices.ContainsFunc(strings.Split(a.NotBy, store.For), d.is):
		return refuse("The call %s must be granted by somebody else than %s, who started the run; %s counts as the same.", a.ToolCallID, a.NotBy, d.name)
	case slices.ContainsFunc(a.GrantedBy, d.is):
		return refuse("The principal %s, or one that counts as the same, has granted the call %s already; %d are needed.", d.name, a.ToolCallID, a.ApproversNeeded)
	}
	a.GrantedBy = append(slices.Clip(a.GrantedBy), d.name)
	return len(a.GrantedBy) < a.ApproversNeeded, nil
}
