package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"unicode/utf8"

	"agentd/server"
	"agentd/server/client"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/rest"
)

// maxInput is how much of stdin is taken as input.
const maxInput = 64 << 20

func (c *call) run(ctx context.Context) error {
	input, err := c.input()
	if err != nil {
		return err
	}
	body := rest.RunBody{SessionID: c.flags.session, UserID: c.flags.user}
	if body.Input, err = message.Encode(input); err != nil {
		return err
	}
	defer surviveClosedPipe()()
	return interruptible(ctx, func(ctx context.Context) error {
		f, err := c.begin(ctx, body)
		if err != nil && ctx.Err() != nil {
			return fault.New(fault.RunAborted, "Interrupted before the run began.").Advise("Run the command again.")
		}
		if err != nil {
			return err
		}
		f.asker = c.newAsker()
		return errors.Join(f.follow(ctx), f.d.close())
	})
}

// input is the second argument or what comes on stdin. It is read before the store is opened, so that runs can be put
// in a pipe: each waits here until the one before has ended.
func (c *call) input() (string, error) {
	if len(c.args) == 2 && c.args[1] != "-" {
		return c.args[1], checkText(c.args[1])
	}
	if len(c.args) == 1 && isTerminal(c.stdin) {
		return "", c.cmd.misused("the input is missing: pass it as an argument, or on stdin.")
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

// begin starts a run, whose events then come.
func (c *call) begin(ctx context.Context, body rest.RunBody) (f *follower, err error) {
	id := c.args[0]
	if _, ok := c.cfg.Agents[id]; !ok {
		if remote, err := c.holder(); err == nil && remote == nil { // before a database is made for nothing
			return nil, c.undeclared(id)
		}
	}
	text, err := message.Encode(body)
	if err != nil {
		return nil, err
	}
	d, err := c.open(ctx, server.Run)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	// An interruption waits until the run has begun, because only then it can be aborted.
	res, err := d.Send(context.WithoutCancel(ctx), "POST", at("/agents", id, "/stream"), text,
		http.Header{"Accept": {"text/event-stream, application/json"}, "Content-Type": {"application/json"}})
	switch {
	case fault.Is(err, fault.ConfigInvalid):
		return nil, advised(err, "Correct the flags or the input that the issues name.")
	case err != nil:
		return nil, err
	case client.IsStream(res):
		return c.newFollower(d, res.Header.Get("X-Run-Id"), res), nil
	}
	defer res.Body.Close()
	var started rest.RunStarted
	json.NewDecoder(res.Body).Decode(&started) //nolint:errcheck // then the id is unknown
	return nil, fault.New(fault.ServerUnreachable, "The server at %s started the run %s, but sends no events (server.sse.enabled).", d.URL(), started.RunID).
		Advise("Read its state with `agentd runs show " + started.RunID + "`.")
}
