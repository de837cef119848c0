package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"agentd/server/agent"
	"agentd/server/config"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/message"
)

// maxInput is how much of stdin is taken as input.
const maxInput = 64 << 20

// A following is a run that is watched. There are two: one in this process and one in a server.
type following interface {
	id() string
	// follow yields the run's events in their order, each at most once, until the run has ended or waits for an
	// approval. No durable event is missing; transient ones may be.
	follow(ctx context.Context, yield func(*hub.Entry)) error
	// resume decides on calls of a run that waits, and follows it from there. Errors of the decision: run-conflict,
	// run-not-suspended, and those of the way to the server.
	resume(ctx context.Context, decisions []agent.Decision, yield func(*hub.Entry)) error
	// abort asks for the run's end; follow tells when it has come.
	abort(ctx context.Context) error
	close() error
}

func (c *call) run(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	input, err := c.input()
	if err != nil {
		return err
	}
	req := agent.StartRequest{AgentID: c.args[0], By: "cli", MayJoin: true, SessionID: c.flags.session, UserID: c.flags.user}
	if req.Input, err = message.Encode(input); err != nil {
		return err
	}
	defer surviveClosedPipe()()
	return interruptible(ctx, func(ctx context.Context) error {
		f, err := c.begin(ctx, cfg, req)
		if err != nil {
			if ctx.Err() != nil {
				return fault.New(fault.RunAborted, "Interrupted before the run had begun.").Advise("Run it again.")
			}
			return err
		}
		return errors.Join(c.watch(ctx, f, c.newAsker(), f.follow), f.close())
	})
}

// input is the second argument or what comes on stdin. It is read before the store is opened, so that runs can be put
// in a pipe: each waits here until the one before has ended.
func (c *call) input() (string, error) {
	if len(c.args) == 2 && c.args[1] != "-" {
		return c.args[1], checkText(c.args[1])
	}
	if len(c.args) == 1 && isTerminal(c.stdin) {
		return "", c.cmd.misused("there is no input: give it as an argument, or pipe it in.")
	}
	if c.stdin == nil {
		return "", nil
	}
	b, err := io.ReadAll(io.LimitReader(c.stdin, maxInput+1))
	if err != nil {
		return "", fmt.Errorf("reading stdin: %w", err)
	}
	if len(b) > maxInput {
		return "", fault.New(fault.BodyTooLarge, "The input is larger than %d MiB.", maxInput>>20).Advise("Send less.")
	}
	return string(b), checkText(string(b))
}

func checkText(s string) error {
	if utf8.ValidString(s) {
		return nil
	}
	return fault.Invalid("The input is not UTF-8 text.").Advise("Encode it as text first, for instance with base64.")
}

// begin starts the run here or, where a server holds the store, there.
func (c *call) begin(ctx context.Context, cfg *config.Config, req agent.StartRequest) (following, error) {
	if _, ok := cfg.Agents[req.AgentID]; !ok {
		if remote, err := c.holder(cfg); err == nil && remote == nil { // before a database is made for nothing
			return nil, undeclared(cfg, req.AgentID)
		}
	}
	local, remote, err := c.open(ctx, cfg)
	if remote != nil {
		// An interruption waits until the run has begun, because only then it can be aborted.
		return startRemote(context.WithoutCancel(ctx), remote, req)
	}
	if err != nil {
		return nil, err
	}
	f, err := c.startLocal(ctx, local, req)
	if err != nil {
		local.Close() //nolint:errcheck // the first error is the one to report
		return nil, localHint(err, cfg, req)
	}
	return f, nil
}

// localHint makes errors that speak of routes speak of this command line.
func localHint(err error, cfg *config.Config, req agent.StartRequest) error {
	switch f := fault.Of(err); f.Kind {
	case fault.RouteHandlerMissing:
		return undeclared(cfg, req.AgentID)
	case fault.SessionBusy:
		return f.Advise("Wait for that run; if its process was killed, `agentd start` takes it up.")
	case fault.ConfigInvalid:
		return f.Advise("Correct the flags or the input that the issues name.")
	}
	return err
}

// errFollowed ends what belongs to a run that has been followed to its end.
var errFollowed = errors.New("followed to the end")

// abortPatience bounds the request for an abort.
const abortPatience = 15 * time.Second

// watch prints what begin brings of a run, and then, where there is an asker, what follows on its decisions, until the
// run has ended. It aborts the run when ctx ends or nobody reads what is printed.
func (c *call) watch(ctx context.Context, f following, asker *asker, begin func(context.Context, func(*hub.Entry)) error) error {
	p := newPrinter(c)
	wanted, abandon := context.WithCancelCause(ctx)
	watched, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	defer leave(nil)
	var aborting sync.WaitGroup
	aborting.Go(func() {
		<-wanted.Done()
		if context.Cause(wanted) == errFollowed {
			return
		}
		limit, cancel := context.WithTimeout(watched, abortPatience)
		defer cancel()
		if err := f.abort(limit); err != nil {
			leave(err)
		}
	})
	show := func(e *hub.Entry) {
		p.show(e)
		if p.broken != nil {
			abandon(p.broken)
		}
	}
	err := begin(watched, show)
	for err == nil && asker != nil && p.waits() {
		if wanted.Err() != nil {
			aborting.Wait()
			if p.end.Result.Error != nil { // it ends once a person has decided, and nothing else moves it
				break
			}
			err = f.follow(watched, show)
			continue
		}
		var decisions []agent.Decision
		var abort, moved bool
		moved, err = asker.meanwhile(wanted, watched, f, show, func(ctx context.Context) {
			if decisions, abort = asker.ask(ctx, p.end.Result.State.PendingApprovals); abort {
				abandon(errInterrupted)
			}
		})
		switch {
		case moved, err != nil, wanted.Err() != nil:
		case len(decisions) > 0:
			err = f.resume(watched, decisions, show)
			if fault.Is(err, fault.RunConflict) || fault.Is(err, fault.RunNotSuspended) || fault.Is(err, fault.ApprovalNotWaiting) { // somebody else was faster
				err = f.follow(watched, show)
			}
		default:
			asker = nil
		}
	}
	abandon(errFollowed)
	aborting.Wait()
	switch {
	case errors.Is(err, errVoted):
		fmt.Fprintf(c.stderr, "agentd: the decision counts, but run %s needs the word of others, too; ask with `agentd runs show %[1]s`\n", f.id())
		return exitCode(exitAwaiting)
	case err != nil:
		return err
	case p.broken != nil:
		return exitCode(exitFailed) // nobody reads what could be said
	}
	return c.verdict(p, f.id())
}

var (
	errMoved    = errors.New("the run has moved on")
	errAnswered = errors.New("the person has answered")
)

// lookAgain is how long to wait before a run is looked at again whose events do not come.
const lookAgain = time.Second

// meanwhile asks a person about a run that waits and ends the question when the run moves, because somebody else has
// decided, or an approval has expired. Then it follows the run until that has ended or waits again.
func (a *asker) meanwhile(wanted, watched context.Context, f following, show func(*hub.Entry), ask func(context.Context)) (moved bool, err error) {
	asking, stop := context.WithCancelCause(wanted)
	defer stop(nil)
	looking, leave := context.WithCancelCause(watched)
	defer leave(nil)
	answered := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			err = f.follow(looking, func(e *hub.Entry) {
				if !moved {
					moved = true
					stop(errMoved)
					<-answered
				}
				show(e)
			})
			if moved || looking.Err() != nil {
				return
			}
			select { // the person is asked all the same
			case <-time.After(lookAgain):
			case <-looking.Done():
				return
			}
		}
	})
	ask(asking)
	leave(errAnswered)
	close(answered)
	watching.Wait()
	switch {
	case !moved:
		return false, nil
	case errors.Is(err, errAnswered):
		err = f.follow(watched, show)
	}
	return true, err
}

// errVoted says that decisions count, but that the run waits for further approvers as before.
var errVoted = errors.New("further approvers are needed")

// followed reports whether an entry ends what there is to follow.
func followed(e *hub.Entry) bool { return e.Lifecycle != "" || e.Type == event.AgentEnd }
