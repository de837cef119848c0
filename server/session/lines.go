package session

import (
	"encoding/json"

	"agentd/server/message"
	"agentd/store"
)

// An export is JSON Lines: one record a line, each with its kind and a line feed at its end.
//
//	meta      what kind of file it is
//	session   the session's record                                     --+
//	agent     each agent that the session, a message or a hand-off names | the body: what the checksum covers
//	message   each message, in the order of sequence                     |
//	handoff   each hand-off, in order                                  --+
//	footer    counts and the checksum; a file without it is not whole
const (
	exportFormat  = "svc-session-export"
	exportVersion = "1.0"
	exportMajor   = 1
	oldestMajor   = 0       // Import reads files of two major versions back
	oldestReader  = "0.1.0" // the first version of the program that reads this format
)

type metaLine struct {
	Kind              string  `json:"kind"`
	Version           string  `json:"version"`
	Format            string  `json:"format"`
	CreatedAt         string  `json:"createdAt"`
	Writer            string  `json:"writer"`
	MinRuntimeVersion string  `json:"minRuntimeVersion"`
	Counts            *counts `json:"counts,omitempty"`
}

type counts struct {
	Messages int `json:"messages"`
	Handoffs int `json:"handoffs"`
	Agents   int `json:"agents"`
}

type sessionLine struct {
	Kind string `json:"kind"`
	Record
}

// agentLine names an agent. Agents are declared, not registered one by one, so its time is that of the session.
type agentLine struct {
	Kind         string `json:"kind"`
	ID           string `json:"id"`
	DisplayName  string `json:"displayName"`
	RegisteredAt string `json:"registeredAt"`
}

// messageLine holds a message. Of a tool message it also holds the outcome of the call, from which the message is made;
// other writers leave that out.
type messageLine struct {
	Kind        string           `json:"kind"`
	SessionID   string           `json:"sessionId"`
	MessageID   string           `json:"messageId"`
	Sequence    int64            `json:"sequence"`
	CreatedAt   string           `json:"createdAt"`
	PersistedAt string           `json:"persistedAt,omitempty"` // of other writers
	DeletedAt   string           `json:"deletedAt,omitempty"`   // of other writers
	Role        message.Role     `json:"role"`
	AgentID     string           `json:"agentId,omitempty"`
	TokenCount  int              `json:"tokenCount,omitempty"` // an estimate
	Message     message.Message  `json:"message"`
	Outcome     *message.Outcome `json:"outcome,omitempty"`
	LeftOut     store.Status     `json:"leftOut,omitempty"` // failed or aborted: its run ended so, and later runs leave the message out
}

type handoffLine struct {
	Kind string `json:"kind"`
	Handoff
}

type footerLine struct {
	Kind         string          `json:"kind"`
	RecordCount  *int            `json:"recordCount"` // lines of the body, and two for meta and footer
	MessageCount *int            `json:"messageCount"`
	HandoffCount *int            `json:"handoffCount"`
	AgentCount   *int            `json:"agentCount"`
	Checksum     string          `json:"checksum,omitempty"`
	WrittenAt    string          `json:"writtenAtIso"`
	Cipher       json.RawMessage `json:"cipher,omitempty"` // of encrypted files
}
