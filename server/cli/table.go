package cli

import (
	"context"
	"slices"
	"strings"

	"agentd/server/fault"
)

// A command is one row of the table: all that is known about it.
type command struct {
	name        string // one word, or a group and a word
	args        string // the positional arguments, for people
	least, most int    // how many of them
	summary     string // one line
	about       string // what it does, in a paragraph or two
	flags       []flagDecl
	examples    []string
	exits       string // what its exit codes mean, when not the usual
	lines       bool   // with --json it writes one document per line
	fails       int    // the exit code of errors, when not 1
	run         func(*call, context.Context) error
}

const (
	decideExits   = "0 completed; 1 failed or aborted; 2 wrong usage; 3 the run waits for an approval again"
	throughServer = "\n\nWhen a server holds the database, or --url names one, the command goes through that server, with the token in\n" +
		"AGENTD_TOKEN or in the variable that --token-env names."
)

const onFiles = "\n\nThe command works on the files of the server and needs no token, also while the server runs. With --url, it goes\n" +
	"through that server, with the token in AGENTD_TOKEN or in the variable that --token-env names."

const doctorExits = "0 nothing fails; 1 a check fails; 2 wrong usage"

// maxWords is how many words of a command line can be completed.
const maxWords = 1000

const usualExits = "0 done; 1 failed; 2 wrong usage"

// commands is the table.
func commands() []command {
	return []command{
		{name: "init", args: "[DIR]", most: 1, summary: "Create a configuration, a pepper and a data folder.",
			about: "Creates DIR (default: the working folder) with a working agentd.json, the script of its demo model, the\n" +
				"pepper that tokens are hashed with, and a data folder, and prints the next two commands. It overwrites\n" +
				"nothing: if one of them exists, it creates none.",
			flags: []flagDecl{jsonFlag}, run: (*call).init,
			examples: []string{"agentd init", "agentd init /srv/agents"}},
		{name: "start", summary: "Start the server.",
			about: "Serves the agents of the configuration until SIGTERM or SIGINT. Then it waits server.shutdown.drainTimeoutMs\n" +
				"for runs to finish. Runs that can continue later stay on disk and continue at the next start. A second\n" +
				"signal ends the server at once. The log goes to stderr. With --json, one line of JSON on stdout says when\n" +
				"the server is ready, as the ready file does.",
			flags: []flagDecl{configFlag, startFlags, secretsFlags, devFlag, jsonFlag}, lines: true, run: (*call).start,
			examples: []string{"agentd start --dev", "agentd start --config /srv/agents/agentd.json --port 0 --ready-file /run/agentd.json"},
			exits:    "0 stopped by a signal; 1 could not start, failed, or was stopped by a second signal; 2 wrong usage"},
		{name: "run", args: "AGENT [INPUT|-]", least: 1, most: 2, summary: "Run an agent here, and stream its answer to stdout.",
			about: "Runs an agent in this process, without a server. The input is INPUT or, when it is absent or -, stdin. The\n" +
				"text of the answer goes to stdout as it arrives. On a terminal, stderr shows steps and tools. The first\n" +
				"SIGINT aborts the run, the second ends the program.\n\n" +
				"When a tool call needs approval, the command asks on a terminal. Elsewhere the run waits, and stderr shows\n" +
				"the commands to decide with.\n\n" +
				"When a server holds the database, or --url names one, the run goes through that server, with the token in\n" +
				"AGENTD_TOKEN or in the variable that --token-env names. The command does not touch runs that another process\n" +
				"left behind; `agentd start` continues them.",
			flags: []flagDecl{configFlag, serverFlags, runFlags, verboseFlag, devFlag, jsonFlag}, lines: true, run: (*call).run,
			examples: []string{`agentd run --dev assistant "6*7"`, "agentd run shout < notes.txt > LOUD.txt"},
			exits:    "0 completed; 1 failed or aborted; 2 wrong usage; 3 the run waits for an approval"},
		{name: "migrate", summary: "Bring the database to the schema of this version.",
			about: "Applies all missing migrations or none, and prints the schema. `agentd start` also does that. Commands that\n" +
				"only read refuse a database with an older schema. There is no way back: copy the database first.",
			flags: []flagDecl{configFlag, devFlag, jsonFlag}, run: (*call).migrate,
			examples: []string{"agentd migrate", "agentd migrate --config site/agentd.json --json"}},
		{name: "agents list", summary: "List the agents.",
			about: "Lists the agents of the configuration." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, devFlag, jsonFlag}, run: (*call).listAgents,
			examples: []string{"agentd agents list --dev", "agentd agents list --url https://agents.example/v1 --token-env AGENTS"}},
		{name: "agents show", args: "AGENT", least: 1, most: 1, summary: "Show an agent.",
			about: "Shows an agent's description." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, devFlag, jsonFlag}, run: (*call).showAgent,
			examples: []string{"agentd agents show assistant --dev", "agentd agents show assistant --json"}},
		{name: "runs list", summary: "List the newest runs.",
			about: "Lists runs, newest first." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, listFlags, devFlag, jsonFlag}, run: (*call).listRuns,
			examples: []string{"agentd runs list --status awaiting_approval", "agentd runs list --agent assistant --limit 5 --json"}},
		{name: "runs show", args: "RUN", least: 1, most: 1, summary: "Show the state of a run.",
			about: "Shows the status of a run, its times and usage, the calls that wait, the error, and the agent's last text.\n" +
				"With --json, it shows the whole state. The operator's system messages are withheld unless --raw is given; a\n" +
				"server shows them only to a token with traces:read:raw." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, rawFlag, devFlag, jsonFlag}, run: (*call).showRun,
			examples: []string{"agentd runs show 0198c0de-6a3b-7c1d-8e2f-001122334455", "agentd runs show RUN --json | jq .state.messages"}},
		{name: "runs approve", args: "RUN [CALL...]", least: 1, most: 1 + maxDecisions, summary: "Let a run make the tool calls that it waits for.",
			about: "Grants the named calls, or all waiting calls if none is named. The run continues, and its new text goes to\n" +
				"stdout as with `agentd run`. An interruption ends the command, not the run.\n\n" +
				"A call that waits with the reason outcome-unknown has begun before, and may have taken effect. With --again,\n" +
				"agentd makes it once more. Without, the command grants nothing if such a call is among the named ones." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, reasonFlag, againFlag, argsFlag, devFlag, verboseFlag, jsonFlag}, lines: true, run: (*call).approve, exits: decideExits,
			examples: []string{"agentd runs approve RUN", "agentd runs approve RUN CALL --reason 'Checked with Ann.'"}},
		{name: "runs deny", args: "RUN [CALL...]", least: 1, most: 1 + maxDecisions, summary: "Refuse the tool calls that a run waits for.",
			about: "Denies the named calls, or all waiting calls if none is named. The agent learns of it, with the reason, and\n" +
				"the run continues as with `agentd runs approve`." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, reasonFlag, devFlag, verboseFlag, jsonFlag}, lines: true, run: (*call).deny, exits: decideExits,
			examples: []string{"agentd runs deny RUN --reason 'Not on a Friday.'", "agentd runs deny RUN CALL"}},
		{name: "runs abort", args: "RUN", least: 1, most: 1, summary: "End a run.",
			about: "Ends a run, also one that waits. The effects of its tool calls remain." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, abortFlags, devFlag, jsonFlag}, run: (*call).abortRun,
			examples: []string{"agentd runs abort RUN", "agentd runs abort RUN --drain --on-pending fail"}},
		{name: "runs cassette", args: "RUN", least: 1, most: 1, summary: "Write a recorded run to stdout or a file.",
			about: "Writes a finished run whose agent has `record: true` as lines of JSON, for `agentd replay`. They hold\n" +
				"everything that was said in the run. A server requires the scope traces:read:raw." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, outputFlag, devFlag, jsonFlag}, lines: true, run: (*call).cassette,
			examples: []string{"agentd runs cassette RUN -o refund.jsonl", "agentd runs cassette RUN | jq -c 'select(.kind == \"tool-call\")'"}},
		{name: "runs import", args: "FILE|-", least: 1, most: 1, summary: "Take over a run of another server from its state.",
			about: "Takes over a run that has ended or waits for approval. FILE, or stdin when it is -, holds the run's state,\n" +
				"or the output of `agentd runs show RUN --json`. A waiting run can then be decided on here, if its agents\n" +
				"have the tools that it waits for. The command checks the whole state first, and imports all of it or\n" +
				"nothing. The run also stays in the other place: continue it in one of them only, and abort it in the other.\n" +
				"A token needs the scope runs:import, and agents:invoke for the agents in the state." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, runImportFlags, devFlag, jsonFlag}, run: (*call).importRun,
			examples: []string{"agentd runs import state.json", "agentd runs show RUN --raw --json | agentd runs import - --config other.json --session moved"}},
		{name: "replay", args: "FILE|-", least: 1, most: 1, summary: "Run a recorded run again, offline, and show the first difference.",
			about: "Runs a recorded run again with the agent of the present configuration, and compares its requests to the\n" +
				"model, its tool calls, its requests for approval and its end. Models give the recorded answers, tools have\n" +
				"the recorded outcomes, and approvals are decided as before. The command contacts nobody, starts no program,\n" +
				"reads no secret, and opens no database except a temporary one.",
			flags: []flagDecl{configFlag, replayFlags, jsonFlag}, fails: exitUsage, run: (*call).replay,
			examples: []string{"agentd replay refund.jsonl", "agentd runs cassette RUN | agentd replay - --agent clerk-next --json"},
			exits:    "0 no difference; 1 a difference; 2 wrong usage, or the file, the agent or the configuration cannot be used"},
		{name: "tail", args: "SUBJECT|RUN", least: 1, most: 1, summary: "Watch the events of a run or a session.",
			about: "Shows the events of SUBJECT, such as session:ID/events or agent:ID/runs/RUN/events, as `agentd run` does.\n" +
				"RUN stands for the subject of that run. With --json, it writes each frame as one line. The token is in\n" +
				"AGENTD_TOKEN or in the variable that --token-env names. When the connection is lost, also by a restart of\n" +
				"the server, the command connects again and continues after the last event: it neither misses nor repeats a\n" +
				"kept event. If it misses deltas, it shows their text when the text is complete.\n\n" +
				"The command ends when the run has ended, or at an interruption, which does not affect the run. Without\n" +
				"--url, it uses the server that holds the database.",
			flags: []flagDecl{configFlag, serverFlags, tailFlags, devFlag, verboseFlag, jsonFlag}, lines: true, run: (*call).tail,
			examples: []string{"agentd tail session:support/events --json | jq -r .type", "agentd tail RUN --url https://agents.example/v1"},
			exits: "0 the run completed, or an interruption ended the watching of a session;\n" +
				"1 the run failed, was aborted or has not ended, or the server refused; 2 wrong usage"},
		{name: "approvals", summary: "List the tool calls that wait for approval.",
			about: "Lists the waiting calls of all runs, oldest run first." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, devFlag, jsonFlag}, run: (*call).approvals,
			examples: []string{"agentd approvals", "agentd approvals --json | jq -r '.approvals[].runId'"}},
		{name: "sessions list", summary: "List the newest sessions.",
			about: "Lists sessions, newest first, at most 1000." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, sessionsFlags, devFlag, jsonFlag}, run: (*call).listSessions,
			examples: []string{"agentd sessions list --user ann", "agentd sessions list --json | jq -r '.sessions[].id'"}},
		{name: "sessions show", args: "SESSION", least: 1, most: 1, summary: "Show the record of a session.",
			about: "Shows the owner and the times of a session." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, devFlag, jsonFlag}, run: (*call).showSession,
			examples: []string{"agentd sessions show SESSION", "agentd sessions show SESSION --json"}},
		{name: "sessions messages", args: "SESSION", least: 1, most: 1, summary: "Show the messages of a session.",
			about: "Shows the newest messages of a session, oldest first." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, messagesFlags, devFlag, jsonFlag}, run: (*call).showMessages,
			examples: []string{"agentd sessions messages SESSION --limit 10", "agentd sessions messages SESSION --json | jq '.messages[].content'"}},
		{name: "sessions export", args: "SESSION", least: 1, most: 1, summary: "Write a whole session as JSON Lines.",
			about: "Writes a session with all its messages and hand-offs as JSON Lines. A file whose last line is not a footer\n" +
				"is incomplete." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, exportFlags, devFlag, jsonFlag}, lines: true, run: (*call).exportSession,
			examples: []string{"agentd sessions export SESSION -o session.jsonl", "agentd sessions export SESSION | gzip > session.jsonl.gz"}},
		{name: "sessions import", args: "FILE|-", least: 1, most: 1, summary: "Create a session from an export.",
			about: "Creates a session from a file that `agentd sessions export` wrote, or from stdin when FILE is -. The command\n" +
				"checks the whole file first, and imports all of it or nothing. The messages are the history of later runs in\n" +
				"the session." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, importFlags, devFlag, jsonFlag}, run: (*call).importSession,
			examples: []string{"agentd sessions import session.jsonl", "gunzip -c session.jsonl.gz | agentd sessions import - --as copy"}},
		{name: "sessions delete", args: "SESSION", least: 1, most: 1, summary: "Erase a session with its runs and messages.",
			about: "Erases a session with its runs, messages and results for good. It asks first." + throughServer,
			flags: []flagDecl{configFlag, serverFlags, yesFlag, devFlag, jsonFlag}, run: (*call).deleteSession,
			examples: []string{"agentd sessions delete SESSION", "agentd sessions delete SESSION --yes"}},
		{name: "token create", summary: "Create a token, and print it once.",
			about: "Creates a bearer token and prints it on stdout. stderr shows its scopes. agentd keeps only a hash, so it\n" +
				"cannot show the token again. A scope is resource:action or resource:action:target, such as\n" +
				"agents:invoke:assistant; admin:* covers everything.\n" +
				agentVerbs + onFiles,
			flags: []flagDecl{configFlag, serverFlags, mintFlags, jsonFlag}, run: (*call).createToken,
			examples: []string{"agentd token create --scope agents:invoke --label ci --expires 30d",
				"AGENTD_TOKEN=$(agentd token create --scope 'admin:*')"}},
		{name: "token list", summary: "List the tokens, without their secrets.",
			about: "Lists the tokens in the order of their creation." + onFiles,
			flags: []flagDecl{configFlag, serverFlags, allFlag, jsonFlag}, run: (*call).listTokens,
			examples: []string{"agentd token list", "agentd token list --all --json"}},
		{name: "token revoke", args: "ID", least: 1, most: 1, summary: "Revoke a token for good.",
			about: "Revokes a token. A running server notices within 5 seconds." + onFiles,
			flags: []flagDecl{configFlag, serverFlags, jsonFlag}, run: (*call).revokeToken,
			examples: []string{"agentd token revoke 0198c0de-6a3b-7c1d-8e2f-001122334455", "agentd token revoke ID --json"}},
		{name: "secrets set", args: "KEY", least: 1, most: 1, summary: "Keep a secret in the active store.",
			about: "Stores a value that the configuration refers to as ref:KEY. The store is an encrypted file. Its passphrase\n" +
				"is in AGENTD_MASTER_PASSPHRASE or in the file that AGENTD_MASTER_PASSPHRASE_FILE names.",
			flags: []flagDecl{configFlag, valueFlags, secretsFlags, jsonFlag}, run: (*call).setSecret,
			examples: []string{"agentd secrets set llm-key --from-stdin < key.txt", "pass show llm | agentd secrets set llm-key --from-stdin --json"}},
		{name: "secrets get", args: "KEY", least: 1, most: 1, summary: "Say whether the store has a secret, or show it.",
			about: "Looks for a secret in the active store. It writes the value to stdout only with --reveal.",
			flags: []flagDecl{configFlag, revealFlag, secretsFlags, jsonFlag}, run: (*call).getSecret, exits: "0 the secret exists; 1 it does not, or failed; 2 wrong usage",
			examples: []string{"agentd secrets get llm-key", "LLM_KEY=$(agentd secrets get llm-key --reveal)"}},
		{name: "secrets list", summary: "List the secrets of the active store, without their values.",
			about: "Lists the keys, and when each was stored. If the environment is the store, it cannot be listed.",
			flags: []flagDecl{configFlag, secretsFlags, jsonFlag}, run: (*call).listSecrets,
			examples: []string{"agentd secrets list", "agentd secrets list --json | jq -r '.secrets[].key'"}},
		{name: "secrets delete", args: "KEY", least: 1, most: 1, summary: "Delete a secret.",
			about: "Deletes a secret from the active store for good.",
			flags: []flagDecl{configFlag, secretsFlags, jsonFlag}, run: (*call).deleteSecret, exits: "0 done; 1 there is no such secret, or failed; 2 wrong usage",
			examples: []string{"agentd secrets delete llm-key", "agentd secrets delete llm-key --json"}},
		{name: "secrets rotate", args: "KEY", least: 1, most: 1, summary: "Replace a secret.",
			about: "Replaces a value by another or, without one, by 32 random bytes. A running server uses the old value until\n" +
				"its next start.",
			flags: []flagDecl{configFlag, newValueFlags, revealFlag, secretsFlags, jsonFlag}, run: (*call).rotateSecret,
			exits:    "0 done; 1 there is no such secret, or failed; 2 wrong usage",
			examples: []string{"agentd secrets rotate hook-key --reveal", "agentd secrets rotate llm-key --from-stdin < new.txt"}},
		{name: "secrets ref", args: "URI", least: 1, most: 1, summary: "Check whether a reference has a value.",
			about: "Resolves a reference as the server would. It writes the value to stdout only with --reveal.",
			flags: []flagDecl{configFlag, revealFlag, secretsFlags, jsonFlag}, run: (*call).tryRef, exits: "0 the reference has a value; 1 it has none; 2 wrong usage",
			examples: []string{"agentd secrets ref env:LLM_KEY", "agentd secrets ref 'encrypted-file:data/secrets.kse#llm-key' --json"}},
		{name: "secrets doctor", summary: "Check the store of secrets and every reference of the configuration.",
			about: "Makes the checks of `agentd doctor` that concern secrets. It shows no value.",
			flags: []flagDecl{configFlag, secretsFlags, jsonFlag}, run: (*call).secretsDoctor, exits: doctorExits,
			examples: []string{"agentd secrets doctor", "agentd secrets doctor --json | jq '.checks[] | select(.status == \"fail\")'"}},
		{name: "doctor", summary: "Check the configuration, its files, secrets and database, and list what the server may contact.",
			about: "Checks everything that a start needs. It changes nothing and contacts nobody. With --offline, it only lists\n" +
				"the hosts that the configuration lets the server contact, and the setting that names each. The server\n" +
				"contacts no other host.",
			flags: []flagDecl{configFlag, doctorFlags, secretsFlags, devFlag, jsonFlag}, run: (*call).doctor, exits: doctorExits,
			examples: []string{"agentd doctor", "agentd doctor --offline --config /srv/agents/agentd.json --json"}},
		{name: "storage verify", summary: "Read the whole database and look for damage.",
			about: "Reads every page and index of the database and of the audit chain's file, compares their schemas with those\n" +
				"of this version, and looks for rows that are not JSON. It changes nothing and works while a server runs,\n" +
				"whose write-ahead log grows in the meantime. `agentd audit verify` finds changed entries of the chain.",
			flags: []flagDecl{configFlag, devFlag, jsonFlag}, run: (*call).verifyStorage, exits: "0 no damage; 1 something is damaged, or cannot be read; 2 wrong usage",
			examples: []string{"agentd storage verify", "agentd storage verify --json | jq '.files[].damage'"}},
		{name: "audit verify", summary: "Check whether the audit chain is whole.",
			about: "Checks the links between the entries of the chain, the signed checkpoints and, with the passphrase, the\n" +
				"contents of the entries. It only reads, works on copies of the files, also while a server runs, and names\n" +
				"the first bad entry. Keep a copy of the checkpoints and of the public key where the server cannot write:\n" +
				"with them, the command also finds a chain that was cut or replaced as a whole.",
			flags: []flagDecl{configFlag, chainFlags, verifyFlags, seqFlags, devFlag, jsonFlag}, run: (*call).verifyAudit,
			examples: []string{"agentd audit verify", "agentd audit verify --file copy/audit.db --checkpoints kept.jsonl --public-key audit.pem --json"},
			exits:    "0 the chain is whole; 1 it is broken or could not be read; 2 wrong usage"},
		{name: "audit list", summary: "List entries of the audit chain.",
			about: "Lists the newest entries, newest first, or the entries from --from-seq on. It needs the passphrase.",
			flags: []flagDecl{configFlag, chainFlags, entryFlags, seqFlags, devFlag, jsonFlag}, run: (*call).listAudit,
			examples: []string{"agentd audit list --action tool:approval:granted", "agentd audit list --from-seq 1 --limit 1000 --json"}},
		{name: "audit export", summary: "Write the entries of the audit chain to stdout or a file.",
			about: "Writes the entries in the order of the chain, with their hashes. It needs the passphrase, and its output is\n" +
				"not encrypted. In CSV, an apostrophe precedes each value that a spreadsheet would read as a formula, and\n" +
				"each value that begins with an apostrophe.",
			flags: []flagDecl{configFlag, chainFlags, formatFlag, outputFlag, seqFlags, devFlag, jsonFlag}, lines: true, run: (*call).exportAudit,
			examples: []string{"agentd audit export -o audit.jsonl", "agentd audit export --format csv --from-seq 1000 > audit.csv"}},
		{name: "audit prune", summary: "Delete the oldest entries of the audit chain.",
			about: "Deletes entries that are older than a time, from the beginning and without a gap, and records that. A signed\n" +
				"record takes their place, so that the rest of the chain, checkpoints included, verifies as before. There is\n" +
				"no way back: export the entries first. The command works while a server runs.",
			flags: []flagDecl{configFlag, chainFlags, pruneFlags, devFlag, jsonFlag}, run: (*call).pruneAudit,
			examples: []string{"agentd audit prune --before 365d", "agentd audit prune --before 2026-01-31 --retain 1000 --json"}},
		{name: "audit accept", summary: "Let a broken audit chain continue, and record who accepts that.",
			about: "While the chain is known to be broken, health fails, svc_audit_whole is 0 and agentd signs no checkpoint.\n" +
				"This command records in the chain, and in a signed checkpoint, who accepts the break and why. The chain is\n" +
				"whole again from there. `agentd audit verify` reports the break in every later check, and finds any other\n" +
				"break. First find out what happened: somebody may have removed the traces of what they did. No server may\n" +
				"hold the chain. The command accepts at most 64 places at once. If the chain has more, keep a copy and begin\n" +
				"another chain.",
			flags: []flagDecl{configFlag, acceptFlags, devFlag, jsonFlag}, run: (*call).acceptAudit,
			examples: []string{"agentd audit accept --reason 'Disk failure on 3 May, restored from the backup of 2 May.'", "agentd audit accept --reason 'Ticket 4711' --json"}},
		{name: "audit key", summary: "Print the public key of the audit chain.",
			about: "Prints the public key that the checkpoints of the chain are signed with, as PEM, and its fingerprint on\n" +
				"stderr. Keep the key where the server cannot write, for `agentd audit verify --public-key`. The command\n" +
				"needs no passphrase and accepts a copy of the chain's file. A server returns its key at GET /audit/key.",
			flags: []flagDecl{configFlag, chainFlags, devFlag, jsonFlag}, run: (*call).auditKey,
			examples: []string{"agentd audit key > audit.pem", "agentd audit key --file copy/audit.db"}},
		{name: "evidence", args: "RUN", least: 1, most: 1, summary: "Write a bundle that shows what a run did, and who allowed it.",
			about: "Writes the run, its events, its tool calls, the decisions on them and the entries of the audit chain about\n" +
				"it, each with the proof that a signed checkpoint covers it. `agentd evidence verify` checks the bundle\n" +
				"without the server. The command reads the files of the database and of the chain, also while a server runs,\n" +
				"and needs the passphrase of the chain. Its output is not encrypted. It writes nothing if the chain lacks an\n" +
				"entry, or if no checkpoint covers the entries yet.",
			flags: []flagDecl{configFlag, exportFlags, jsonFlag}, run: (*call).evidence,
			examples: []string{"agentd evidence RUN -o refund.evidence", "agentd evidence RUN | gzip > refund.evidence.gz"}},
		{name: "evidence verify", args: "FILE|-", least: 1, most: 1, summary: "Check whether a bundle of evidence is whole.",
			about: "Checks every member of a bundle, every entry and its proof, the signature of the checkpoint, and that the\n" +
				"run and the entries agree. It names what was altered. Without --public-key, it uses the key in the bundle,\n" +
				"which whoever made the bundle may also have made: keep the key that `agentd audit key` prints.",
			flags: []flagDecl{bundleKeyFlag, jsonFlag}, run: (*call).verifyEvidence,
			examples: []string{"agentd evidence verify refund.evidence --public-key audit.pem", "gunzip -c refund.evidence.gz | agentd evidence verify - --json"},
			exits:    "0 the bundle is whole; 1 it is not, or could not be read; 2 wrong usage"},
		{name: "config check", summary: "Check the configuration, and list all that the server may reach.",
			about: "Reports every problem of the configuration at once. If there is none, it lists every host and program that\n" +
				"the server may reach, and warnings. The server reaches no others. The command resolves no secret and\n" +
				"contacts nobody.",
			flags: []flagDecl{configFlag, jsonFlag}, run: (*call).checkConfig,
			examples: []string{"agentd config check", "agentd config check --config staging.json --json"}},
		{name: "config print", summary: "Print the effective configuration.",
			about: "Prints the configuration with every default, environment variable and file applied, as JSON. Secrets appear\n" +
				"as their references.",
			flags: []flagDecl{configFlag, jsonFlag}, run: (*call).printConfig,
			examples: []string{"agentd config print", "AGENTD_SERVER_PORT=9000 agentd config print | jq .server.port"}},
		{name: "config schema", summary: "Print the JSON Schema of the configuration.",
			about: "Prints the JSON Schema of agentd.json, for editors: name the file in its \"$schema\".",
			flags: []flagDecl{jsonFlag}, run: (*call).printSchema,
			examples: []string{"agentd config schema > agentd.schema.json", "agentd config schema | jq .properties.server"}},
		{name: "version", summary: "Print the version.",
			about: "Prints the versions of agentd, of Go and of the database schema.",
			flags: []flagDecl{jsonFlag}, run: (*call).version,
			examples: []string{"agentd version", "agentd version --json"}},
		{name: "completion", args: "bash|zsh|fish", least: 1, most: 1, summary: "Print the script that completes command lines in a shell.",
			about:    "Prints a script for a shell, which then completes commands, flags and the agents of the configuration.",
			run:      (*call).completion,
			examples: []string{`eval "$(agentd completion bash)"`, "agentd completion fish > ~/.config/fish/completions/agentd.fish"}},
		{name: "help", args: "[COMMAND|TOPIC]", most: maxWords, summary: "Explain a command, or show a page of the manual.",
			about: "Explains a command, or shows a page of the manual. Without an argument, it lists all commands and topics. A\n" +
				"name such as audit, which is a topic and begins commands, shows both. Every command also takes --help.",
			flags: []flagDecl{helpFlags}, run: (*call).help,
			examples: []string{"agentd help run", "agentd help approvals"}},
	}
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
	if members := group(args[0]); members != nil {
		return findMember(args, members)
	}
	if strings.HasPrefix(args[0], "-") {
		return nil, nil, usage("%q is not a command; flags follow the command.", args[0])
	}
	return nil, nil, unknown("command", args[0], firstWords())
}

// unknown reports a word that is none of the known ones, and the nearest of them.
func unknown(what, word string, known []string) error {
	e := usage("There is no %s %q.", what, word)
	if best := fault.Nearest(word, known); best != "" {
		e.Message += " Did you mean " + best + "?"
	}
	return e
}

// firstWords are the first words of all commands.
func firstWords() (words []string) {
	for _, cmd := range commands() {
		word, _, _ := strings.Cut(cmd.name, " ")
		if !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words
}

// group is the second words of the commands whose first is word.
func group(word string) (members []string) {
	for _, cmd := range commands() {
		if member, ok := strings.CutPrefix(cmd.name, word+" "); ok {
			members = append(members, member)
		}
	}
	return members
}

// findMember is find for a group without one of its members: a plea for help, or an error.
func findMember(args, members []string) (*command, []string, error) {
	if len(args) == 1 {
		return nil, nil, usage("%s needs one of %s.", args[0], strings.Join(members, ", ")).Advise("Run `agentd help " + args[0] + "`.")
	}
	switch args[1] {
	case "-h", "-help", "--help":
		return find([]string{"help", args[0]})
	}
	e := usage("There is no command %q.", args[0]+" "+args[1]).Advise("Run `agentd help " + args[0] + "`.")
	if best := fault.Nearest(args[1], members); best != "" {
		e.Message += " Did you mean " + args[0] + " " + best + "?"
	}
	return nil, nil, e
}
