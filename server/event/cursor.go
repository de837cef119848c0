package event

import (
	"strconv"
	"strings"
)

// A View is a kind of subject with its own ids for a run's events. A cursor of one view is unknown on another, which may not
// have shown what precedes it.
type View byte

const (
	RunView        View = 'r' // agent:A/runs/R/events, workflow:W/runs/R/events
	SessionView    View = 's' // session:S/events
	SessionRunView View = 't' // session:S/runs/R/events
	WorkflowView   View = 'w' // workflow:W/events
)

// A Cursor is the id of an event on a subject: the run, the sequence number of its latest durable event, and how many
// transient events have passed since. It means the same after a restart.
type Cursor struct {
	View View
	Run  string
	Seq  int
	Sub  int
}

// String is the event id. Clients treat it as opaque.
func (c Cursor) String() string { return string(c.Append(make([]byte, 0, MaxCursor))) }

// MaxCursor is the greatest length of an id.
const MaxCursor = 160

// Append adds the event id to b. The ids of one event on different views have the same length.
func (c Cursor) Append(b []byte) []byte {
	b = append(b, 'e', 'v', 't', '-', byte(c.View), '-')
	b = append(b, c.Run...)
	b = append(b, '-')
	b = strconv.AppendInt(b, int64(c.Seq), 36)
	if c.Sub > 0 {
		b = append(b, '.')
		b = strconv.AppendInt(b, int64(c.Sub), 36)
	}
	return b
}

// ParseCursor reads an event id; ok is false for anything that String does not write.
func ParseCursor(id string) (c Cursor, ok bool) {
	rest, ok := strings.CutPrefix(id, "evt-")
	if !ok || len(rest) < 2 || rest[1] != '-' {
		return c, false
	}
	c.View = View(rest[0])
	rest = rest[2:]
	at := strings.LastIndexByte(rest, '-')
	if at < 0 {
		return c, false
	}
	c.Run = rest[:at]
	seq, sub, transient := strings.Cut(rest[at+1:], ".")
	n, err := strconv.ParseInt(seq, 36, 32)
	c.Seq = int(n)
	if err == nil && transient {
		n, err = strconv.ParseInt(sub, 36, 32)
		c.Sub = int(n)
	}
	return c, err == nil && ValidID(c.Run) && c.String() == id
}
