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
	fs.StringVar(&o.config, "config", "", "the configuration `FILE`; default: $AGENTD_CONFIG, else ./agentd.json")
}

func jsonFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.json, "json", false, "write JSON to stdout, errors too")
}

func devFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.dev, "dev", false, "use the built-in demo, with its data in ./.agentd-dev, and no other configuration")
}

func startFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.host, "host", "", "listen on this `ADDRESS` instead of server.host")
	fs.StringVar(&o.port, "port", "", "listen on this `PORT` instead of server.port; 0 takes a free one")
	fs.StringVar(&o.readyFile, "ready-file", "", `write {"host","port","pid"} to this `+"`FILE`"+` when ready`)
}

func runFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.session, "session", "", "make the run part of the session with this `ID`, which is made if need be")
	fs.StringVar(&o.user, "user", "", "run for the user with this `ID`")
}

func verboseFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.verbose, "verbose", false, "tell about steps and tools on stderr, also where that is no terminal")
}

func listFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.status, "status", "", "only runs with this `STATUS`: pending, running, awaiting_approval, completed, failed or aborted")
	fs.StringVar(&o.agent, "agent", "", "only runs of the agent with this `ID`")
	fs.IntVar(&o.limit, "limit", 20, "at most this `NUMBER` of runs, up to 1000")
}

func reasonFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.reason, "reason", "", "why, as a `TEXT`: it is recorded, and the model is told of a denial")
}

func againFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.again, "again", false, "make calls once more, too, that may have happened already")
}

func argsFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.args, "args", "", "give the call these arguments instead: `JSON`, or @FILE; only where its tool says approval.edit")
}

func abortFlags(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.drain, "drain", false, "let the current step finish")
	fs.StringVar(&o.onPending, "on-pending", "deny", "what `BECOMES` of calls that wait for approval: deny, hold (they stay as they are) or fail (so does the run)")
}

func serverFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.url, "url", "", "the `URL` of a server's API, such as https://host/v1; no configuration is read then, unless --config names one")
	fs.StringVar(&o.tokenEnv, "token-env", "", "the environment variable with the `NAME` holds the token; default: AGENTD_TOKEN")
}

func tailFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.since, "since", "", "begin after the event with this `ID`; default: with the first that is kept")
}

func sessionsFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.user, "user", "", "only sessions of the user with this `ID`")
	fs.StringVar(&o.agent, "agent", "", "only sessions with the agent with this `ID`")
}

func messagesFlags(fs *flag.FlagSet, o *options) {
	fs.IntVar(&o.limit, "limit", 1000, "at most this `NUMBER` of messages, up to 1000")
}

func exportFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.output, "o", "", "write to this `FILE`, which is replaced once all is written, instead of stdout")
}

func importFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.as, "as", "", "give the session this `ID` instead of the one in the file")
}

func runImportFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.session, "session", "", "make the run part of the session with this `ID`, in which nothing was said, instead of the one in the state")
}

func yesFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.yes, "yes", false, "do not ask")
}

func outputFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.output, "o", "", "write to this `FILE` instead of stdout; a new one only its owner may read")
}

func replayFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.agent, "agent", "", "replay with the agent with this `ID`; default: the one that was recorded")
}

func mintFlags(fs *flag.FlagSet, o *options) {
	fs.Var(&o.scopes, "scope", "what the token may do, as `resource:action[:target]`; repeat it, or separate by commas")
	fs.StringVar(&o.label, "label", "", "a `NAME` to recognise the token by")
	fs.StringVar(&o.env, "env", "", "the `ENVIRONMENT` in the token: live (default), test or local")
	fs.Var(&o.expires, "expires", "how long it is good, as a `DURATION` such as 90m, 24h or 30d; default: for ever")
}

func chainFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.file, "file", "", "the chain's `FILE`, such as a copy, instead of that of the configuration")
	fs.StringVar(&o.passphrase, "passphrase-ref", "", "where the passphrase is, as a `REF` such as env:NAME or file:PATH, instead of audit.passphraseRef")
}

func seqFlags(fs *flag.FlagSet, o *options) {
	fs.Int64Var(&o.fromSeq, "from-seq", 0, "begin with the entry of this `NUMBER`")
	fs.Int64Var(&o.toSeq, "to-seq", 0, "end with the entry of this `NUMBER`")
}

func verifyFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.checkpoints, "checkpoints", "", "the `FILE` of checkpoints to hold the chain to, such as a copy kept elsewhere")
	fs.StringVar(&o.publicKey, "public-key", "", "the `FILE` with the key that must have signed, as `agentd audit key` wrote it; without it, the chain's own word is taken")
}

func bundleKeyFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.publicKey, "public-key", "", "the `FILE` with the key that must have signed, as `agentd audit key` wrote it; without it, the bundle's own word is taken")
}

func entryFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.action, "action", "", "only entries with this `ACTION`, such as http:request")
	fs.StringVar(&o.actor, "actor", "", "only what the actor with this `ID` did")
	fs.IntVar(&o.limit, "limit", 20, "at most this `NUMBER` of entries, up to 1000")
}

func formatFlag(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.format, "format", "jsonl", "jsonl (canonical JSON, an entry on a line) or csv, as a `FORMAT`")
}

func pruneFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.before, "before", "", "delete what is older than this `TIME`: a date such as 2026-01-31, or an age such as 90d")
	fs.Int64Var(&o.retain, "retain", 1, "keep at least this `NUMBER` of entries")
}

func rawFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.raw, "raw", false, "show the operator's system messages, too")
}

func acceptFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.reason, "reason", "", "why, as a `TEXT`, which is recorded")
}

func allFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.all, "all", false, "list revoked tokens too")
}

func secretsFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.secretsSource, "secrets-source", "", "use this `STORE` instead of secrets.source: auto, encrypted-file or env, or several with commas")
	fs.BoolVar(&o.strictSecrets, "strict-secrets", false, "use no other store when the first is not available, as secrets.strict does")
}

func valueFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.value, "value", "", "the value, as a `TEXT`; others on this machine can see it, and your shell remembers it")
	fs.BoolVar(&o.fromStdin, "from-stdin", false, "read the value from stdin, without one line break at its end")
}

func newValueFlags(fs *flag.FlagSet, o *options) {
	fs.StringVar(&o.newValue, "new-value", "", "the new value, as a `TEXT`; default: 32 random bytes in hexadecimal")
	fs.BoolVar(&o.fromStdin, "from-stdin", false, "read the new value from stdin, without one line break at its end")
}

func revealFlag(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.reveal, "reveal", false, "write the value to stdout")
}

func doctorFlags(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.offline, "offline", false, "only tell what the server could contact, and fail if that is anything beyond this machine")
	fs.BoolVar(&o.fixPerms, "fix-perms", false, "take the rights of others off the files and the folder that the server owns")
}

func helpFlags(fs *flag.FlagSet, o *options) {
	fs.BoolVar(&o.names, "names", false, "only the names of the commands, one a line")
	fs.BoolVar(&o.complete, "complete", false, "what the last word after -- may become, one a line, for completion in a shell")
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
