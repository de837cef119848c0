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

// distance is the Levenshtein distance: insertions, deletions and substitutions. Beyond limit it may return any larger
// number.
func distance(a, b string, limit int) int {
	if max(len(a)-len(b), len(b)-len(a)) > limit {
		return limit + 1
	}
	row := make([]int, len(b)+1) // of the beginnings of b, for the beginning of a that is looked at
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			if a[i] != b[j] {
				diagonal++
			}
			diagonal, row[j+1] = row[j+1], min(diagonal, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
