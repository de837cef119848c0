package cli

import (
	"context"
	"crypto/rand"
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
	content []byte
}

func (c *call) init(context.Context) error {
	dir := "."
	if len(c.args) > 0 {
		dir = c.args[0]
	}
	secret := make([]byte, 32)
	rand.Read(secret) // never fails: the process ends when the system has no randomness
	seeds := []seed{
		{"agentd.json", demo("init.json")},
		{"demo.script.json", demo("demo.script.json")},
		{"pepper", append(hex.AppendEncode(nil, secret), '\n')},
		{"data", nil},
	}
	if err := plant(dir, seeds); err != nil {
		return err
	}
	flags := ""
	if filepath.Clean(dir) != "." {
		flags = " --config " + quoted(filepath.Join(dir, "agentd.json"))
	}
	next := []string{"agentd token create --scope agents:invoke,agents:approve,agents:read" + flags, "agentd start" + flags}
	var created []string
	for _, s := range seeds {
		created = append(created, filepath.Join(dir, s.name))
	}
	if c.flags.json {
		return c.printJSON(map[string]any{"created": created, "next": next})
	}
	_, err := fmt.Fprintf(c.stdout, "Created %s.\n\nNext:\n  %s\n  %s\n\n%s\n", strings.Join(created, ", "), next[0], next[1], agentVerbs)
	return err
}

// agentVerbs says what the scopes of agents are for.
const agentVerbs = "agents:invoke starts and aborts runs, agents:approve decides on waiting calls, agents:read\n" +
	"shows runs and their waiting calls. None includes another: give a token the scopes that it needs."

// plant makes all of the seeds, or none.
func plant(dir string, seeds []seed) error {
	var issues []fault.Issue
	for _, s := range seeds {
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
	return nil
}

// make makes the file or folder, which only its owner can read. It never replaces one.
func (s seed) make(dir string) error {
	path := filepath.Join(dir, s.name)
	if s.content == nil {
		return os.Mkdir(path, 0o700)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
