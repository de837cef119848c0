package session

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/transcript"
	"agentd/store"
)

// ExportOptions say what is written of a session.
type ExportOptions struct {
	Version      string // of this program, which the file names as its writer
	Hash         bool   // with a checksum in the footer
	IncludeAudit bool   // with the session's audit entries; no session has any so far, so there is nothing to add
}

// Export writes a whole session as JSON Lines of the format svc-session-export 1.0. System prompts are the agents' and
// not part of a session, and results that are kept beside the transcript stay behind; their beginnings are in it.
//
// What is said after Export has begun is not in the file. Messages never change, so this needs no transaction for
// longer than a page takes: a slow w keeps neither a connection of the store nor its log. Memory is bounded too.
//
// Errors: session-not-found before anything is written; afterwards those of w and of the store, and session-not-found
// when the session is erased meanwhile. A file that ends without a footer is not whole.
func (s *Service) Export(ctx context.Context, sessionID string, w io.Writer, o ExportOptions) error {
	var head store.Outline
	err := s.sessions.Snapshot(ctx, func(tx *store.Tx) (err error) {
		head, err = s.sessions.Outline(tx, sessionID)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return fault.New(fault.SessionNotFound, "No session %q.", sessionID)
	}
	if err != nil {
		return err
	}
	out := &lineWriter{w: bufio.NewWriterSize(w, 32<<10), sum: newChecksum()}
	number := counts{Messages: head.Messages, Handoffs: len(head.Handoffs), Agents: len(head.Agents)}
	out.line(metaLine{Kind: "meta", Version: exportVersion, Format: exportFormat, CreatedAt: message.Time(time.Now()),
		Writer: "agentd@" + o.Version, MinRuntimeVersion: oldestReader, Counts: &number})
	out.body(sessionLine{Kind: "session", Record: RecordOf(head.Session)})
	for _, id := range head.Agents {
		out.body(agentLine{Kind: "agent", ID: id, DisplayName: id, RegisteredAt: message.Millis(head.Session.Created)})
	}
	if err := s.exportMessages(ctx, &head, out); err != nil {
		return err
	}
	if err := s.exportHandoffs(ctx, &head, out); err != nil {
		return err
	}
	footer := footerLine{Kind: "footer", RecordCount: new(out.records + 2), MessageCount: &number.Messages,
		HandoffCount: &number.Handoffs, AgentCount: &number.Agents, WrittenAt: message.Time(time.Now())}
	if o.Hash {
		footer.Checksum = out.sum.String()
	}
	out.line(footer)
	return out.flush()
}

func (s *Service) exportMessages(ctx context.Context, head *store.Outline, out *lineWriter) error {
	id, written := head.Session.ID, 0
	for after := int64(0); written < head.Messages; {
		var page []store.Message
		err := s.still(ctx, head, func(tx *store.Tx) (err error) {
			page, err = s.sessions.MessagePage(tx, id, after, head.To)
			return err
		})
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return erased(id)
		}
		for _, m := range page {
			msg, outcome, err := transcript.Decode(m)
			if err != nil {
				return err
			}
			out.body(messageLine{Kind: "message", SessionID: id, MessageID: transcript.ID(m.Run, m.Index), Sequence: m.Sequence, CreatedAt: message.Millis(m.At),
				Role: msg.Role, AgentID: msg.AgentID, TokenCount: m.Tokens, Message: msg, Outcome: outcome, LeftOut: m.LeftOut})
			after = m.Sequence
		}
		written += len(page)
		if out.err != nil {
			return out.err
		}
	}
	return nil
}

func (s *Service) exportHandoffs(ctx context.Context, head *store.Outline, out *lineWriter) error {
	id := head.Session.ID
	for left := head.Handoffs; len(left) > 0; {
		var page []store.Handoff
		err := s.still(ctx, head, func(tx *store.Tx) (err error) {
			page, err = s.sessions.HandoffPage(tx, id, left[0])
			return err
		})
		if err != nil {
			return err
		}
		before := len(left)
		for _, h := range page {
			at, known := slices.BinarySearch(left, h.Key())
			if !known {
				continue // made since the outline
			}
			v, err := handoffOf(id, h)
			if err != nil {
				return err
			}
			out.body(handoffLine{Kind: "handoff", Handoff: v})
			left = left[at+1:]
		}
		if len(left) == before {
			return erased(id)
		}
		if out.err != nil {
			return out.err
		}
	}
	return nil
}

// still reads a page of the session, unless it was erased meanwhile. Another may have its id by then.
func (s *Service) still(ctx context.Context, head *store.Outline, read func(*store.Tx) error) error {
	err := s.sessions.Snapshot(ctx, func(tx *store.Tx) error {
		now, err := s.sessions.Find(tx, head.Session.ID)
		if err == nil && now.Created != head.Session.Created {
			err = store.ErrNotFound
		}
		if err != nil {
			return err
		}
		return read(tx)
	})
	if errors.Is(err, store.ErrNotFound) {
		return erased(head.Session.ID)
	}
	return err
}

func erased(id string) error {
	return fault.New(fault.SessionNotFound, "The session %q was erased while it was exported.", id)
}

// A lineWriter writes records and counts those of the body. After an error it writes nothing more.
type lineWriter struct {
	w       *bufio.Writer
	sum     checksum
	records int
	err     error
}

// body writes a record that the checksum covers.
func (l *lineWriter) body(record any) {
	l.records++
	l.sum.Write(l.line(record))
}

// line writes a record and returns the line that it became.
func (l *lineWriter) line(record any) []byte {
	if l.err != nil {
		return nil
	}
	b, err := message.Encode(record)
	if err != nil {
		l.err = err
		return nil
	}
	// What programs and models wrote as raw JSON may hold bytes that are no text, and they must not change on the way.
	b = append(bytes.ToValidUTF8(b, []byte("\uFFFD")), '\n')
	_, l.err = l.w.Write(b)
	return b
}

func (l *lineWriter) flush() error {
	if l.err != nil {
		return l.err
	}
	return l.w.Flush()
}
