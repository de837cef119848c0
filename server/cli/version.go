package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"agentd/server"
	"agentd/server/fault"
	"agentd/store"
)

func (c *call) version(context.Context) error {
	switch {
	case c.flags.sbom && c.flags.checksums != "":
		return c.cmd.misused("--sbom and --verify cannot be combined.")
	case c.flags.sbom:
		return c.sbom()
	case c.flags.checksums != "":
		return c.verifySelf()
	}
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

// A component is one of CycloneDX: this program, Go's standard library, or a module.
type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// sbom prints the modules that the linker recorded. It has no time and no random number, so that equal binaries have
// equal bills, and no dependencies between modules, which a binary does not record.
func (c *call) sbom() error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return fault.Invalid("The binary has no build information.").Advise("Build it with `go build` in module mode.")
	}
	self := component{Type: "application", Ref: "agentd", Name: "agentd", Version: server.Version}
	for _, s := range info.Settings {
		self.Properties = append(self.Properties, property{"go:build:" + s.Key, s.Value})
	}
	components := []component{goModule("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		lib := goModule(m.Path, m.Version)
		if m.Sum != "" {
			lib.Properties = []property{{"go:sum", m.Sum}}
		}
		components = append(components, lib)
	}
	return c.printJSON(map[string]any{
		"$schema":   "http://cyclonedx.org/schema/bom-1.6.schema.json",
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata":   map[string]any{"component": self},
		"components": components,
	})
}

func goModule(path, version string) component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl}
}

// maxChecksums is the size of a file of checksums, about 10 000 lines.
const maxChecksums = 1 << 20

// verifySelf looks up the binary's own checksum. A line may have another name for it, because people rename copies.
func (c *call) verifySelf() error {
	list, err := c.readFile(c.flags.checksums, maxChecksums)
	if err != nil {
		return err
	}
	if len(list) > maxChecksums {
		return fault.Invalid(fmt.Sprintf("%s is larger than %d bytes.", c.flags.checksums, maxChecksums)).Advise("Name a file of checksums, as `sha256sum` writes it.")
	}
	sum, path, err := ownSum()
	if err != nil {
		return fault.Invalid(fmt.Sprintf("The binary cannot be read: %v.", err)).Advise("Run `sha256sum` on the file of the binary.")
	}
	v := struct {
		OK     bool   `json:"ok"`
		File   string `json:"file"`
		SHA256 string `json:"sha256"`
		Listed string `json:"listedAs,omitempty"`
	}{File: path, SHA256: sum}
	for line := range strings.Lines(string(list)) {
		if listed, name, _ := strings.Cut(strings.TrimSpace(line), " "); strings.EqualFold(listed, sum) {
			v.OK, v.Listed = true, strings.TrimLeft(name, " *")
			break
		}
	}
	return c.show(v.OK, v, func(w sheet) {
		w.facts("file", v.File, "sha256", v.SHA256, "listed as", v.Listed)
		if !v.OK {
			w.say("%s does not list this binary. Compare the versions, and copy the binary again.\n", printable(c.flags.checksums))
		}
	})
}

// ownSum is the SHA-256 of the file that runs, and its path.
func ownSum() (sum, path string, err error) {
	if path, err = os.Executable(); err != nil {
		return "", "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", path, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", path, err
	}
	return hex.EncodeToString(h.Sum(nil)), path, nil
}
