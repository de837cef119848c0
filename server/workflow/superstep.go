package workflow

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"agentd/server/fault"
)

// A thread of a Go graph moves in supersteps:
//
//	plan -> each task: ready -> running -> done | failed | asks its thread for something
//	                     ^                                     |
//	                     +------------- answered --------------+
//
//	when none is ready or runs, and what the tasks asked for waits:
//	        one failed            -> the run fails; its tasks stay for a retry
//	        else merge the writes -> one has asked: the thread waits
//	                                 else plan the next superstep
//
// Everything in this file is computed from the frontier, the tasks and the state alone, so a crash changes nothing in it.

// frontierForm is the form in which frontiers, and the tasks under them, are stored.
const frontierForm = 2

// A frontier is what the next superstep follows from, as it is stored.
type frontier struct {
	V         int            `json:"v"`
	Completed []string       `json:"completed"` // the nodes whose edges lead on
	Dynamic   []scheduled    `json:"dynamic"`   // what they dispatched
	Deferred  []string       `json:"deferred,omitempty"`
	After     []string       `json:"after,omitempty"`    // static pauses after nodes
	Passed    []string       `json:"passed,omitempty"`   // barriers whose next write begins another round
	Answered  []string       `json:"answered,omitempty"` // declared awaits that have had an answer
	Versions  map[string]int `json:"channelVersions"`
	Since     int            `json:"since"` // supersteps since the last wait
	Total     int            `json:"total"` // supersteps of the run
}

// scheduled is a dispatch as it is stored.
type scheduled struct {
	Node string          `json:"nodeName"`
	Args json.RawMessage `json:"dispatchArgs,omitempty"`
}

// A nodeTask is what a task of a superstep has besides its node and its phase. Its JSON form is a part of the task's row.
type nodeTask struct {
	Held     bool                       `json:"held,omitempty"` // a static pause before the node has not been answered
	Args     json.RawMessage            `json:"dispatchArgs,omitempty"`
	Journal  []entry                    `json:"-"` // each has a row of its own
	Writes   map[string]json.RawMessage `json:"writes,omitempty"`
	Dispatch []scheduled                `json:"dispatch,omitempty"`
}

// settled is how many entries of the journal another attempt finds: those up to the last that has not failed. The node went
// on from an error before that one.
func (t *nodeTask) settled() int {
	n := len(t.Journal)
	for n > 0 && t.Journal[n-1].Error != nil {
		n--
	}
	return n
}

// size is how many bytes the task has for the superstep to merge.
func (t *nodeTask) size() (n int) {
	for name, value := range t.Writes {
		n += len(name) + len(value)
	}
	for _, d := range t.Dispatch {
		n += len(d.Node) + len(d.Args)
	}
	return n
}

// superstep is a thread of a Go graph between two commits.
type superstep struct {
	*program
	frontier
	tasks []*task // the order of ids is the planned order
	state map[string]json.RawMessage
}

// accept checks an input: an object that the channels take.
func (p *program) accept(input json.RawMessage) error {
	given, err := members(input)
	if err != nil {
		return fault.Invalid("The input of a workflow is an object.", fault.At("is not an object", "input"))
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, err := begins(p.Channels, name, given[name]); err != nil {
			return fault.Invalid("The input does not fit the channels of the workflow.", fault.At(fault.Of(err).Message, "input"))
		}
	}
	return p.bounded(p.begin(input))
}

// begin is the state that a run begins with. Of an input that was accepted under another definition, what the channels do
// not take is left out.
func (p *program) begin(input json.RawMessage) map[string]json.RawMessage {
	state := maps.Clone(p.initial)
	given, _ := members(input)
	for name := range given {
		if value, err := begins(p.Channels, name, given[name]); err == nil {
			state[name] = value
		}
	}
	return state
}

// members are those of an object.
func members(input json.RawMessage) (all map[string]json.RawMessage, err error) {
	if err = json.Unmarshal(input, &all); err == nil && all == nil {
		err = fmt.Errorf("it is null")
	}
	return all, err
}

// first is the frontier of a run that begins.
func (p *program) first() *frontier {
	return &frontier{V: frontierForm, Completed: []string{Start}, Versions: map[string]int{}}
}

// maxDispatches is how many tasks the tasks of a superstep may dispatch.
const maxDispatches = 10000

// bounded reports a state, or dispatches for the next superstep, that are too large.
func (p *program) bounded(state map[string]json.RawMessage, dispatched ...scheduled) error {
	if len(dispatched) > maxDispatches {
		return fault.New(fault.StateTooLarge, "The nodes of a superstep dispatched %d tasks; %d are possible.", len(dispatched), maxDispatches).
			Advise("Dispatch fewer tasks, each with more of the work.")
	}
	size := 0
	for _, d := range dispatched {
		size += len(d.Args)
	}
	for name, value := range state {
		size += len(name) + len(value) + len(`"":,`)
	}
	if size > p.MaxStateBytes {
		return fault.New(fault.StateTooLarge, "The state has %d bytes; the workflow %q allows %d.", size, p.ID, p.MaxStateBytes)
	}
	return nil
}

// plan makes the tasks of the next superstep, with ids from id. ended says that an edge leads to the end and nothing else
// remains. After an error nothing has changed.
func (s *superstep) plan(id func() int) (ended bool, err error) {
	targets, ended, err := s.targets()
	if err != nil {
		return false, err
	}
	var deferred, passed, nodes []string
	for _, node := range targets {
		if len(s.waitsFor(node)) > 0 {
			deferred = append(deferred, node)
		} else {
			nodes, passed = append(nodes, node), append(passed, s.gates[node]...)
		}
	}
	switch {
	case len(nodes)+len(s.Dynamic) > 0:
	case ended:
		return true, nil
	default:
		return false, s.deadEnd(deferred)
	}
	if s.Since >= s.MaxSteps {
		return false, fault.New(fault.MaxStepsExceeded, "The thread took %d steps without a wait.", s.Since)
	}
	if s.MaxTotalSteps > 0 && s.Total >= s.MaxTotalSteps {
		return false, fault.New(fault.MaxStepsExceeded, "The run took %d steps, which is all that the workflow allows.", s.Total).
			Advise("Raise `MaxTotalSteps`, or check why the loop does not end.")
	}
	for _, d := range s.Dynamic {
		s.schedule(id(), d)
	}
	for _, node := range nodes {
		s.schedule(id(), scheduled{Node: node})
	}
	s.Passed = distinct(s.Passed, passed...)
	s.Completed, s.Dynamic, s.Deferred = nil, nil, deferred
	return false, nil
}

// targets are the nodes that follow, each once, in the order of the edges; end says that one leads to the end.
func (s *superstep) targets() (nodes []string, end bool, err error) {
	nodes = slices.Clone(s.Deferred)
	state := State{s.state}
	for _, from := range s.Completed {
		for _, e := range s.out[from] {
			follows, err := e.holds(state)
			if err != nil {
				return nil, false, err
			}
			switch {
			case !follows:
			case e.To == End:
				end = true
			default:
				nodes = distinct(nodes, e.To)
			}
		}
	}
	return nodes, end, nil
}

// holds asks the condition of an edge.
func (e Edge) holds(state State) (follows bool, err error) {
	if e.When == nil {
		return true, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.NodeFailed, "The condition of the edge from %q to %q panicked.", e.From, e.To).Because(fmt.Errorf("%v", p))
		}
	}()
	return e.When(state), nil
}

// waitsFor returns the barriers of a node that are incomplete.
func (s *superstep) waitsFor(node string) (names []string) {
	for _, name := range s.gates[node] {
		if slices.Contains(s.Passed, name) || !s.Channels[name].complete(s.state[name]) {
			names = append(names, name)
		}
	}
	return names
}

func (s *superstep) deadEnd(deferred []string) error {
	message := fmt.Sprintf("Nothing follows %q.", s.Completed)
	for _, node := range deferred {
		message += fmt.Sprintf(" %q waits for the barrier %q.", node, s.waitsFor(node))
	}
	return fault.New(fault.DeadEnd, "%s", message)
}

// distinct adds names to a list, without those that it has.
func distinct(list []string, names ...string) []string {
	for _, name := range names {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

func (s *superstep) schedule(id int, d scheduled) {
	s.tasks = append(s.tasks, &task{ID: id, Node: d.Node, Phase: open, Go: &nodeTask{Args: d.Args, Held: slices.Contains(s.PauseAt.Before, d.Node)}})
}

// A change is what a superstep made of a channel.
type change struct {
	channel   string
	version   int
	value     json.RawMessage
	added     json.RawMessage // of a list: what was appended
	transient bool            // the state does not hold it
}

// merge applies the writes of the tasks that have completed and takes these tasks off. Tasks that wait remain. After an
// error nothing has changed; place is where it failed.
func (s *superstep) merge() (changes []change, merged []*task, place string, err error) {
	writes := map[string][]write{}
	dispatched := slices.Clone(s.Dynamic)
	var rest []*task
	for _, k := range s.tasks {
		if k.Phase != done {
			rest = append(rest, k)
			continue
		}
		merged, dispatched = append(merged, k), append(dispatched, k.Go.Dispatch...)
		for name, value := range k.Go.Writes {
			writes[name] = append(writes[name], write{k.Node, value})
		}
	}
	if changes, place, err = s.apply(writes, dispatched); err != nil {
		return nil, nil, place, err
	}
	s.tasks, s.Since, s.Total = rest, s.Since+1, s.Total+1
	for _, k := range merged {
		s.Completed = distinct(s.Completed, k.Node)
	}
	if len(rest) == 0 {
		for _, node := range s.Completed {
			if slices.Contains(s.PauseAt.After, node) {
				s.After = append(s.After, node)
			}
		}
	}
	return changes, merged, "", nil
}

// apply makes writes, which are in planned order, a part of the state. After an error nothing has changed; place is where
// it failed.
func (s *superstep) apply(writes map[string][]write, dispatched []scheduled) (changes []change, place string, err error) {
	state, passed := maps.Clone(s.state), slices.Clone(s.Passed)
	for _, name := range slices.Sorted(maps.Keys(writes)) {
		c, current := s.Channels[name], s.state[name]
		if i := slices.Index(passed, name); i >= 0 { // a barrier begins another round
			current, passed = json.RawMessage("{}"), slices.Delete(passed, i, i+1)
		}
		value, added, err := c.merge(name, current, writes[name])
		if err != nil {
			if fault.Of(err).Kind == fault.Internal { // another definition has left a value of another kind
				err = fault.New(fault.ReducerFailed, "What %q writes does not fit what the channel %q holds: %v.", writes[name][0].node, name, err).Because(err)
			}
			return nil, atMerge, err
		}
		if c.kind != kindEphemeral {
			state[name] = value
		}
		changes = append(changes, change{name, s.Versions[name] + 1, value, added, c.kind == kindEphemeral})
	}
	if err := s.bounded(state, dispatched...); err != nil {
		return nil, atMerge, err
	}
	if err := s.validate(State{state}); err != nil {
		return nil, atValidator, err
	}
	s.state, s.Passed, s.Dynamic = state, passed, dispatched
	for _, c := range changes {
		s.Versions[c.channel] = c.version
	}
	return changes, "", nil
}

func (p *program) validate(state State) (err error) {
	if p.Validate == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			err = fault.New(fault.StateInvalid, "The check of the state panicked.").Because(fmt.Errorf("%v", v))
		}
	}()
	if err := p.Validate(state); err != nil {
		return fault.New(fault.StateInvalid, "%v", err).Because(err)
	}
	return nil
}

// missing is a node that the thread needs and the program lacks; empty: there is none.
func (s *superstep) missing() string {
	gone := func(node string) bool {
		_, is := s.Nodes[node]
		return !is && node != Start
	}
	nodes := slices.Concat(s.Completed, s.Deferred, s.After)
	for _, t := range s.tasks {
		nodes = append(nodes, t.Node)
	}
	for _, d := range s.Dynamic {
		nodes = append(nodes, d.Node)
	}
	if i := slices.IndexFunc(nodes, gone); i >= 0 {
		return nodes[i]
	}
	return ""
}

// goTo drops all pending work and continues with a node.
func (s *superstep) goTo(node string, id func() int) error {
	if _, is := s.Nodes[node]; !is {
		return fault.New(fault.UnknownNode, "The directive names the node %q, which the workflow %q does not have.", node, s.ID)
	}
	s.tasks = []*task{{ID: id(), Node: node, Phase: open, Go: &nodeTask{}}}
	s.Completed, s.Dynamic, s.Deferred, s.After, s.Since = nil, nil, nil, nil, 0
	return nil
}

// update writes channels from outside, before the thread continues.
func (s *superstep) update(values map[string]any) ([]change, error) {
	writes := map[string][]write{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := accepts(s.Channels, name, byDirective); err != nil {
			return nil, err
		}
		value, err := plain(fmt.Sprintf("%s for the channel %q", byDirective, name), values[name])
		if err != nil {
			return nil, err
		}
		writes[name] = []write{{byDirective, value}}
	}
	changes, _, err := s.apply(writes, s.Dynamic)
	return changes, err
}
