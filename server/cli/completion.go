package cli

import (
	"context"
	"flag"
	"io"
	"maps"
	"slices"
	"strings"
)

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

// candidates are what the last of the words of a command line may become: a command, a flag, or an agent where one is
// wanted.
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
	case strings.HasPrefix(cmd.args, "AGENT"):
		asked := &call{cmd: cmd, env: c.env}
		if args, err := cmd.parse(append(rest, ""), &asked.flags); err != nil || len(args) > 1 { // the empty word stands for the agent
			break
		}
		if cfg, err := asked.load(); err == nil {
			found = slices.AppendSeq(found, maps.Keys(cfg.Agents))
		}
	case cmd.name == "help":
		found = slices.Concat(following(""), topicNames())
	case cmd.name == "completion":
		found = slices.Collect(maps.Keys(completions))
	}
	slices.Sort(found)
	return slices.DeleteFunc(slices.Compact(found), func(word string) bool { return !strings.HasPrefix(word, last) })
}
