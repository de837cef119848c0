package session

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"agentd/store"
)

// Transfer is the record of one agent handing the conversation to another.
type Transfer struct {
	FromAgentID           string          `json:"fromAgentId"`
	ToAgentID             string          `json:"toAgentId"`
	StepNumber            int             `json:"stepNumber"`
	At                    string          `json:"at"`
	Reason                string          `json:"reason,omitempty"`
	InputFilter           json.RawMessage `json:"inputFilter,omitempty"`
	SecretsInheritance    string          `json:"secretsInheritance,omitempty"`
	InheritedSecrets      []string        `json:"inheritedSecrets,omitempty"` // names
	SecretsOverrideReason string          `json:"secretsOverrideReason,omitempty"`
}

// Handoff is a transfer in a session. Its id is derived from its place, so it stays the same.
type Handoff struct {
	ID        string `json:"id"`
	SessionID string `json:"sessionId"`
	Transfer
}

// Handoffs returns the newest hand-offs of a session, oldest first, at most 1000; none when there is no such session.
func (s *Service) Handoffs(ctx context.Context, sessionID string) ([]Handoff, error) {
	stored, err := view(ctx, s, func(tx *store.Tx) ([]store.Handoff, error) { return s.sessions.Handoffs(tx, sessionID) })
	out := []Handoff{}
	for _, h := range stored {
		v, err := handoffOf(sessionID, h)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, err
}

func handoffOf(sessionID string, h store.Handoff) (Handoff, error) {
	v := Handoff{ID: fmt.Sprintf("handoff-%s-%d", strconv.FormatInt(h.Run, 36), h.Index), SessionID: sessionID}
	if err := json.Unmarshal(h.Body, &v.Transfer); err != nil {
		return v, fmt.Errorf("hand-off %s: %w", v.ID, err)
	}
	return v, nil
}
