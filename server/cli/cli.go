// Package cli is the command line of agentd: one table of commands, and one file for the work of each.
//
// Results go to stdout, everything else to stderr. A failure is rendered once, by [call.exit].
package cli

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"slices"
	"strings"

	"agentd/server/config"
	"agentd/server/fault"
)

// Exit codes, the same for every command.
const (
	exitOK       = 0
	exitFailed   = 1
	exitUsage    = 2
	exitAwaiting = 3 // the run waits for an approval
)

// Main carries out a command line, without the program's name, and returns the exit code. env is the environment as
// [os.Environ] gives it; secrets and the environment of programs are taken from the process's own. The end of ctx
// counts as SIGTERM.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) int {
	c := &call{stdin: stdin, stdout: stdout, stderr: stderr, env: env, flags: defaults}
	return c.exit(c.dispatch(ctx, args))
}

// A call is one command line that is carried out.
type call struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            []string

	cmd   *command
	flags options
	args  []string       // the positional ones
	cfg   *config.Config // of commands with --config
}

func (c *call) dispatch(ctx context.Context, args []string) error {
	c.flags.json = slices.Contains(args, "--json") || slices.Contains(args, "-json") // also for errors in the line itself
	if len(args) == 0 {
		text, _ := helpOn(nil)
		io.WriteString(c.stderr, text) //nolint:errcheck // there is nowhere left to report it
		return exitCode(exitUsage)
	}
	switch word := args[0]; {
	case slices.Contains(helpFlags, word):
		args = []string{"help"}
	case word == "-version", word == "--version":
		args[0] = "version"
	}
	cmd, rest, err := find(args)
	if err != nil {
		return err
	}
	c.cmd = cmd
	if c.args, err = cmd.parse(rest, &c.flags); errors.Is(err, flag.ErrHelp) {
		_, err = io.WriteString(c.stdout, cmd.help())
		return err
	}
	if err != nil {
		return err
	}
	if strings.HasPrefix(cmd.flags, "config ") && !cmd.lenient {
		if c.cfg, err = c.load(); err != nil {
			return err
		}
	}
	return cmd.run(c, ctx)
}

// getenv is the value of a variable, empty when it is not set.
func (c *call) getenv(name string) string {
	for _, entry := range slices.Backward(c.env) {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}

// log is the log of commands that serve nothing: warnings and worse, for people.
func (c *call) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(c.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func usage(format string, args ...any) *fault.Error { return fault.New(fault.Usage, format, args...) }
