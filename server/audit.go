package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"os"
	"strings"

	"agentd/server/audit"
	"agentd/server/commentary"
	"agentd/server/config"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/outbound"
	"agentd/server/rest"
	"agentd/server/run"
	"agentd/server/secret"
	"agentd/store"
)

// AuditFiles says where the audit chain of a configuration is, without what opens it.
func AuditFiles(cfg *config.Config) audit.Options {
	return audit.Options{Path: cfg.Resolve(cfg.AuditPath()), Durability: cfg.Storage.Durability, Cipher: cfg.Audit.Cipher,
		Checkpoints: audit.Checkpoints{Path: cfg.Resolve(cfg.AuditCheckpoints()), Interval: cfg.Audit.Checkpoint.Interval.Duration(),
			Entries: int64(cfg.Audit.Checkpoint.Entries)}}
}

// AuditOptions are how the audit chain of a configuration is opened. Without a passphrase reference the error is
// pre-bind-encryption-required, and one that gives no value is pre-bind-secret-unresolvable.
func AuditOptions(cfg *config.Config, secrets interface{ Resolve(string) ([]byte, error) }) (audit.Options, error) {
	o := AuditFiles(cfg)
	ref, path := cfg.Audit.PassphraseRef, "audit.passphraseRef"
	if ref == "" {
		ref, path = cfg.Storage.Encryption.PassphraseRef, "storage.encryption.passphraseRef"
	}
	if ref == "" {
		return o, fault.New(fault.EncryptionRequired, "audit.enabled is true, and the audit chain is always encrypted, but neither audit.passphraseRef nor storage.encryption.passphraseRef is set.").
			Advise("Set `audit.passphraseRef`, for instance to `file:audit-passphrase`, or switch `audit.enabled` off.")
	}
	var err error
	if o.Passphrase, err = secrets.Resolve(string(ref)); err != nil {
		return o, secret.Unresolvable(path, ref.String(), err)
	}
	return o, nil
}

// openAudit opens the chain, when there is to be one.
func (s *Server) openAudit(ctx context.Context, p *parts, o audit.Options) (err error) {
	if !s.cfg.Audit.Enabled {
		return nil
	}
	o.Logger, o.Holder, o.Metrics, o.Outbox = s.log, store.Holder{Command: s.opts.Command}, p.metrics, p.db.Outbox()
	subject := event.Subject{Kind: event.AuditEvents}.String()
	o.Committed = func(seq int64, line []byte) { p.hub.Publish(subject, rest.AuditEntry(seq, line)) }
	p.audit, err = audit.Open(ctx, o)
	if s.access != serving && fault.Is(err, fault.StoreLocked) { // another command is at it
		o.Beside = true
		p.audit, err = audit.Open(ctx, o)
	}
	return err
}

// auditStart records that the server starts, with what configuration and which tool events it will record. The digest is
// over the configuration as JSON; secrets are in it as references only.
func (s *Server) auditStart(ctx context.Context, p *parts) error {
	if p.audit == nil {
		return nil
	}
	text, err := message.Encode(s.cfg)
	if err != nil {
		return err
	}
	return p.audit.Append(ctx, audit.Record{Actor: systemActor, Action: audit.ServerStart, Target: "server", Decision: audit.Success,
		Metadata: map[string]any{"version": Version, "pid": os.Getpid(), "configSha256": digest(text), "toolEvents": s.cfg.Audit.ToolEvents}})
}

// auditStop records that the server stops in good order. A start without one before it came after a crash.
func (s *Server) auditStop(p *parts) error {
	if p.audit == nil {
		return nil
	}
	return p.audit.Append(context.Background(), audit.Record{Actor: systemActor, Action: audit.ServerStop, Target: "server", Decision: audit.Success})
}

var systemActor = audit.Actor{Kind: audit.ActorSystem, ID: "agentd/server"}

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// note records what the server itself has done, and does not wait for the entry. An entry that cannot be made is logged.
func (s *Server) note(p *parts, r audit.Record) {
	if p.audit == nil {
		return
	}
	r.Actor = systemActor
	if err := p.audit.Note(context.Background(), r); err != nil {
		s.log.Error("an action of the server could not be recorded", "action", r.Action, "target", r.Target, "error", err)
	}
}

// auditCertificate records that another certificate takes the place of the one before: all that changes of the
// configuration while the server runs.
func (s *Server) auditCertificate(p *parts) func(*tls.Certificate) {
	return func(c *tls.Certificate) {
		s.note(p, audit.Record{Action: audit.ConfigReload, Target: "server.tls", Decision: audit.Success,
			Metadata: map[string]any{"certificateSha256": digest(c.Certificate[0])}})
	}
}

// auditTools records what becomes of tool calls, as far as audit.toolEvents asks for it; nil when it asks for nothing.
func (s *Server) auditTools(p *parts) func([]run.Happening) (func(*store.Tx) error, error) {
	level := s.cfg.Audit.ToolEvents
	if p.audit == nil || level == "off" {
		return nil
	}
	return func(list []run.Happening) (func(*store.Tx) error, error) {
		var records []audit.Record
		for i := range list {
			h := &list[i]
			if level != "all" && !strings.HasPrefix(h.Event, "tool.approval.") && h.ErrorKind != string(message.CapabilityBlocked) {
				continue
			}
			records = append(records, toolRecord(h))
			if h.Spilled > 0 {
				spill := toolRecord(h)
				spill.Action, spill.Metadata["bytes"] = audit.ToolSpill, h.Spilled
				records = append(records, spill)
			}
		}
		entries, err := p.audit.Prepare(records...)
		return entries.Write, err
	}
}

// toolActions are the actions of what becomes of a tool call, by the event that shows it.
var toolActions = map[string]audit.Action{event.ApprovalRequested: audit.ApprovalRequested, event.ApprovalGranted: audit.ApprovalGranted,
	event.ApprovalDenied: audit.ApprovalDenied, event.ToolStart: audit.ToolStart, event.ToolEnd: audit.ToolEnd, event.ToolError: audit.ToolError}

// toolRecord is a happening as the chain has it.
func toolRecord(h *run.Happening) audit.Record {
	r := audit.Record{Actor: audit.Actor{Kind: audit.ActorAgent, ID: h.AgentID}, Action: toolActions[h.Event], Target: "tool:" + h.ToolName,
		Decision: audit.Success, Context: audit.Context{RunID: h.RunID, SessionID: h.SessionID, ToolName: cut(h.ToolName, 1024)},
		Metadata: map[string]any{"toolCallId": cut(h.ToolCallID, 1024), "stepNumber": h.Step}}
	switch h.Event {
	case event.ApprovalDenied:
		r.Decision = audit.Denied
	case event.ToolError:
		r.Decision = audit.Failed
		r.Metadata["errorKind"] = h.ErrorKind
	}
	if h.GrantedBy != nil {
		r.Metadata["grantedBy"] = h.GrantedBy
	}
	if h.ArgsDigest != "" && h.Event != event.ToolEnd && h.Event != event.ToolError {
		r.Metadata["argsDigest"] = h.ArgsDigest
		if h.AskedDigest != "" {
			r.Metadata["askedArgsDigest"] = h.AskedDigest
		}
	}
	if h.Reason != "" {
		r.Metadata["reason"] = cut(h.Reason, 1024)
	}
	if kind, id, ok := strings.Cut(h.By, ":"); ok && (kind == audit.ActorToken || kind == audit.ActorCLI) {
		r.Actor = audit.Actor{Kind: kind, ID: id}
	} else if h.By != "" {
		r.Actor = audit.Actor{Kind: audit.ActorSystem, ID: h.By}
	}
	return r
}

func cut(s string, most int) string { return s[:min(len(s), most)] }

// redacted counts an event that is delivered sanitised, and records it.
func (s *Server) redacted(p *parts) func(transport string, d *commentary.Decision) {
	return func(transport string, d *commentary.Decision) {
		p.metrics.RedactionDrops.Inc()
		s.note(p, audit.Record{Action: audit.Sanitised, Target: transport + ":" + d.EventType, Decision: audit.Success,
			Metadata: map[string]any{"policy": string(d.Policy), "applied": true, "boundary": "event-emission", "reasons": d.Reasons,
				"matchedPattern": d.MatchedPattern, "sha256OfBefore": d.SHA256Before, "sha256OfAfter": d.SHA256After}})
	}
}

// refusedDial records a connection that was refused.
func (s *Server) refusedDial(p *parts) func(outbound.Denial) {
	return func(d outbound.Denial) {
		facts := map[string]any{"setting": d.Setting, "reason": cut(d.Reason, 1024)}
		if d.Address.IsValid() {
			facts["address"] = d.Address.String()
		}
		s.note(p, audit.Record{Action: audit.OutboundDenied, Target: d.Target, Decision: audit.Denied, Metadata: facts})
	}
}
