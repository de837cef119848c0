package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"agentd/server/fault"
)

// options are the values of all flags; each command declares those that it takes.
type options struct {
	config string
	dev    bool
	json   bool

	host, port, readyFile string // start

	session, user string // run
	verbose       bool

	status, agent string // runs list
	limit         int
	reason        string // runs approve, deny
	again         bool   // runs approve
	args          string // runs approve
	drain         bool   // runs abort
	raw           bool   // runs show
	onPending     string

	url, tokenEnv string // of a server

	since string // tail

	output string // sessions
	as     string
	yes    bool

	scopes  list // token
	label   string
	env     string
	expires expiry
	all     bool

	value, newValue   string // secrets
	fromStdin, reveal bool
	secretsSource     string
	strictSecrets     bool

	offline, fixPerms bool // doctor

	file, checkpoints, publicKey, passphrase string // audit
	fromSeq, toSeq, retain                   int64
	action, actor, before, format            string

	names, complete bool // help
}

// A flagDecl declares one flag.
type flagDecl func(*flag.FlagSet, *options)

func configFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.config, "config", "", "the configuration `FILE`; default: $AGENTD_CONFIG, otherwise ./agentd.json")
}

func jsonFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.json, "json", false, "write JSON to stdout, also for errors")
}

func devFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.dev, "dev", false, "use the built-in demo, with its data in ./.agentd-dev, instead of a configuration")
}

func startFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.host, "host", "", "listen on this `ADDRESS` instead of server.host")
	fs.StringVar(&o.port, "port", "", "listen on this `PORT` instead of server.port; 0 takes a free one")
	fs.StringVar(&o.readyFile, "ready-file", "", `write {"host","port","pid"} to this `+"`FILE`"+` when ready`)
}

func runFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.session, "session", "", "add the run to the session with this `ID`, which is created if necessary")
	fs.StringVar(&o.user, "user", "", "run for the user with this `ID`")
}

func verboseFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.verbose, "verbose", false, "show steps and tools on stderr, also if it is not a terminal")
}

func listFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.status, "status", "", "only runs with this `STATUS`: pending, running, awaiting_approval, completed, failed or aborted")
	fs.StringVar(&o.agent, "agent", "", "only runs of the agent with this `ID`")
	fs.IntVar(&o.limit, "limit", 20, "at most this `NUMBER` of runs, up to 1000")
}

func reasonFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.reason, "reason", "", "the reason, as a `TEXT`; it is recorded, and the model learns the reason of a denial")
}

func againFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.again, "again", false, "also make calls once more that may already have taken effect")
}

func argsFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.args, "args", "", "give the call these arguments instead: `JSON`, or @FILE; the tool must have approval.edit")
}

func abortFlags(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.drain, "drain", false, "let the current step finish")
	fs.StringVar(&o.onPending, "on-pending", "deny", "the `FATE` of waiting calls: deny, hold (they still wait) or fail (the run fails)")
}

func serverFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.url, "url", "", "the `URL` of a server's API, such as https://host/v1; the command then reads a configuration only if --config names one")
	fs.StringVar(&o.tokenEnv, "token-env", "", "the `NAME` of the environment variable with the token; default: AGENTD_TOKEN")
}

func tailFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.since, "since", "", "begin after the event with this `ID`; default: with the first kept event")
}

func sessionsFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.user, "user", "", "only sessions of the user with this `ID`")
	fs.StringVar(&o.agent, "agent", "", "only sessions of the agent with this `ID`")
}

func messagesFlags(fs *flag.FlagSet, o *options) {
	fs.IntVar(&o.limit, "limit", 1000, "at most this `NUMBER` of messages, up to 1000")
}

func exportFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.output, "o", "", "write to this `FILE` instead of stdout; the file is replaced after everything is written")
}

func importFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.as, "as", "", "give the session this `ID` instead of the one in the file")
}

func runImportFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.session, "session", "", "add the run to the empty session with this `ID` instead of the one in the state")
}

func yesFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.yes, "yes", false, "do not ask")
}

func outputFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.output, "o", "", "write to this `FILE` instead of stdout; only the owner may read a new file")
}

func replayFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.agent, "agent", "", "replay with the agent with this `ID`; default: the recorded one")
}

func mintFlags(fs *flag.FlagSet, o *options) {
	fs.Var(&o.scopes, "scope", "a scope, as `resource:action[:target]`; repeat the flag, or separate scopes by commas")
	fs.StringVar(&o.label, "label", "", "a `NAME` to recognise the token by")
	fs.StringVar(&o.env, "env", "", "the `ENVIRONMENT` in the token: live (default), test or local")
	fs.Var(&o.expires, "expires", "the lifetime, as a `DURATION` such as 90m, 24h or 30d; default: unlimited")
}

func chainFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.file, "file", "", "the `FILE` of the chain, such as a copy, instead of the one in the configuration")
	fs.StringVar(&o.passphrase, "passphrase-ref", "", "the reference of the passphrase, as a `REF` such as env:NAME or file:PATH, instead of audit.passphraseRef")
}

func seqFlags(fs *flag.FlagSet, o *options) {
	fs.Int64Var(&o.fromSeq, "from-seq", 0, "begin with the entry with this `NUMBER`")
	fs.Int64Var(&o.toSeq, "to-seq", 0, "end with the entry with this `NUMBER`")
}

func verifyFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.checkpoints, "checkpoints", "", "the `FILE` of checkpoints to compare the chain with, such as a copy from elsewhere")
	fs.StringVar(&o.publicKey, "public-key", "", "the `FILE` with the expected key, as `agentd audit key` wrote it; default: the key in the chain")
}

func bundleKeyFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.publicKey, "public-key", "", "the `FILE` with the expected key, as `agentd audit key` wrote it; default: the key in the bundle")
}

func entryFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.action, "action", "", "only entries with this `ACTION`, such as http:request")
	fs.StringVar(&o.actor, "actor", "", "only entries of the actor with this `ID`")
	fs.IntVar(&o.limit, "limit", 20, "at most this `NUMBER` of entries, up to 1000")
}

func formatFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.format, "format", "jsonl", "the `FORMAT`: jsonl (canonical JSON, one entry on each line) or csv")
}

func pruneFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.before, "before", "", "delete entries older than this `TIME`: a date such as 2026-01-31, or an age such as 90d")
	fs.Int64Var(&o.retain, "retain", 1, "keep at least this `NUMBER` of entries")
}

func rawFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.raw, "raw", false, "also show the operator's system messages")
}

func acceptFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.reason, "reason", "", "the reason, as a `TEXT`; it is recorded")
}

func allFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.all, "all", false, "also list revoked tokens")
}

func secretsFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.secretsSource, "secrets-source", "", "use this `STORE` instead of secrets.source: auto, encrypted-file or env, or several with commas")
	fs.BoolVar(&o.strictSecrets, "strict-secrets", false, "fail if the first store is not available, as with secrets.strict")
}

func valueFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.value, "value", "", "the value, as a `TEXT`; others on this machine can see it, and your shell stores it")
	fs.BoolVar(&o.fromStdin, "from-stdin", false, "read the value from stdin, and remove one line break at its end")
}

func newValueFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.newValue, "new-value", "", "the new value, as a `TEXT`; default: 32 random bytes in hexadecimal")
	fs.BoolVar(&o.fromStdin, "from-stdin", false, "read the new value from stdin, and remove one line break at its end")
}

func revealFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.reveal, "reveal", false, "write the value to stdout")
}

func doctorFlags(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.offline, "offline", false, "only list what the server may contact, and fail if that includes another machine")
	fs.BoolVar(&o.fixPerms, "fix-perms", false, "remove group and other permissions from the server's files and folder")
}

func helpFlags(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.names, "names", false, "only the names of the commands, one on each line")
	fs.BoolVar(&o.complete, "complete", false, "the completions of the last word after --, one on each line, for a shell")
}

// list is a flag that may be repeated.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(text string) error {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			return errors.New("an item is empty")
		}
		*l = append(*l, item)
	}
	return nil
}

// expiry is a positive duration; days are allowed too.
type expiry time.Duration

func (e *expiry) String() string { return time.Duration(*e).String() }

func (e *expiry) Set(text string) error {
	var d time.Duration
	days, isDays := strings.CutSuffix(text, "d")
	var err error
	if isDays {
		var hours time.Duration
		hours, err = time.ParseDuration(days + "h")
		const most = 100 * 365 * time.Hour
		d = 24 * min(hours, most)
	} else {
		d, err = time.ParseDuration(text)
	}
	if err != nil || d <= 0 {
		return errors.New("want a duration such as 90m, 24h or 30d")
	}
	*e = expiry(d)
	return nil
}

// flagSet is the flags of the command, with their values in o.
func (cmd *command) flagSet(o *options) *flag.FlagSet {
	fs := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	for _, declare := range cmd.flags {
		declare(fs, o)
	}
	return fs
}

// parse reads flags, which may stand before, between and after the positional arguments, and returns the latter. What
// follows -- is positional. Errors: usage, flag.ErrHelp.
func (cmd *command) parse(args []string, o *options) (positional []string, err error) {
	fs := cmd.flagSet(o)
	for len(args) > 0 {
		if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
			return nil, err
		} else if err != nil {
			return nil, cmd.misused("%s", flagProblem(err, fs))
		}
		rest := fs.Args()
		// A -- that is the value of the flag before it ends nothing.
		if ended := len(args) - len(rest) - 1; ended >= 0 && args[ended] == "--" && cmd.flagSet(new(options)).Parse(args[:ended]) == nil {
			positional = append(positional, rest...)
			break
		}
		if len(rest) > 0 {
			positional, rest = append(positional, rest[0]), rest[1:]
		}
		args = rest
	}
	if n := len(positional); n < cmd.least || n > cmd.most {
		return nil, cmd.misused("%d argument(s) are given, want %s.", n, cmd.usage())
	}
	return positional, nil
}

// misused is the usage error of a command.
func (cmd *command) misused(format string, args ...any) error {
	return usage("%s: %s", cmd.name, fmt.Sprintf(format, args...)).Advise("Run `agentd " + cmd.name + " --help`.")
}

// flagProblem completes an unknown flag with the one that was probably meant.
func flagProblem(err error, fs *flag.FlagSet) string {
	name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !unknown {
		return err.Error() + "."
	}
	var known []string
	fs.VisitAll(func(f *flag.Flag) { known = append(known, f.Name) })
	text := "there is no flag --" + strings.TrimLeft(name, "-")
	if best := fault.Nearest(name, known); best != "" {
		return text + "; did you mean --" + best + "?"
	}
	return text + "; write -- before an argument that begins with a dash."
}
