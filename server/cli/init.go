package cli

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"agentd/server/fault"
)

// A seed is something that init makes; a folder has no content.
type seed struct {
	name    string
	mode    fs.FileMode
	content []byte
}

//go:embed templates
var templates embed.FS

func (c *call) init(context.Context) error {
	if c.flags.templates != "" {
		return c.initTemplates()
	}
	dir := "."
	if len(c.args) > 0 {
		dir = c.args[0]
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails: the process ends when the system has no randomness
	seeds := []seed{
		{"agentd.json", 0o600, demo("init.json")},
		{"demo.script.json", 0o600, demo("demo.script.json")},
		{"pepper", 0o600, append(hex.AppendEncode(nil, secret), '\n')},
		{"data", 0o700, nil},
	}
	flags := ""
	if filepath.Clean(dir) != "." {
		flags = " --config " + quoted(filepath.Join(dir, "agentd.json"))
	}
	next := []string{"agentd token create --scope agents:invoke,agents:approve,agents:read" + flags, "agentd start" + flags}
	return c.plant(dir, seeds, next, agentVerbs)
}

// initTemplates makes the templates of deployment. They hold no secrets, so everybody may read them.
func (c *call) initTemplates() error {
	if len(c.args) > 0 {
		return c.cmd.misused("--templates has the folder, and makes no configuration; leave out %s.", c.args[0])
	}
	var seeds []seed
	entries, _ := templates.ReadDir("templates") //nolint:errcheck // it is embedded
	for _, entry := range entries {
		content, _ := templates.ReadFile("templates/" + entry.Name()) //nolint:errcheck // likewise
		seeds = append(seeds, seed{entry.Name(), 0o644, content})
	}
	return c.plant(c.flags.templates, seeds, []string{"agentd help deployment"}, "The page explains each file. Replace agents.example by the name of your server.")
}

// agentVerbs says what the scopes of agents are for.
const agentVerbs = "agents:invoke starts and aborts runs, agents:approve decides on waiting calls, agents:read\n" +
	"shows runs and their waiting calls. None includes another: give a token the scopes that it needs."

// plant makes all of the seeds, or none, and prints what it made, the commands that come next, and a note on them.
func (c *call) plant(dir string, seeds []seed, next []string, note string) error {
	var created []string
	var issues []fault.Issue
	for _, s := range seeds {
		created = append(created, filepath.Join(dir, s.name))
		if _, err := os.Lstat(filepath.Join(dir, s.name)); !errors.Is(err, fs.ErrNotExist) {
			message := "exists already"
			if err != nil {
				message = err.Error()
			}
			issues = append(issues, fault.At(message, filepath.Join(dir, s.name)))
		}
	}
	if issues != nil {
		return fault.Invalid("Nothing was created, because files with these names exist.", issues...).
			Advise("Choose another folder, or move these files.")
	}
	err := os.MkdirAll(dir, 0o755)
	for i := 0; i < len(seeds) && err == nil; i++ {
		if err = seeds[i].make(dir); err != nil {
			for _, made := range seeds[:i] {
				os.Remove(filepath.Join(dir, made.name)) //nolint:errcheck // the first error is the one to report
			}
		}
	}
	if err != nil {
		return fault.Invalid(fmt.Sprintf("Nothing was created: %v.", err)).Advise("Choose another folder, or check its permissions.")
	}
	if c.flags.json {
		return c.printJSON(map[string]any{"created": created, "next": next})
	}
	_, err = fmt.Fprintf(c.stdout, "Created %s.\n\nNext:\n  %s\n\n%s\n", strings.Join(created, ", "), strings.Join(next, "\n  "), note)
	return err
}

// make makes the file or folder. It never replaces one.
func (s seed) make(dir string) error {
	path := filepath.Join(dir, s.name)
	if s.content == nil {
		return os.Mkdir(path, s.mode)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, s.mode)
	if err != nil {
		return err
	}
	_, err = f.Write(s.content)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(path) //nolint:errcheck
	}
	return err
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./@%+=:,-]+$`)

// quoted is a word as a shell takes it.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
