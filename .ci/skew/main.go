package main

import (
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// The program starts with the clock ahead by CLOCK_SKEW. At each SIGUSR1 the clock is set as the file says, which is then
// removed: so whoever has sent the signal sees that it took effect.
func init() {
	if d, err := time.ParseDuration(os.Getenv("CLOCK_SKEW")); err == nil {
		time.Skew(d)
	}
	path := os.Getenv("CLOCK_SKEW_FILE")
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for range asked {
			text, err := os.ReadFile(path)
			var d time.Duration
			if err == nil {
				d, err = time.ParseDuration(strings.TrimSpace(string(text)))
			}
			if err == nil {
				time.Skew(d)
				err = os.Remove(path)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "the clock was not set:", err)
			}
		}
	}()
}
