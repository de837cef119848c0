package cli

import (
	"context"
	"runtime"
	"runtime/debug"

	"agentd/server"
	"agentd/store"
)

func (c *call) version(context.Context) error {
	v := struct {
		Version  string `json:"version"`
		Revision string `json:"revision,omitempty"` // of the source, when the build knew it
		Go       string `json:"go"`
		Platform string `json:"platform"`
		Schema   int    `json:"storeSchema"`
	}{Version: server.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Schema: store.SchemaVersion()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Revision = s.Value
			}
		}
	}
	return c.report(v, "agentd %s (%s, %s, store schema %d)", v.Version, v.Go, v.Platform, v.Schema)
}
