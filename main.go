// Command agentd hosts AI agents behind REST, WebSocket and Server-Sent Events.
package main

import (
	"context"
	"os"

	"agentd/server/cli"
)

func main() {
	cli.TuneHeap()
	os.Exit(cli.Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
