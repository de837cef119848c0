package config

import (
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// A Target is something that the configuration lets the server reach: an address or a program.
type Target struct {
	Kind    string   `json:"kind"` // provider, tool, agent or notify
	ID      string   `json:"id"`
	Setting string   `json:"setting"`           // that names it: providers.local.baseUrl
	Address string   `json:"address,omitempty"` // host:port
	Command []string `json:"command,omitempty"` // program and arguments
}

// Targets lists every host and program that the configuration allows: there are no others. The caller owns the slice.
func (c *Config) Targets() []Target {
	var all []Target
	for id, p := range sorted(c.Providers) {
		if p.BaseURL != "" {
			all = append(all, Target{Kind: "provider", ID: id, Setting: "providers." + id + ".baseUrl", Address: address(p.BaseURL)})
		}
	}
	for name, t := range sorted(c.Tools) {
		all = append(all, reach("tool", name, t.URL, t.Command)...)
		scheme, _, _ := strings.Cut(t.URL, ":")
		for _, host := range t.AllowHosts {
			all = append(all, Target{Kind: "tool", ID: name, Setting: "tools." + name + ".allowHosts", Address: address(scheme + "://" + host)})
		}
	}
	for id, a := range sorted(c.Agents) {
		all = append(all, reach("agent", id, a.URL, a.Command)...)
	}
	for i, n := range c.Notify {
		n, id := n.URL, strconv.Itoa(i)
		all = append(all, Target{Kind: "notify", ID: id, Setting: "notify." + id + ".url", Address: address(n)})
	}
	return all
}

func reach(kind, id, to string, command []string) []Target {
	setting := kind + "s." + id
	switch {
	case to != "":
		return []Target{{Kind: kind, ID: id, Setting: setting + ".url", Address: address(to)}}
	case len(command) > 0:
		return []Target{{Kind: kind, ID: id, Setting: setting + ".command", Command: slices.Clone(command)}}
	}
	return nil
}

// address is host:port of an address or a template of one, with the port of its scheme where it names none.
func address(template string) string {
	scheme, rest, _ := strings.Cut(template, "://")
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest = rest[:end]
	}
	u := url.URL{Host: rest}
	port := u.Port()
	switch {
	case port != "":
	case scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// A NamedRef is a reference and the path of the field that holds it.
type NamedRef struct {
	Path []any
	Ref  Ref
}

// Refs lists every reference that is given, in the order of the tree. All of them must resolve before the server
// listens.
func (c *Config) Refs() []NamedRef {
	var all []NamedRef
	tree.Each(c, func(path []any, v any) {
		if r, ok := v.(Ref); ok && r != "" {
			all = append(all, NamedRef{path, r})
		}
	})
	return all
}
