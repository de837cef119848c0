package manual_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"agentd/server/manual"
)

// Every page begins with a title and one sentence, and its prose fits a terminal.
func TestPages(t *testing.T) {
	sentence := regexp.MustCompile(`^[^\n]{10,110}\.$`)
	for _, topic := range manual.Topics() {
		page := manual.Page(topic.Name)
		if !strings.HasPrefix(page, "# ") {
			t.Errorf("the page on %s has no title", topic.Name)
		}
		if !sentence.MatchString(topic.Sentence) {
			t.Errorf("the page on %s begins with %q, want one sentence on one line", topic.Name, topic.Sentence)
		}
		for line := range strings.Lines(page) {
			if n := utf8.RuneCountInString(line); n > 125 && !strings.HasPrefix(line, " ") {
				t.Errorf("a line of the page on %s has %d characters: %s", topic.Name, n, line)
			}
			if strings.HasPrefix(line, "|") || strings.HasPrefix(line, "<!--") || strings.HasPrefix(line, "```") || strings.Contains(line, ".md") {
				t.Errorf("the page on %s shows markup: %s", topic.Name, line)
			}
		}
	}
	if page := manual.Page("nothing"); page != "" {
		t.Errorf("Page of an unknown topic = %q, want none", page)
	}
}

// The README lists every topic with its sentence.
func TestContents(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range manual.Topics() {
		line := "- [" + topic.Name + "](server/manual/" + topic.Name + ".md): " + topic.Sentence + "\n"
		if !strings.Contains(string(readme), line) {
			t.Errorf("README.md lacks the line %s", line)
		}
	}
}

// Every link in the README and in a page leads to a page that there is.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)[^):]*\)`)
	for _, path := range append(pages, "../../README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s has a link to %s: %v", path, m[1], err)
			}
		}
	}
}
