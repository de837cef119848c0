package fault

import "strings"

// Nearest returns the candidate with the smallest edit distance to word, or "" when even that one differs in more
// than one letter and a quarter of word. Case does not count.
func Nearest(word string, candidates []string) string {
	if len(word) > 128 {
		return ""
	}
	best, limit := "", 1+len(word)/4
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c), limit); d <= limit && (best == "" || d < limit) {
			best, limit = c, d
		}
	}
	return best
}

// distance is the optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
// Beyond limit it may return any larger number.
func distance(a, b string, limit int) int {
	if max(len(a)-len(b), len(b)-len(a)) > limit {
		return limit + 1
	}
	rows := make([]int, 3*(len(b)+1)) // the three that are looked at
	before, prev, row := rows[:len(b)+1], rows[len(b)+1:2*(len(b)+1)], rows[2*(len(b)+1):]
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, prev, row = prev, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
