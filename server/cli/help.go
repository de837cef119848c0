package cli

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"agentd/server/manual"
)

func (c *call) help(context.Context) error {
	if c.flags.complete {
		for _, word := range c.candidates(c.args) {
			fmt.Fprintln(c.stdout, word)
		}
		return nil
	}
	if len(c.args) > 2 {
		return c.cmd.misused("%d argument(s) are given, want %s.", len(c.args), c.cmd.usage())
	}
	text, err := helpOn(c.args)
	if c.flags.names && len(c.args) == 0 {
		text = ""
		for _, cmd := range commands() {
			text += cmd.name + "\n"
		}
	}
	if err == nil {
		_, err = io.WriteString(c.stdout, text)
	}
	return err
}

// helpOn explains all that the words name, which may be a command or a group of commands, and a topic of the manual.
func helpOn(words []string) (string, error) {
	if len(words) == 0 {
		return overview("agentd hosts AI agents behind REST, WebSocket and Server-Sent Events, with durable runs.", "") + topics(), nil
	}
	name := strings.Join(words, " ")
	page := manual.Page(name)
	cmd, rest, err := find(words)
	switch {
	case err == nil && len(rest) == 0:
		page = cmd.help() + "\n" + page
	case len(words) == 1 && following(name+" ") != nil:
		page = overview("The commands of agentd "+name+":", name+" ") + "\n" + page
	case page == "" && len(words) > 1:
		return "", cmp.Or(err, error(usage("There is no command %q.", name)))
	case page == "":
		return "", unknown("command or topic", name, slices.Concat(following(""), topicNames()))
	}
	return strings.TrimSpace(page) + "\n", nil
}

// topics lists the pages of the manual.
func topics() string {
	var b strings.Builder
	b.WriteString("\nTopics of the manual, for `agentd help TOPIC`:\n\n")
	w := newSheet(&b)
	for _, topic := range manual.Topics() {
		w.say("  %s\t%s\n", topic.Name, topic.Sentence)
	}
	w.Flush()
	return b.String()
}

func topicNames() (names []string) {
	for _, topic := range manual.Topics() {
		names = append(names, topic.Name)
	}
	return names
}

// overview lists the commands whose names begin with prefix.
func overview(title, prefix string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", title)
	w := newSheet(&b)
	for _, cmd := range commands() {
		if strings.HasPrefix(cmd.name, prefix) {
			w.say("  %s\t%s\n", strings.TrimSpace(cmd.name+" "+cmd.args), cmd.summary)
		}
	}
	w.Flush()
	b.WriteString("\nRun `agentd help COMMAND` for its flags and examples.\n")
	if prefix == "" {
		b.WriteString("New here? `agentd start --dev` serves a demo that needs no network.\n")
	}
	return b.String()
}

// help explains a command.
func (cmd *command) help() string {
	var b strings.Builder
	w := newSheet(&b)
	if cmd.flags == "" {
		w.say("%s\n\n%s\n", cmd.usage(), cmd.about)
	} else {
		w.say("%s [FLAGS]\n\n%s\n\nFlags, before or after the arguments:\n", cmd.usage(), cmd.about)
	}
	cmd.flagSet(&options{}).VisitAll(func(f *flag.Flag) {
		value, doc := flag.UnquoteUsage(f)
		w.say("  %s%s\t%s\n", "--"[:min(len(f.Name), 2)], strings.TrimSpace(f.Name+" "+value), doc)
	})
	w.say("\nExamples:\n  %s\n\nExit codes: %s.\n", strings.Join(cmd.examples, "\n  "), cmd.exits)
	w.Flush()
	return b.String()
}

// usage is the command line without flags.
func (cmd *command) usage() string { return strings.TrimSpace("agentd " + cmd.name + " " + cmd.args) }

// completions are the scripts by shell. Each asks `agentd help --complete` for the candidates of the last word, one a
// line, and falls back on file names when there are none.
var completions = map[string]string{
	"bash": `_agentd() {
  local IFS=$'\n'
  COMPREPLY=($(agentd help --complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _agentd agentd
`,
	"zsh": `#compdef agentd
_agentd() {
  local -a found
  found=("${(@f)$(agentd help --complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "${found[1]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _agentd agentd
`,
	"fish": `function __agentd_complete
  set -l words (commandline -opc) (commandline -ct)
  agentd help --complete -- $words[2..-1] 2>/dev/null
end
complete -c agentd -a '(__agentd_complete)'
`,
}

func (c *call) completion(context.Context) error {
	script, ok := completions[c.args[0]]
	if !ok {
		return c.cmd.misused("there is no script for %q, want one of %s.", c.args[0], strings.Join(slices.Sorted(maps.Keys(completions)), ", "))
	}
	_, err := io.WriteString(c.stdout, script)
	return err
}

// candidates are what the last of the words of a command line may become: a command, a flag, or an agent or a workflow where
// one is wanted.
func (c *call) candidates(words []string) []string {
	if len(words) == 0 {
		return nil
	}
	before, last := words[:len(words)-1], words[len(words)-1]
	found := following(strings.Join(append(before[:len(before):len(before)], ""), " "))
	var cmd *command
	var rest []string
	if len(before) > 0 {
		cmd, rest, _ = find(before) //nolint:errcheck // without a command, there is nothing to add
	}
	switch {
	case cmd == nil:
	case strings.HasPrefix(last, "-"):
		found = append(found, "--help")
		cmd.flagSet(&options{}).VisitAll(func(f *flag.Flag) { found = append(found, "--"[:min(len(f.Name), 2)]+f.Name) })
	case strings.HasPrefix(cmd.args, "AGENT"), strings.HasPrefix(cmd.args, "WORKFLOW"), strings.HasPrefix(cmd.args, "TRIGGER"):
		asked := &call{cmd: cmd, env: c.env}
		if args, err := cmd.parse(append(rest, ""), &asked.flags); err != nil || len(args) > 1 { // the empty word stands for the agent
			break
		}
		if cfg, err := asked.load(); err == nil {
			switch {
			case strings.HasPrefix(cmd.args, "WORKFLOW"):
				found = slices.AppendSeq(found, maps.Keys(cfg.Workflows))
			case strings.HasPrefix(cmd.args, "TRIGGER"):
				found = slices.AppendSeq(found, maps.Keys(cfg.Triggers))
			default:
				found = slices.AppendSeq(found, maps.Keys(cfg.Agents))
			}
		}
	case cmd.name == "help":
		found = slices.Concat(following(""), topicNames())
	case cmd.name == "completion":
		found = slices.Collect(maps.Keys(completions))
	}
	slices.Sort(found)
	return slices.DeleteFunc(slices.Compact(found), func(word string) bool { return !strings.HasPrefix(word, last) })
}
