package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentd/server/audit/export"
	"agentd/server/fault"
	"agentd/server/graph"
)

// options are the values of all flags, as the table of flags explains them. Each command declares those that it takes.
type options struct {
	config, url, tokenEnv, secretsSource                                        string
	host, port, readyFile                                                       string
	agent, session, user, status, since, state, target, reason, args, onPending string
	until, run                                                                  string
	thread, name, id                                                            string
	output, as, label, env, value, newValue                                     string
	file, checkpoints, publicKey, passphrase                                    string
	action, actor, before, format, drawing                                      string
	templates, checksums                                                        string
	limit, messages                                                             count
	fromSeq, toSeq, retain                                                      int64
	scopes                                                                      list
	expires                                                                     expiry

	dev, json, verbose, again, drain, raw, yes, all     bool
	blocked, mismatch                                   bool
	fromStdin, reveal, strictSecrets, offline, fixPerms bool
	names, complete, sbom                               bool
	disabled, orphaned                                  bool
	newPepper, resumeRuns, dryRun                       bool
}

// defaults are the values of flags that are not given.
var defaults = options{limit: 20, messages: 1000, retain: 1, onPending: "deny", format: export.JSONL, drawing: graph.Formats[0]}

// A flagRow declares a flag: its name, where a dot and a word after it set it apart from other flags of that name; where its value
// goes, which may be a *string, *bool, *int64 or flag.Value; and its text, with the name of the value in back quotes.
type flagRow struct {
	name  string
	value any
	text  string
}

// table is the table of flags.
func (o *options) table() []flagRow {
	return []flagRow{
		{"config", &o.config, "the configuration `FILE`; default: $AGENTD_CONFIG, otherwise ./agentd.json"},
		{"json", &o.json, "write JSON to stdout, also for errors"},
		{"dev", &o.dev, "use the built-in demo, with its data in ./.agentd-dev, instead of a configuration"},
		{"host", &o.host, "listen on this `ADDRESS` instead of server.host"},
		{"port", &o.port, "listen on this `PORT` instead of server.port; 0 takes a free one"},
		{"ready-file", &o.readyFile, `write {"host","port","pid"} to this ` + "`FILE`" + ` when ready`},
		{"session", &o.session, "add the run to the session with this `ID`, which is created if necessary"},
		{"user", &o.user, "run for the user with this `ID`"},
		{"verbose", &o.verbose, "show steps and tools on stderr, also if it is not a terminal"},
		{"status", choice{&o.status, []string{"pending", "running", "suspended", "awaiting_approval", "completed", "failed", "aborted"}},
			"only runs with this `STATUS`: pending, running, suspended, awaiting_approval, completed, failed or aborted"},
		{"status.threads", choice{&o.status, []string{"running", "suspended", "awaiting_approval", "completed", "failed", "aborted"}},
			"only threads with this `STATUS`: running, suspended, awaiting_approval, completed, failed or aborted"},
		{"state.notify", choice{&o.state, []string{"waiting", "delivered", "dead"}}, "only notifications in this `STATE`: waiting, delivered or dead"},
		{"target", &o.target, "the `RECEIVER`, as `agentd notify list` shows it"},
		{"all.threads", &o.all, "all threads with the --status"},
		{"thread", &o.thread, "the `ID` of the thread; default: a new one"},
		{"thread.graph", &o.thread, "mark what the thread with this `ID` has done, and where it is"},
		{"session.threads", &o.session, "only threads of the session with this `ID`"},
		{"session.thread", &o.session, "link the thread to the session with this `ID`, which is created if necessary"},
		{"blocked", &o.blocked, "only threads that are due and cannot continue before somebody resumes them"},
		{"name", &o.name, "answer the wait with this `NAME`; default: the only one"},
		{"id", &o.id, "the `ID` of the event, so that it fires nothing if it comes again; default: a new one"},
		{"disabled", &o.disabled, "delete the triggers that are disabled"},
		{"orphaned", &o.orphaned, "delete the triggers that the configuration does not declare any more"},
		{"allow-version-mismatch", &o.mismatch, "continue under the present definition of the workflow, although its version has changed"},
		{"agent", &o.agent, "only runs of the agent with this `ID`"},
		{"limit", &o.limit, "at most this `NUMBER`, up to 1000"},
		{"reason", &o.reason, "the reason, as a `TEXT`; it is recorded, and the model learns the reason of a denial"},
		{"again", &o.again, "also make calls once more that may already have taken effect"},
		{"args", &o.args, "give the call these arguments instead: `JSON`, or @FILE; the tool must have approval.edit"},
		{"drain", &o.drain, "let the current step finish"},
		{"on-pending", choice{&o.onPending, []string{"deny", "hold", "fail"}}, "the `FATE` of waiting calls: deny, hold (they still wait) or fail (the run fails)"},
		{"url", &o.url, "the `URL` of a server's API, such as https://host/v1; the command then reads a configuration only if --config names one"},
		{"token-env", &o.tokenEnv, "the `NAME` of the environment variable with the token; default: AGENTD_TOKEN"},
		{"since", &o.since, "begin after the event with this `ID`; default: with the first kept event"},
		{"since.spans", &o.since, "only spans that ended at or after this `TIME`: a date such as 2026-01-31 or 2026-01-31T12:00:00Z, or milliseconds since 1970"},
		{"until", &o.until, "only spans that ended before this `TIME`, in the same form"},
		{"run", &o.run, "only spans of the run with this `ID` and of its descendants"},
		{"session.spans", &o.session, "only spans of the runs of the session with this `ID`"},
		{"user.sessions", &o.user, "only sessions of the user with this `ID`"},
		{"agent.sessions", &o.agent, "only sessions of the agent with this `ID`"},
		{"limit.messages", &o.messages, "at most this `NUMBER`, up to 1000"},
		{"o", &o.output, "write to this `FILE` instead of stdout; the file is replaced after everything is written"},
		{"as", &o.as, "give the session this `ID` instead of the one in the file"},
		{"session.import", &o.session, "add the run to the empty session with this `ID` instead of the one in the state"},
		{"yes", &o.yes, "do not ask"},
		{"agent.replay", &o.agent, "replay with the agent with this `ID`; default: the recorded one"},
		{"scope", &o.scopes, "a scope, as `resource:action[:target]`; repeat the flag, or separate scopes by commas"},
		{"label", &o.label, "a `NAME` to recognise the token by"},
		{"env", &o.env, "the `ENVIRONMENT` in the token: live (default), test or local"},
		{"expires", &o.expires, "the lifetime, as a `DURATION` such as 90m, 24h or 30d; default: unlimited"},
		{"file", &o.file, "the `FILE` of the chain, such as a copy, instead of the one in the configuration"},
		{"passphrase-ref", &o.passphrase, "the reference of the passphrase, as a `REF` such as env:NAME or file:PATH, instead of audit.passphraseRef"},
		{"from-seq", &o.fromSeq, "begin with the entry with this `NUMBER`"},
		{"to-seq", &o.toSeq, "end with the entry with this `NUMBER`"},
		{"checkpoints", &o.checkpoints, "the `FILE` of checkpoints to compare the chain with, such as a copy from elsewhere"},
		{"public-key", &o.publicKey, "the `FILE` with the expected key, as `agentd audit key` wrote it; default: the key in the chain"},
		{"public-key.bundle", &o.publicKey, "the `FILE` with the expected key, as `agentd audit key` wrote it; default: the key in the bundle"},
		{"action", &o.action, "only entries with this `ACTION`, such as http:request"},
		{"actor", &o.actor, "only entries of the actor with this `ID`"},
		{"format", choice{&o.format, []string{export.JSONL, export.CSV}}, "the `FORMAT`: jsonl (canonical JSON, one entry on each line) or csv"},
		{"format.graph", choice{&o.drawing, graph.Formats}, "the `FORMAT`: " + strings.Join(graph.Formats, ", ")},
		{"before", &o.before, "delete entries older than this `TIME`: a date such as 2026-01-31, or an age such as 90d"},
		{"retain", &o.retain, "keep at least this `NUMBER` of entries"},
		{"raw", &o.raw, "also show the operator's system messages"},
		{"reason.accept", &o.reason, "the reason, as a `TEXT`; it is recorded"},
		{"all", &o.all, "also list revoked tokens"},
		{"secrets-source", &o.secretsSource, "use this `STORE` instead of secrets.source: auto, encrypted-file or env, or several with commas"},
		{"strict-secrets", &o.strictSecrets, "fail if the first store is not available, as with secrets.strict"},
		{"value", &o.value, "the value, as a `TEXT`; others on this machine can see it, and your shell stores it"},
		{"from-stdin", &o.fromStdin, "read the value from stdin, and remove one line break at its end"},
		{"new-value", &o.newValue, "the new value, as a `TEXT`; default: 32 random bytes in hexadecimal"},
		{"reveal", &o.reveal, "write the value to stdout"},
		{"offline", &o.offline, "only list what the server may contact, and fail if that includes another machine"},
		{"fix-perms", &o.fixPerms, "remove group and other permissions from the server's files and folder"},
		{"templates", &o.templates, "make the templates of deployment in the folder `DIR` instead of a configuration"},
		{"sbom", &o.sbom, "print the bill of materials: CycloneDX 1.6 in JSON"},
		{"verify", &o.checksums, "check that the `FILE` of SHA-256 checksums, as sha256sum writes it, lists this binary"},
		{"accept-new-pepper", &o.newPepper, "restore although the backup was made with another pepper; its tokens are not valid any more"},
		{"resume-runs", &o.resumeRuns, "let runs continue that were moving when the backup was made; they may do things twice"},
		{"dry-run", &o.dryRun, "only count what would be deleted"},
		{"names", &o.names, "only the names of the commands, one on each line"},
		{"complete", &o.complete, "the completions of the last word after --, one on each line, for a shell"},
	}
}

// A choice is a flag whose value is one of some words.
type choice struct {
	value *string
	words []string
}

func (v choice) String() string { return *v.value }

func (v choice) Set(text string) error {
	if !slices.Contains(v.words, text) {
		return errors.New("want one of " + strings.Join(v.words, ", "))
	}
	*v.value = text
	return nil
}

// count is how many members a list may have.
type count int

func (n *count) String() string { return strconv.Itoa(int(*n)) }

func (n *count) Set(text string) error {
	v, err := strconv.Atoi(text)
	if err != nil || v < 1 || v > 1000 {
		return errors.New("want 1 to 1000")
	}
	*n = count(v)
	return nil
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
	days, isDays := strings.CutSuffix(text, "d")
	if isDays {
		text = days + "h"
	}
	d, err := time.ParseDuration(text)
	if isDays {
		d = 24 * min(d, 100*365*time.Hour)
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
	wanted := strings.Fields(cmd.flags)
	for _, row := range o.table() {
		if !slices.Contains(wanted, row.name) {
			continue
		}
		name, _, _ := strings.Cut(row.name, ".")
		switch v := row.value.(type) {
		case *string:
			fs.StringVar(v, name, *v, row.text)
		case *bool:
			fs.BoolVar(v, name, *v, row.text)
		case *int64:
			fs.Int64Var(v, name, *v, row.text)
		case flag.Value:
			fs.Var(v, name, row.text)
		}
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
	least, most := cmd.takes()
	if n := len(positional); n < least || n > most {
		return nil, cmd.misused("%d argument(s) are given, want %s.", n, cmd.usage())
	}
	if cmd.needs != "" && fs.Lookup(cmd.needs).Value.String() == "" {
		return nil, cmd.misused("--%s is missing.", cmd.needs)
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
