package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
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

// helpOn explains a command, a group, or the program.
func helpOn(words []string) (string, error) {
	if len(words) == 0 {
		return overview("agentd hosts AI agents behind REST and Server-Sent Events, with durable runs.", ""), nil
	}
	cmd, rest, err := find(words)
	if err != nil && len(words) == 1 && group(words[0]) != nil {
		return overview("The commands of agentd "+words[0]+":", words[0]+" "), nil
	}
	if err == nil && len(rest) > 0 {
		err = usage("There is no command %q.", strings.Join(words, " "))
	}
	if err != nil {
		return "", err
	}
	return cmd.help(), nil
}

// overview lists the commands whose names begin with prefix.
func overview(title, prefix string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", title)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, cmd := range commands() {
		if strings.HasPrefix(cmd.name, prefix) {
			fmt.Fprintf(w, "  %s\t%s\n", strings.TrimSpace(cmd.name+" "+cmd.args), cmd.summary)
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
	line := cmd.usage()
	fs := cmd.flagSet(&options{})
	some := false
	fs.VisitAll(func(*flag.Flag) { some = true })
	if some {
		line += " [FLAGS]"
	}
	fmt.Fprintf(&b, "%s\n\n%s\n", line, cmd.about)
	if some {
		b.WriteString("\nFlags, before or after the arguments:\n")
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fs.VisitAll(func(f *flag.Flag) {
			value, doc := flag.UnquoteUsage(f)
			dashes := "--"[:min(len(f.Name), 2)]
			fmt.Fprintf(w, "  %s%s\t%s\n", dashes, strings.TrimSpace(f.Name+" "+value), doc)
		})
		w.Flush()
	}
	b.WriteString("\nExamples:\n")
	for _, ex := range cmd.examples {
		fmt.Fprintf(&b, "  %s\n", ex)
	}
	exits := cmd.exits
	if exits == "" {
		exits = usualExits
	}
	fmt.Fprintf(&b, "\nExit codes: %s.\n", exits)
	return b.String()
}

// usage is the command line without flags.
func (cmd *command) usage() string { return strings.TrimSpace("agentd " + cmd.name + " " + cmd.args) }
