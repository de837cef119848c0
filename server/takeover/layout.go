package takeover

import (
	"slices"

	"agentd/server/message"
	"agentd/server/runstate"
)

// A layout is where the messages and tool calls of a state lie in the rows of its run.
type layout struct {
	places  []int       // by message
	size    int         // places in all, reserved ones included
	journal []laid      // the calls that have a row, in the order of the rows
	dead    []laid      // the calls that have none: nothing answers them, and nothing waits for them
	orphans []int       // tool messages that answer no call
	own     []*laid     // by pending approval: its call; nil for those of child runs, and without a call
	parked  []*laid     // by pending child run: its call; nil without a call
	answers map[int]int // by message: the row in the journal of the call that it answers
}

// laid is a tool call of a state.
type laid struct {
	message.ToolCall
	asked    int  // the message that asks for it
	nth      int  // among that message's calls
	answered int  // the message that answers it; -1: none
	follows  bool // the answer comes directly after it, but for other answers
	approval int  // the pending approval that it waits for; -1: none
	sub      int  // the pending child run that it is; -1: none
}

func (c *laid) waits() bool { return c.approval >= 0 || c.sub >= 0 }

// layoutOf finds the calls of a state. Ids can repeat, so an answer is that of the latest call that has none. Only
// a run that can continue has approvals with calls.
func layoutOf(st *runstate.State, live bool) *layout {
	l := &layout{places: make([]int, len(st.Messages)), own: make([]*laid, len(st.PendingApprovals)), parked: make([]*laid, len(st.PendingSubRuns)),
		answers: map[int]int{}}
	var all []*laid
	open := map[string][]*laid{} // calls without an answer, by id
	take := func(id string) *laid {
		calls := open[id]
		if len(calls) == 0 {
			return nil
		}
		open[id] = calls[:len(calls)-1]
		return calls[len(calls)-1]
	}
	byAnswer := map[int]*laid{}
	for i, m := range st.Messages {
		for nth, tc := range m.ToolCalls {
			c := &laid{ToolCall: tc, asked: i, nth: nth, answered: -1, approval: -1, sub: -1}
			all = append(all, c)
			open[tc.ID] = append(open[tc.ID], c)
		}
		if m.Role != message.Tool {
			continue
		}
		if c := take(m.ToolCallID); c != nil {
			c.answered, byAnswer[i] = i, c
		} else {
			l.orphans = append(l.orphans, i)
		}
	}
	for i, s := range st.PendingSubRuns {
		if l.parked[i] = take(s.ToolCallID); l.parked[i] != nil {
			l.parked[i].sub = i
		}
	}
	for i, a := range st.PendingApprovals {
		if a.SubRunToolCallID != "" || !live {
			continue
		}
		if l.own[i] = take(a.ToolCallID); l.own[i] != nil {
			l.own[i].approval = i
		}
	}
	l.lay(st.Messages, all, byAnswer)
	return l
}

// lay gives each message its place, and each call that has a row its place in the journal. The outcomes of a message's
// calls follow it in the order of the calls or, if the state has another order, in that order.
func (l *layout) lay(msgs []message.Message, all []*laid, byAnswer map[int]*laid) {
	reserved := map[int]int{} // by message
	for i := range msgs {
		place, ok := reserved[i]
		if !ok {
			place = l.size
			l.size++
		}
		l.places[i] = place
		n := len(msgs[i].ToolCalls)
		calls := slices.Clone(all[:n])
		all = all[n:]
		var told []*laid // directly after it
		for j := i + 1; j < len(msgs) && byAnswer[j] != nil && byAnswer[j].asked == i; j++ {
			byAnswer[j].follows = true
			told = append(told, byAnswer[j])
		}
		if !slices.IsSortedFunc(told, func(a, b *laid) int { return a.nth - b.nth }) {
			calls = append(told, slices.DeleteFunc(calls, func(c *laid) bool { return c.follows })...)
		}
		for _, c := range calls {
			if c.answered < 0 && !c.waits() {
				l.dead = append(l.dead, *c)
				continue
			}
			if c.follows {
				reserved[c.answered] = l.size
			}
			if c.answered >= 0 {
				l.answers[c.answered] = len(l.journal)
			}
			l.size++
			l.journal = append(l.journal, *c)
		}
	}
}
