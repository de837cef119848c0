package session

import (
	"context"
	"io"
	"slices"
	"time"

	"agentd/server/jsonlines"
	"agentd/server/message"
	"agentd/server/transcript"
	"agentd/store"
)

// ExportOptions say what Export writes.
type ExportOptions struct {
	Version string // of this program, which the file names as its writer
	Hash    bool   // with a checksum in the footer
}

// Export writes a whole session as JSON Lines of the format svc-session-export 1.0. System prompts belong to agents and
// are left out, and so is the rest of results that the transcript holds only the beginning of.
//
// The file has what was said before Export began. Messages never change, so a transaction lasts no longer than a page: a
// slow w blocks neither the store's connections nor its log. Memory is bounded too.
//
// Errors: session-not-found before anything is written; afterwards those of w and of the store, and session-not-found
// when the session is erased meanwhile. A file without a footer is not whole.
func (s *Service) Export(ctx context.Context, sessionID string, w io.Writer, o ExportOptions) error {
	var head store.Outline
	err := s.sessions.Snapshot(ctx, func(tx *store.Tx) (err error) {
		head, err = s.sessions.Outline(tx, sessionID)
		return err
	})
	if err != nil {
		return notFound(err, "There is no session %q.", sessionID)
	}
	number := counts{Messages: head.Messages, Handoffs: len(head.Handoffs), Agents: len(head.Agents)}
	out := jsonlines.NewWriter(w, metaLine{Kind: "meta", Version: exportVersion, Format: exportFormat, CreatedAt: message.Time(time.Now()),
		Writer: "agentd@" + o.Version, MinRuntimeVersion: oldestReader, Counts: &number})
	out.Write(sessionLine{Kind: "session", Record: RecordOf(head.Session)})
	for _, id := range head.Agents {
		out.Write(agentLine{Kind: "agent", ID: id, DisplayName: id, RegisteredAt: message.Millis(head.Session.Created)})
	}
	if err := s.exportMessages(ctx, &head, out); err != nil {
		return err
	}
	if err := s.exportHandoffs(ctx, &head, out); err != nil {
		return err
	}
	footer := footerLine{Kind: "footer", RecordCount: new(out.Lines + 2), MessageCount: &number.Messages,
		HandoffCount: &number.Handoffs, AgentCount: &number.Agents, WrittenAt: message.Time(time.Now())}
	if o.Hash {
		footer.Checksum = out.Checksum()
	}
	return out.Close(footer)
}

func (s *Service) exportMessages(ctx context.Context, head *store.Outline, out *jsonlines.Writer) error {
	id, after := head.Session.ID, int64(0)
	for left := head.Messages; left > 0 && out.Err == nil; {
		page, err := still(ctx, s, head, func(tx *store.Tx) ([]store.Message, error) {
			return s.sessions.MessagePage(tx, id, after, head.To)
		})
		if err != nil {
			return err
		}
		for _, m := range page {
			msg, outcome, err := transcript.Decode(m)
			if err != nil {
				return err
			}
			out.Write(messageLine{Kind: "message", SessionID: id, MessageID: transcript.ID(m.Run, m.Index), Sequence: m.Sequence, CreatedAt: message.Millis(m.At),
				Role: msg.Role, AgentID: msg.AgentID, TokenCount: m.Tokens, Message: msg, Outcome: outcome, LeftOut: m.LeftOut})
			after = m.Sequence
		}
		left -= len(page)
	}
	return nil
}

func (s *Service) exportHandoffs(ctx context.Context, head *store.Outline, out *jsonlines.Writer) error {
	id := head.Session.ID
	for left := head.Handoffs; len(left) > 0 && out.Err == nil; {
		page, err := still(ctx, s, head, func(tx *store.Tx) ([]store.Handoff, error) { return s.sessions.HandoffPage(tx, id, left[0]) })
		if err != nil {
			return err
		}
		for _, h := range page {
			at, known := slices.BinarySearch(left, h.Key())
			if !known {
				continue // made since the outline
			}
			v, err := handoffOf(id, h)
			if err != nil {
				return err
			}
			out.Write(handoffLine{Kind: "handoff", Handoff: v})
			left = left[at+1:]
		}
	}
	return nil
}

// still reads a page of the session, which fails if it was erased meanwhile. Another may have its id by then.
func still[T any](ctx context.Context, s *Service, head *store.Outline, read func(*store.Tx) ([]T, error)) (page []T, err error) {
	err = s.sessions.Snapshot(ctx, func(tx *store.Tx) error {
		now, err := s.sessions.Find(tx, head.Session.ID)
		if err == nil {
			page, err = read(tx)
		}
		if err == nil && (now.Created != head.Session.Created || len(page) == 0) {
			err = store.ErrNotFound
		}
		return err
	})
	return page, notFound(err, "Somebody erased the session %q during the export.", head.Session.ID)
}
