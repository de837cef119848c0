package openapi

import (
	"fmt"
	"strings"

	"agentd/server/fault"
)

// Markdown is a table of the operations for the manual, in the order of the list.
func Markdown(ops []Operation) string {
	var b strings.Builder
	b.WriteString("| Method | Path | Access | Effect | Summary |\n| --- | --- | --- | --- | --- |\n")
	for _, op := range ops {
		access := op.Access
		switch {
		case access != "":
		case op.Public:
			access = "public"
		default:
			access = "any token"
		}
		effect := "reads"
		if op.Effects {
			effect = "effects"
		}
		row(&b, op.Method, "`"+op.Path+"`", access, effect, op.Summary)
	}
	return b.String()
}

// ErrorsMarkdown is a table of the kinds of failure for the manual, in the order of the list.
func ErrorsMarkdown(kinds []*fault.Kind) string {
	var b strings.Builder
	b.WriteString("| Code | Status | When | What to do |\n| --- | --- | --- | --- |\n")
	for _, k := range kinds {
		status := "-"
		if k.Status != 0 {
			status = fmt.Sprint(k.Status)
		}
		row(&b, "`"+k.Code+"`", status, k.When, k.Hint)
	}
	return b.String()
}

var cellEscaper = strings.NewReplacer("|", `\|`, "\n", " ")

func row(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		b.WriteString("| " + cellEscaper.Replace(c) + " ")
	}
	b.WriteString("|\n")
}
