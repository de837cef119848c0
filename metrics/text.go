package metrics

import (
	"math"
	"strconv"
	"strings"
)

// The escapes of the text format: help texts keep their quotes.
var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func appendSample(b []byte, name, labels string, v float64) []byte {
	b = append(b, name...)
	if labels != "" {
		b = append(b, '{')
		b = append(b, labels...)
		b = append(b, '}')
	}
	b = append(b, ' ')
	return append(appendNumber(b, v), '\n')
}

// appendNumber writes whole numbers in full, as people read them, and everything else in the shortest form that
// reads back as the same number.
func appendNumber(b []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.AppendInt(b, int64(v), 10)
	}
	return strconv.AppendFloat(b, v, 'g', -1, 64) // NaN, +Inf and -Inf are spelled as the format wants them
}
