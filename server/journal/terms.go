package journal

import (
	"time"

	"agentd/server/message"
)

// Terms are what an approval takes. The zero value takes one principal's word, whenever it comes.
type Terms struct {
	Expires   time.Duration // after which it is denied; 0: never
	Approvers int           // how many different principals must grant it; 0 is one
	Different bool          // none of them may be the one that started the run
}

// Complete completes an approval that is asked for at a time, in a run that the named principal started.
func (t Terms) Complete(a Approval, at int64, startedBy string) Approval {
	if t.Expires > 0 {
		a.ExpiresAt = message.Millis(at + t.Expires.Milliseconds())
	}
	if t.Approvers > 1 {
		a.ApproversNeeded = t.Approvers
	}
	if t.Different {
		a.NotBy = startedBy
	}
	return a
}
