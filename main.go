// Command agentd hosts AI agents behind REST and Server-Sent Events.
package main

import (
	"context"
	"os"
	"runtime/debug"

	"agentd/server/cli"
)

func main() {
	if os.Getenv("GOGC") == "" {
		// The live heap is small, so with Go's default it is collected every few megabytes: about a tenth of the
		// processor time of a busy server.
		debug.SetGCPercent(200)
	}
	os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
