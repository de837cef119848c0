//go:build race

package fuzztest

// slower is how many times as long the race detector makes everything take, at most.
const slower = 20
