package config

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"agentd/server/secret"
	"agentd/server/shape"
)

// textRules are the rules for texts that check tags name here.
var textRules = map[string]*shape.Rule{
	"tool":        rule(`^[A-Za-z0-9_-]{1,64}$`, "1 to 64 letters, digits, _ and -", nil),
	"agenttool":   rule(`^(workflow:)?[A-Za-z0-9_-]{1,128}$`, "the name of a tool, or workflow: and the id of a workflow", nil),
	"token":       rule("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$", "a token of HTTP, without spaces", nil),
	"variable":    rule(`^[A-Za-z_][A-Za-z0-9_]*$`, "the name of a variable: letters, digits and _", nil),
	"argument":    rule(`^[^\x00]*$`, "a text without NUL", nil),
	"program":     rule(`^[^\x00]+$`, "a text that is not empty, without NUL", nil),
	"tokenprefix": rule(`^[a-z][a-z0-9-]{0,15}$`, "1 to 16 small letters, digits and -, a letter first", nil),
	"basepath":    rule(`^(/[A-Za-z0-9._~-]+)*$`, "a path such as /v1, without a slash at its end, or nothing", nil),
	"path":        rule(`^(/[A-Za-z0-9._~-]+)+$`, "a path such as /name, without a slash at its end", nil),
	"origin":      rule(`^(\*|[a-z][a-z0-9+.-]*://[^\s/?#@]+)$`, "* or an origin such as https://app.example.com, without a path", nil),
	"host":        rule(`^(`+ipv6+`|\[`+ipv6+`\]|`+hostName+`)$`, "a host name or an IP address, without a port", nil),
	"hostport":    rule(`^(\[`+ipv6+`\]|`+hostName+`)(:[0-9]{1,5})?$`, "a host, or host:port", nil),
	"baseurl":     rule(`^https?://[^\s?#{}]+$`, "an http or https address without a query", checkURL),
	"url":         rule(`^https?://[^\s#{}]+$`, "an http or https address", checkURL),
	"urltemplate": rule(`^https?://[^\s/?#{}]+([/?][^\s#]*)?$`, "an http or https address with {name} in its path or query only", checkTemplate),
	"notice": rule(`^(approval\.requested|run\.failed|run\.completed|budget\.exceeded|trigger\.missed|audit\.broken|health\.failing)$`,
		"approval.requested, run.failed, run.completed, budget.exceeded, trigger.missed, audit.broken or health.failing", nil),
	"stores": rule(`^(auto|`+storeName+`(, ?`+storeName+`)*)$`,
		"auto, or one or several of keyring, encrypted-file and env with commas between them", checkStores),
	"event":      rule(`^[A-Za-z0-9_.-]{1,128}$`, "1 to 128 letters, digits, _, . and -", nil),
	"scope":      rule(`^[a-z][a-z0-9-]{0,31}:(\*|[a-z][a-z0-9-]*)(:(\*|[A-Za-z0-9_.-]{1,128}))?$`, "a scope: resource:action or resource:action:target", nil),
	"permission": rule(`^[A-Za-z0-9_-]{1,64}(:[^=]+=[\s\S]*)?$`, "tool or tool:argument=glob", nil),
	"ref":        {Pattern: regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:.+`), More: checkRef, Label: "reference"},
}

const (
	ipv6      = `[0-9A-Fa-f]*:[0-9A-Fa-f:.]*`
	storeName = `(keyring|encrypted-file|env)`
	hostName  = `[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?`
)

func rule(pattern, want string, more func(string) string) *shape.Rule {
	return &shape.Rule{Pattern: regexp.MustCompile(pattern), Want: want, More: more}
}

// checkRef repeats nothing of a text that may be a secret itself.
func checkRef(s string) string {
	if s != "" {
		if _, err := secret.Parse(s); err != nil {
			return secret.Clause(err)
		}
	}
	return ""
}

func checkURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Hostname() == "":
		return "want an http or https address"
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r > 0x7F }):
		return "want a host in ASCII: write xn--... for other letters"
	case u.User != nil:
		return "want an address without user and password; a header can carry them as a reference"
	case u.Port() != "":
		if n, err := strconv.Atoi(u.Port()); err != nil || n < 1 || n > 65535 {
			return "want a port from 1 to 65535"
		}
	}
	return ""
}

func checkStores(s string) string {
	names := strings.Split(strings.ReplaceAll(s, " ", ""), ",")
	slices.Sort(names)
	if len(slices.Compact(slices.Clone(names))) < len(names) {
		return "want each store once"
	}
	return ""
}

var slot = regexp.MustCompile(`\{[A-Za-z0-9_.-]+\}`)

func checkTemplate(s string) string {
	s = slot.ReplaceAllString(s, "x")
	if strings.ContainsAny(s, "{}") {
		return "want the name of an argument between { and }"
	}
	return checkURL(s)
}
