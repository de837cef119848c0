package message

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Render is the text of the message that shows an outcome to a model. It is never blank, and depends on the outcome only.
//
//	a text         unchanged
//	other JSON     as JSON
//	nothing        a note that the tool succeeded
//	a handle       the preview, a blank line, and a note on how to read on
//	an error       "Error: ..." and, except for a denied approval, a line in brackets: kind, recovery, hint
//
// Parts follow: texts where there is no output, and a line for each image, audio or file.
func Render(o *Outcome) string {
	if o.Failed() {
		return renderError(o)
	}
	if h := o.ResultHandle; h != nil {
		return fmt.Sprintf("%s\n\n[This is the beginning of a result of %d bytes. Call %s with handle %q to read on.]%s",
			h.Preview, h.Bytes, ReadResultName, h.URI, cutNote(o))
	}
	var text string
	switch {
	case len(o.Output) == 0 || string(o.Output) == "null":
	case json.Unmarshal(o.Output, &text) == nil:
	default:
		text = string(o.Output)
	}
	var lines []string
	if strings.TrimSpace(text) != "" {
		lines = append(lines, text)
	}
	for _, p := range o.ContentParts {
		switch {
		case p.Type == "text" && text == "" && strings.TrimSpace(p.Text) != "":
			lines = append(lines, p.Text)
		case p.Type != "text" && p.Type != "reasoning":
			lines = append(lines, renderMedia(p))
		}
	}
	if lines == nil {
		return "(The tool succeeded without output.)" + cutNote(o)
	}
	return strings.Join(lines, "\n") + cutNote(o)
}

func cutNote(o *Outcome) string {
	if !o.Truncated {
		return ""
	}
	return "\n\n[The tool wrote more than its limit; the rest was not kept.]"
}

func renderMedia(p Part) string {
	var about []string
	for _, s := range []string{p.Type, p.MimeType, p.Filename} {
		if s != "" {
			about = append(about, s)
		}
	}
	return "[" + strings.Join(about, ", ") + "]"
}

func renderError(o *Outcome) string {
	if o.Kind == ApprovalDenied {
		if o.Message == "" {
			return "Error: the approval was denied."
		}
		return "Error: " + o.Message
	}
	recoverable := "no"
	if o.Recoverable {
		recoverable = "yes"
	}
	about := fmt.Sprintf("kind: %s; recoverable: %s", o.Kind, recoverable)
	if o.RecoveryHint != "" {
		about += fmt.Sprintf("; suggested action: %s", o.RecoveryHint)
	}
	if o.Hint != "" {
		about += "; " + o.Hint
	}
	return fmt.Sprintf("Error: %s\n[%s]", o.Message, about)
}
