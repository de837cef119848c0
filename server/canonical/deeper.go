package canonical

// Deeper returns where, in valid JSON, arrays and objects begin to nest deeper than max; -1 if they do nowhere.
func Deeper(valid []byte, max int) int {
	depth, quoted := 0, false
	for i := 0; i < len(valid); i++ {
		switch c := valid[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > max {
				return i
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return -1
}
