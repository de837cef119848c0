package cli

import (
	"context"
	"math"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/server/manual"
)

// A command is one row of the table, with its section of the manual's page on commands.
type command struct {
	name  string // one word, or a group and a word
	flags string // names of rows of the table of flags
	needs string // a flag without which it does not work
	lines bool   // with --json it writes one document on each line
	fails int    // the exit code of errors; 0: 1
	// lenient is for commands that load the configuration themselves, to report what is wrong with it.
	lenient bool
	// beside is for commands about tokens: without --url, they work on the files also while a server runs, because its
	// first token has to come from somewhere.
	beside bool
	run    func(*call, context.Context) error

	args                  string // the positional arguments, for people
	summary, about, exits string
	examples              []string
}

const (
	throughServer = "\n\nWhen a server holds the database, or --url names one, the command goes through that server, with the token in\n" +
		"AGENTD_TOKEN or in the variable that --token-env names."
	usualExits = "0 done; 1 failed; 2 wrong usage"
)

// commands is the table.
func commands() []command {
	all := []command{
		{name: "init", flags: "templates json", run: (*call).init},
		{name: "start", flags: "config host port ready-file secrets-source strict-secrets dev json", lines: true, run: (*call).start},
		{name: "run", flags: "config url token-env session user verbose dev json", lines: true, run: (*call).run},
		{name: "migrate", flags: "config dev json", run: (*call).migrate},
		{name: "agents list", flags: "config url token-env dev json", run: (*call).listAgents},
		{name: "agents show", flags: "config url token-env dev json", run: (*call).showAgent},
		{name: "runs list", flags: "config url token-env agent limit status dev json", run: (*call).listRuns},
		{name: "runs show", flags: "config url token-env raw dev json", run: (*call).showRun},
		{name: "runs approve", flags: "config url token-env reason again args dev verbose json", lines: true, run: (*call).approve},
		{name: "runs deny", flags: "config url token-env reason dev verbose json", lines: true, run: (*call).deny},
		{name: "runs abort", flags: "config url token-env drain on-pending dev json", run: (*call).abortRun},
		{name: "runs cassette", flags: "config url token-env o dev json", lines: true, run: (*call).cassette},
		{name: "runs import", flags: "config url token-env session.import dev json", run: (*call).importRun},
		{name: "replay", flags: "config agent.replay json", fails: exitUsage, run: (*call).replay},
		{name: "tail", flags: "config url token-env since dev verbose json", lines: true, run: (*call).tail},
		{name: "approvals", flags: "config url token-env dev json", run: (*call).approvals},
		{name: "workflows graph", flags: "config url token-env format.graph thread.graph dev json", run: (*call).drawWorkflow},
		{name: "workflows list", flags: "config url token-env dev json", run: (*call).listWorkflows},
		{name: "workflows show", flags: "config url token-env dev json", run: (*call).showWorkflow},
		{name: "workflows run", flags: "config url token-env thread session.thread user verbose dev json", lines: true, run: (*call).runWorkflow},
		{name: "workflows resume", flags: "config url token-env name allow-version-mismatch dev json", run: (*call).resumeThread},
		{name: "workflows retry", flags: "config url token-env status.threads all.threads allow-version-mismatch dev json", run: (*call).retryThread},
		{name: "workflows abort", flags: "config url token-env status.threads all.threads dev json", run: (*call).abortThread},
		{name: "workflows threads", flags: "config url token-env status.threads session.threads blocked limit dev json", run: (*call).listThreads},
		{name: "workflows state", flags: "config url token-env dev json", run: (*call).showThread},
		{name: "workflows checkpoints", flags: "config url token-env limit dev json", run: (*call).listCheckpoints},
		{name: "workflows delete", flags: "config url token-env status.threads all.threads yes dev json", run: (*call).deleteThread},
		{name: "triggers list", flags: "config url token-env dev json", run: (*call).listTriggers},
		{name: "triggers show", flags: "config url token-env dev json", run: (*call).showTrigger},
		{name: "triggers fire", flags: "config url token-env dev json", run: (*call).fireTrigger},
		{name: "triggers emit", flags: "config url token-env id dev json", run: (*call).emitEvent},
		{name: "triggers enable", flags: "config url token-env dev json", run: (*call).enableTrigger},
		{name: "triggers disable", flags: "config url token-env dev json", run: (*call).disableTrigger},
		{name: "triggers delete", flags: "config url token-env yes dev json", run: (*call).deleteTrigger},
		{name: "triggers prune", flags: "config url token-env disabled orphaned yes dev json", run: (*call).pruneTriggers},
		{name: "triggers firings", flags: "config url token-env limit dev json", run: (*call).listFirings},
		{name: "triggers next", flags: "config url token-env limit dev json", run: (*call).listDues},
		{name: "notify list", flags: "config url token-env state.notify limit dev json", run: (*call).listNotifications},
		{name: "notify retry", flags: "config url token-env target dev json", run: (*call).retryNotifications},
		{name: "notify test", flags: "config url token-env target dev json", run: (*call).testNotifications},
		{name: "sessions list", flags: "config url token-env agent.sessions user.sessions dev json", run: (*call).listSessions},
		{name: "sessions show", flags: "config url token-env dev json", run: (*call).showSession},
		{name: "sessions messages", flags: "config url token-env limit.messages dev json", run: (*call).showMessages},
		{name: "sessions export", flags: "config url token-env o dev json", lines: true, run: (*call).exportSession},
		{name: "sessions import", flags: "config url token-env as dev json", run: (*call).importSession},
		{name: "sessions close", flags: "config url token-env dev json", run: (*call).closeSession},
		{name: "sessions delete", flags: "config url token-env yes dev json", run: (*call).deleteSession},
		{name: "retention show", flags: "config url token-env dev json", run: (*call).showRetention},
		{name: "retention run", flags: "config url token-env dry-run dev json", run: (*call).runRetention},
		{name: "spans export", flags: "config url token-env since.spans until run session.spans dev json", lines: true, run: (*call).exportSpans},
		{name: "token create", flags: "config url token-env env expires label scope json", needs: "scope", beside: true, run: (*call).createToken},
		{name: "token list", flags: "config url token-env all json", beside: true, run: (*call).listTokens},
		{name: "token revoke", flags: "config url token-env json", beside: true, run: (*call).revokeToken},
		{name: "secrets set", flags: "config from-stdin value secrets-source strict-secrets json", run: (*call).setSecret},
		{name: "secrets get", flags: "config reveal secrets-source strict-secrets json", run: (*call).getSecret},
		{name: "secrets list", flags: "config secrets-source strict-secrets json", run: (*call).listSecrets},
		{name: "secrets delete", flags: "config secrets-source strict-secrets json", run: (*call).deleteSecret},
		{name: "secrets rotate", flags: "config from-stdin new-value reveal secrets-source strict-secrets json", run: (*call).rotateSecret},
		{name: "secrets ref", flags: "config reveal secrets-source strict-secrets json", run: (*call).tryRef},
		{name: "secrets doctor", flags: "config secrets-source strict-secrets json", lenient: true, run: (*call).secretsDoctor},
		{name: "doctor", flags: "config fix-perms offline secrets-source strict-secrets dev json", lenient: true, run: (*call).doctor},
		{name: "storage status", flags: "config dev json", run: (*call).storageStatus},
		{name: "storage backup", flags: "config dev json", run: (*call).backupStorage},
		{name: "storage restore", flags: "config accept-new-pepper resume-runs dev json", run: (*call).restoreStorage},
		{name: "storage verify", flags: "config dev json", run: (*call).verifyStorage},
		{name: "storage compact", flags: "config dev json", run: (*call).compactStorage},
		{name: "audit verify", flags: "config file passphrase-ref checkpoints public-key from-seq to-seq dev json", run: (*call).verifyAudit},
		{name: "audit list", flags: "config file passphrase-ref action actor limit from-seq to-seq dev json", run: (*call).listAudit},
		{name: "audit export", flags: "config file passphrase-ref format o from-seq to-seq dev json", lines: true, run: (*call).exportAudit},
		{name: "audit prune", flags: "config file passphrase-ref before retain dev json", needs: "before", run: (*call).pruneAudit},
		{name: "audit accept", flags: "config reason.accept dev json", needs: "reason", run: (*call).acceptAudit},
		{name: "audit key", flags: "config file passphrase-ref dev json", run: (*call).auditKey},
		{name: "evidence", flags: "config o json", run: (*call).evidence},
		{name: "evidence verify", flags: "public-key.bundle json", run: (*call).verifyEvidence},
		{name: "config check", flags: "config json", run: (*call).checkConfig},
		{name: "config print", flags: "config json", run: (*call).printConfig},
		{name: "config schema", flags: "json", run: (*call).printSchema},
		{name: "version", flags: "sbom verify json", run: (*call).version},
		{name: "completion", run: (*call).completion},
		{name: "help", flags: "complete names", run: (*call).help},
	}
	sections := strings.Split(manual.Page("commands"), "\n## ")[1:]
	for i := range all {
		all[i].describe(sections[i])
	}
	return all
}

// describe takes over a section: a head with the name and the arguments, a summary, paragraphs, examples, which are indented, and the exit
// codes if they are special.
func (cmd *command) describe(section string) {
	head, text, _ := strings.Cut(section, "\n\n")
	args, own := strings.CutPrefix(head, cmd.name)
	if !own {
		panic("the manual describes " + head + " where " + cmd.name + " belongs")
	}
	cmd.args = strings.TrimSpace(args)
	cmd.summary, text, _ = strings.Cut(text, "\n\n")
	cmd.about, text, _ = strings.Cut(text, "\n\n    ")
	examples, exits, _ := strings.Cut(strings.TrimSpace(text), "\n\nExit codes: ")
	cmd.examples = strings.Split(examples, "\n    ")
	if cmd.exits = strings.TrimSuffix(exits, "."); exits == "" {
		cmd.exits = usualExits
	}
	if strings.Contains(cmd.flags, "token-env") && !strings.Contains(cmd.about, "--url") {
		cmd.about += throughServer
	}
}

// takes is how many positional arguments the command takes. One in brackets may be left out, and one with dots be repeated.
func (cmd *command) takes() (least, most int) {
	for word := range strings.FieldsSeq(cmd.args) {
		if most++; !strings.HasPrefix(word, "[") {
			least = most
		}
		if strings.Contains(word, "...") {
			most = math.MaxInt
		}
	}
	return least, most
}

// find takes the longest name of a command from the beginning of args.
func find(args []string) (cmd *command, rest []string, err error) {
	table := commands()
	for words := min(2, len(args)); words > 0; words-- {
		name := strings.Join(args[:words], " ")
		for i := range table {
			if table[i].name == name {
				return &table[i], args[words:], nil
			}
		}
	}
	word := args[0]
	members := following(word + " ")
	hint := "Run `agentd help " + word + "`."
	switch {
	case members == nil && strings.HasPrefix(word, "-"):
		return nil, nil, usage("%q is not a command; flags follow the command.", word)
	case members == nil:
		return nil, nil, unknown("command", word, following(""))
	case len(args) == 1:
		return nil, nil, usage("%s needs one of %s.", word, strings.Join(members, ", ")).Advise(hint)
	case slices.Contains(helpFlags, args[1]):
		return find([]string{"help", word})
	}
	for i, member := range members {
		members[i] = word + " " + member
	}
	return nil, nil, unknown("command", word+" "+args[1], members).Advise(hint)
}

var helpFlags = []string{"-h", "-help", "--help"}

// unknown reports a word that is none of the known ones, and the nearest of them.
func unknown(what, word string, known []string) *fault.Error {
	e := usage("There is no %s %q.", what, word)
	if best := fault.Nearest(word, known); best != "" {
		e.Message += " Did you mean " + best + "?"
	}
	return e
}

// following lists the words that follow a prefix in the names of commands.
func following(prefix string) (words []string) {
	for _, cmd := range commands() {
		rest, ok := strings.CutPrefix(cmd.name, prefix)
		if word, _, _ := strings.Cut(rest, " "); ok && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words
}
