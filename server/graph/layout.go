package graph

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A layout places the nodes of a sketch in rows, so that edges lead downwards where that is possible. The same sketch has the
// same layout.
type layout struct {
	boxes         []box // of the nodes, and then the points at which long edges pass rows
	rows          [][]int
	above, below  [][]int // boxes that edges come from and lead to
	routes        [][]int // of each edge: the boxes that it passes, both ends included
	width, height float64
}

type box struct {
	row         int
	x, y, width float64 // x is of the middle, y of the top
}

// maxPoints bounds the points of long edges. Edges beyond it are straight.
const maxPoints = 20_000

func (s *sketch) layout() *layout {
	l := &layout{boxes: make([]box, len(s.nodes)), routes: make([][]int, len(s.edges))}
	back := s.ranks(l)
	for i, n := range s.nodes {
		l.boxes[i].width = boxWidth(n.lines)
	}
	for i, e := range s.edges {
		l.route(i, e, back[i], len(l.boxes)-len(s.nodes) < maxPoints)
	}
	for i, b := range l.boxes {
		for len(l.rows) <= b.row {
			l.rows = append(l.rows, nil)
		}
		l.rows[b.row] = append(l.rows[b.row], i)
	}
	l.above, l.below = make([][]int, len(l.boxes)), make([][]int, len(l.boxes))
	for i, route := range l.routes {
		for j := 1; j < len(route) && !back[i]; j++ {
			l.above[route[j]] = append(l.above[route[j]], route[j-1])
			l.below[route[j-1]] = append(l.below[route[j-1]], route[j])
		}
	}
	l.place()
	for range 4 { // each pass has fewer crossings, as a rule
		l.order(l.above, false)
		l.order(l.below, true)
	}
	l.order(l.above, false)
	l.fit()
	return l
}

// ranks gives each node the row below all nodes that lead to it, and finds the edges that lead back.
func (s *sketch) ranks(l *layout) (back []bool) {
	back = make([]bool, len(s.edges))
	out := make([][]int, len(s.nodes)) // edges
	for i, e := range s.edges {
		out[e.from] = append(out[e.from], i)
	}
	const fresh, open, done = 0, 1, 2
	state, next := make([]int, len(s.nodes)), make([]int, len(s.nodes))
	var order []int // a node comes after all that it leads to
	for root := range s.nodes {
		if state[root] != fresh {
			continue
		}
		state[root] = open
		for stack := []int{root}; len(stack) > 0; {
			n := stack[len(stack)-1]
			if next[n] == len(out[n]) {
				state[n] = done
				order = append(order, n)
				stack = stack[:len(stack)-1]
				continue
			}
			edge := out[n][next[n]]
			next[n]++
			switch to := s.edges[edge].to; state[to] {
			case fresh:
				state[to] = open
				stack = append(stack, to)
			case open:
				back[edge] = true
			}
		}
	}
	for _, n := range slices.Backward(order) {
		for _, edge := range out[n] {
			if to := s.edges[edge].to; !back[edge] {
				span := 1
				if s.edges[edge].label != "" {
					span = 2 // the label has the row between
				}
				l.boxes[to].row = max(l.boxes[to].row, l.boxes[n].row+span)
			}
		}
	}
	return back
}

// route adds a point to each row that an edge passes.
func (l *layout) route(i int, e line, back, points bool) {
	l.routes[i] = []int{e.from}
	if !back && points {
		for row := l.boxes[e.from].row + 1; row < l.boxes[e.to].row; row++ {
			l.routes[i] = append(l.routes[i], len(l.boxes))
			width := 8.0
			if len(l.routes[i]) == 2 && e.label != "" {
				width = boxWidth([]string{e.label})
			}
			l.boxes = append(l.boxes, box{row: row, width: width})
		}
	}
	l.routes[i] = append(l.routes[i], e.to)
}

// place puts the boxes of each row side by side, the middle of each row at 0.
func (l *layout) place() {
	for _, row := range l.rows {
		total := -float64(gap)
		for _, i := range row {
			total += l.boxes[i].width + gap
		}
		x := -total / 2
		for _, i := range row {
			l.boxes[i].x = x + l.boxes[i].width/2
			x += l.boxes[i].width + gap
		}
	}
}

// order sorts each row by the middle of the boxes that each box is joined to, and puts the boxes as near to it as they fit.
func (l *layout) order(joined [][]int, upwards bool) {
	rows := l.rows
	if upwards {
		rows = slices.Clone(rows)
		slices.Reverse(rows)
	}
	want := make([]float64, len(l.boxes))
	for _, row := range rows {
		for _, i := range row {
			want[i] = l.boxes[i].x
			if others := joined[i]; len(others) > 0 {
				sum := 0.0
				for _, other := range others {
					sum += l.boxes[other].x
				}
				want[i] = sum / float64(len(others))
			}
		}
		slices.SortStableFunc(row, func(a, b int) int { return cmp.Compare(want[a], want[b]) })
		shift := 0.0
		for j, i := range row {
			b := &l.boxes[i]
			b.x = want[i]
			if j > 0 {
				before := l.boxes[row[j-1]]
				b.x = max(b.x, before.x+before.width/2+gap+b.width/2)
			}
			shift += want[i] - b.x
		}
		for _, i := range row {
			l.boxes[i].x += shift / float64(len(row))
		}
	}
}

// fit moves everything into the image. Edges that lead back have their room at the right.
func (l *layout) fit() {
	left, right := 0.0, 0.0
	for _, b := range l.boxes {
		left, right = min(left, b.x-b.width/2), max(right, b.x+b.width/2)
	}
	for i := range l.boxes {
		l.boxes[i].x += margin - left
		l.boxes[i].y = margin + float64(l.boxes[i].row*rowHeight)
	}
	l.width = right - left + 2*margin + 2*gap
	l.height = 2*margin + boxHeight + float64(max(len(l.rows)-1, 0)*rowHeight)
}

// curve is the path of an edge.
func (l *layout) curve(i int) string {
	route := l.routes[i]
	from, to := l.boxes[route[0]], l.boxes[route[len(route)-1]]
	if to.row <= from.row { // it leads back, or to the side
		x, y := from.x+from.width/2, from.y+boxHeight/2
		u, v := to.x+to.width/2, to.y+boxHeight/2
		out := max(x, u) + 1.5*gap
		return fmt.Sprintf("M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", x, y-8, out, y-8, out, v+8, u, v+8)
	}
	var b strings.Builder
	x, y := from.x, from.y+boxHeight
	fmt.Fprintf(&b, "M%.1f %.1f", x, y)
	for j, next := range route[1:] {
		u, v := l.boxes[next].x, l.boxes[next].y
		middle := (y + v) / 2
		fmt.Fprintf(&b, "C%.1f %.1f %.1f %.1f %.1f %.1f", x, middle, u, middle, u, v)
		if x, y = u, v; j < len(route)-2 {
			y = v + boxHeight
			fmt.Fprintf(&b, "L%.1f %.1f", x, y)
		}
	}
	return b.String()
}

// middle is where the label of an edge stands: at its first point, or between the nodes.
func (l *layout) middle(i int) (x, y float64) {
	route := l.routes[i]
	from, to := l.boxes[route[0]], l.boxes[route[1]]
	switch {
	case len(route) > 2:
		return to.x, to.y + boxHeight/2 + 4
	case to.row <= from.row:
		return max(from.x+from.width/2, to.x+to.width/2) + gap, (from.y+to.y)/2 + boxHeight/2
	}
	return (from.x + to.x) / 2, (from.y + to.y + boxHeight) / 2
}
