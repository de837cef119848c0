package server_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"agentd/auth"
)

// player runs a script against a server.
type player struct {
	*rig
	script *script
	vars   map[string]string
	open   map[string]*exchange // by the name that `start` gave them

	sockets map[string]*socket // those that are open, by name
}

func (p *player) failf(l line, format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("%s:%d: %s", p.script.file, l.number, fmt.Sprintf(format, args...))
}

var variable = regexp.MustCompile(`\$\{([\w.]+)\}`)

// fill puts captured values in the place of their names.
func (p *player) fill(l line) string {
	p.t.Helper()
	return variable.ReplaceAllStringFunc(l.rest, func(ref string) string {
		v, ok := p.vars[ref[2:len(ref)-1]]
		if !ok {
			p.failf(l, "nothing is captured as %s", ref)
		}
		return v
	})
}

func (p *player) play(b block) {
	p.t.Helper()
	switch b.head.verb {
	case "token":
		p.token(b.head)
	case "release":
		p.release()
	case "restart":
		p.stop()
		p.start()
	case "socket":
		p.socket(b)
	case "await":
		x := p.open[b.head.rest]
		if x == nil {
			p.failf(b.head, "no request was started as %s", b.head.rest)
		}
		p.expect(b, x, b.lines)
	default:
		p.request(b)
	}
}

func (p *player) token(l line) {
	p.t.Helper()
	expires, minter := 0, ""
	var scopes []string
	words := strings.Fields(p.fill(l))
	for _, w := range words[1:] {
		if ms, ok := strings.CutPrefix(w, "for="); ok {
			expires, _ = strconv.Atoi(ms)
			continue
		}
		if by, ok := strings.CutPrefix(w, "by="); ok {
			if minter = p.admin; by != "admin" {
				minter = p.vars[by]
			}
			continue
		}
		scopes = append(scopes, w)
	}
	var id, raw string
	if minter != "" {
		id, raw = p.mintBy(minter, expires, scopes...)
	} else {
		id, raw = p.operatorToken(auth.MintRequest{Scopes: scopes, ExpiresIn: time.Duration(expires) * time.Millisecond})
	}
	p.vars[words[0]+".id"], p.vars[words[0]] = id, raw
}

// tokenOf is the token that a line `as NAME` names.
func (p *player) tokenOf(l line) string {
	if l.rest == "nobody" {
		return ""
	}
	return p.fill(line{l.number, l.verb, "${" + l.rest + "}"})
}

func (p *player) request(b block) {
	p.t.Helper()
	token, body, name, until := p.admin, "", "", false
	var headers []string
	rest := b.lines
	for ; len(rest) > 0; rest = rest[1:] {
		l := rest[0]
		switch l.verb {
		case "as":
			token = p.tokenOf(l)
			continue
		case "with":
			headers = append(headers, p.fill(l))
			continue
		case "send":
			body = p.fill(l)
			continue
		case "start":
			name = l.rest
			continue
		case "until":
			until = true
			continue
		}
		break
	}
	send := func() *exchange { return p.send(b.head.verb, p.fill(b.head), token, body, headers...) }
	switch {
	case name != "":
		x := send()
		p.open[name] = x
		p.t.Cleanup(x.close)
		if len(rest) > 0 {
			p.failf(rest[0], "a request that is only started has no answer yet")
		}
	case until:
		for deadline := time.Now().Add(patience); ; {
			x := send()
			problem, _ := p.holds(x, rest)
			if x.close(); problem == "" {
				return
			}
			if time.Now().After(deadline) {
				p.failf(b.head, "not within %v: %s", patience, problem)
			}
		}
	default:
		x := send()
		defer x.close()
		p.expect(b, x, rest)
	}
}

func (p *player) expect(b block, x *exchange, lines []line) {
	p.t.Helper()
	if problem, at := p.holds(x, lines); problem != "" {
		p.failf(at, "%s %s: %s", x.method, x.path, problem)
	}
	if !x.isStream(p.t) {
		x.whole(p.t) // checked also where the script says nothing of the body
	}
	if len(lines) == 0 || lines[0].verb != "status" && b.head.verb != "await" {
		p.failf(b.head, "the first expectation is the status")
	}
}

// holds checks what an answer must be and returns what it is not, and where that is said.
func (p *player) holds(x *exchange, lines []line) (problem string, at line) {
	p.t.Helper()
	for _, l := range lines {
		if problem := p.holdsLine(x, l); problem != "" {
			return problem, l
		}
	}
	return "", line{}
}

func (p *player) holdsLine(x *exchange, l line) string {
	p.t.Helper()
	text := p.fill(l)
	switch l.verb {
	case "status":
		if got := strconv.Itoa(x.response(p.t).StatusCode); got != text {
			return fmt.Sprintf("status %s, want %s; the body is %s", got, text, x.whole(p.t).body)
		}
	case "header":
		name, expr, _ := strings.Cut(text, " ")
		values := x.response(p.t).Header.Values(name)
		switch {
		case expr == "-" && len(values) > 0:
			return fmt.Sprintf("header %s is %q, want none", name, values)
		case expr != "-" && (len(values) != 1 || !regexp.MustCompile(expr).MatchString(values[0])):
			return fmt.Sprintf("header %s is %q, want one that matches %s", name, values, expr)
		}
	case "body":
		got := x.whole(p.t).body
		if text == "-" {
			if got != "" {
				return fmt.Sprintf("the body is %q, want none", got)
			}
		} else if diff := mismatch(text, got); diff != nil {
			return fmt.Sprintf("the body is not as wanted:\n  %s\nit is %s", strings.Join(diff, "\n  "), got)
		}
	case "text":
		if got := x.whole(p.t).body; !regexp.MustCompile(text).MatchString(got) {
			return fmt.Sprintf("nothing in the body matches %s; it is %s", text, got)
		}
	case "capture":
		name, place, _ := strings.Cut(text, " ")
		if header, ok := strings.CutPrefix(place, "header:"); ok {
			p.vars[name] = x.response(p.t).Header.Get(header)
			return ""
		}
		v, err := find(x.whole(p.t).body, place)
		if err != nil {
			return err.Error()
		}
		p.vars[name] = v
	case "events":
		return p.events(x, text)
	default:
		p.failf(l, "%q is no expectation, or stands at the wrong place", l.verb)
	}
	return ""
}
