package graph

import (
	"fmt"
	"html"
	"strings"
	"unicode/utf8"
)

// Sizes of an SVG, in pixels.
const (
	charWidth = 7.3
	boxHeight = 44
	rowHeight = 76
	gap       = 28
	margin    = 24
)

// svg writes an SVG image. [short] has removed the characters that XML does not allow.
func (s *sketch) svg() string {
	l := s.layout()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" font-family="ui-monospace,monospace" font-size="12">`+"\n",
		l.width, l.height, l.width, l.height)
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n" +
		`<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>` + "\n")
	for i, e := range s.edges {
		dash := ""
		if e.dashed {
			dash = ` stroke-dasharray="5 4"`
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="#555"%s marker-end="url(#arrow)"/>`+"\n", l.curve(i), dash)
	}
	for i, n := range s.nodes {
		box := l.boxes[i]
		fill, round := fills[n.mark], 6
		if fill == "" {
			fill = "#f7f7f7"
		}
		if len(n.lines) == 1 {
			round = boxHeight / 2
		}
		fmt.Fprintf(&b, `<g><title>%s</title><rect x="%.1f" y="%.1f" width="%.1f" height="%d" rx="%d" fill="%s" stroke="#333"/>`,
			html.EscapeString(strings.Join(n.lines, ": ")), box.x-box.width/2, box.y, box.width, boxHeight, round, fill)
		for j, text := range n.lines {
			weight := ""
			if j == 0 {
				weight = ` font-weight="bold"`
			}
			y := box.y + boxHeight/2 + 4 + (float64(j)-float64(len(n.lines)-1)/2)*16
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle"%s>%s</text>`, box.x, y, weight, html.EscapeString(text))
		}
		b.WriteString("</g>\n")
	}
	for i, e := range s.edges {
		if e.label != "" {
			x, y := l.middle(i)
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle" fill="#333" stroke="#fff" stroke-width="3" paint-order="stroke">%s</text>`+"\n", x, y, html.EscapeString(e.label))
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// boxWidth is the width of the box around lines of text.
func boxWidth(lines []string) float64 {
	longest := 4
	for _, line := range lines {
		longest = max(longest, utf8.RuneCountInString(line))
	}
	return float64(longest)*charWidth + 24
}
