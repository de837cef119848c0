// Package manual holds the manual of the program: one Markdown page for each topic, embedded in the binary.
package manual

import (
	"embed"
	"regexp"
	"strings"
)

//go:embed *.md
var files embed.FS

// width is the number of columns that a cell of a table may fill on a terminal.
const width = 80

// A Topic is a page: the name of its file without ".md", and the sentence that says what the page is about.
type Topic struct{ Name, Sentence string }

// Topics returns all topics in alphabetical order.
func Topics() (topics []Topic) {
	entries, _ := files.ReadDir(".") //nolint:errcheck // it is embedded
	for _, entry := range entries {
		page, _ := files.ReadFile(entry.Name()) //nolint:errcheck // likewise
		paragraphs := strings.SplitN(string(page), "\n\n", 3)
		topics = append(topics, Topic{strings.TrimSuffix(entry.Name(), ".md"), paragraphs[1]})
	}
	return topics
}

// link matches a link from one page to another.
var link = regexp.MustCompile(`\[[^\]]*\]\((\w+)\.md\)`)

// Page returns a page as text for a terminal: examples are indented, a link names the command that prints its target,
// and each row of a table becomes a paragraph with the last cell below the others. It returns "" for an unknown topic.
func Page(topic string) string {
	page, err := files.ReadFile(topic + ".md")
	if err != nil {
		return ""
	}
	var b strings.Builder
	example, after := false, false // inside a fence, after an empty line
	for line := range strings.Lines(string(page)) {
		switch {
		case strings.HasPrefix(line, "```"):
			example = !example
			continue
		case example:
			line = "    " + line
		case strings.HasPrefix(line, "<!--"), line == "\n" && after, strings.HasPrefix(line, "|--"), strings.HasPrefix(line, "| --"):
			continue
		case strings.HasPrefix(line, "|"):
			line = row(line)
		case strings.Contains(line, "]("): // most lines have no link, and a start of the program reads a page
			line = link.ReplaceAllString(line, "`agentd help $1`")
		}
		after = line == "\n"
		b.WriteString(line)
	}
	return b.String()
}

func row(line string) string {
	line = strings.Trim(line, "| \n")
	cells := strings.Split(line, " | ")
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(strings.TrimSpace(cell), `\|`, "|")
	}
	last := len(cells) - 1
	text, column := "  "+strings.Join(cells[:last], "  ")+"\n", width
	for word := range strings.FieldsSeq(cells[last]) {
		if column+1+len(word) > width {
			text, column = strings.TrimSuffix(text, "\n")+"\n     ", 5
		}
		text, column = text+" "+word, column+1+len(word)
	}
	return text + "\n"
}
