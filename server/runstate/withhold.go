package runstate

import (
	"fmt"
	"strings"

	"agentd/server/message"
)

// Withhold takes the operator's words out of the state and of the child runs in it: system messages are empty and marked as
// withheld, unless they are the caller's. It changes the state's messages in place.
func (s *State) Withhold() {
	for i := range s.Messages {
		m := &s.Messages[i]
		if m.Role != message.System || m.Caller {
			continue
		}
		m.Content, m.Withheld = message.Content{}, true
		for pointer := range s.Extra {
			if at := fmt.Sprint("/messages/", i); pointer == at || strings.HasPrefix(pointer, at+"/") {
				delete(s.Extra, pointer)
			}
		}
	}
	for i := range s.PendingSubRuns {
		s.PendingSubRuns[i].State.Withhold()
	}
}
