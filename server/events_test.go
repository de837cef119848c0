package server_test

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// A frame is one event of a stream as it was sent, or a comment.
type frame struct {
	comment, event, id, data string
	over                     bool // the stream has ended instead
}

// events reads the next events of a stream and returns what is not as the lines want it.
func (p *player) events(x *exchange, text string) string {
	p.t.Helper()
	if !x.isStream(p.t) {
		return fmt.Sprintf("the answer is no event stream: %d %s", x.resp.StatusCode, x.whole(p.t).body)
	}
	if x.stream == nil {
		x.stream = bufio.NewReader(x.resp.Body)
		x.rig.contract.check(p.t, x, "")
	}
	subject, lines, _ := strings.Cut(text, "\n")
	return p.sequence(subject, "<~ sse.*>", func() (frame, error) { return readFrame(x.stream) }, lines)
}

// sequence reads the next events of a subscription, whose id matches a pattern.
func (p *player) sequence(subject, subscription string, next func() (frame, error), lines string) string {
	p.t.Helper()
	var pending *frame // read, but not yet asked for
	for wanted := range strings.SplitSeq(lines, "\n") {
		w := parseWanted(wanted)
		for n := 0; ; n++ {
			if pending == nil {
				f, err := next()
				if err != nil {
					return fmt.Sprintf("want %s, got a stream that is not well-formed: %v", wanted, err)
				}
				pending = &f
			}
			problem := w.wants(subject, subscription, pending)
			if problem == "" {
				if w.name != "" {
					p.vars[w.name] = pending.id
				}
				if pending = nil; w.repeat {
					continue
				}
			} else if n < w.least {
				return fmt.Sprintf("want %s: %s", wanted, problem)
			}
			break
		}
	}
	if pending != nil && !pending.over {
		return fmt.Sprintf("there is more than wanted: %+v", *pending)
	}
	return ""
}

// wanted is a line of an events block.
type wanted struct {
	typ, name, pattern string
	repeat             bool
	least              int
}

var wantedLine = regexp.MustCompile(`(?s)^(\S+?)([*+]?)(?:\s+=>\s*(\w+))?(?:\s+(\S.*))?$`)

func parseWanted(text string) wanted {
	m := wantedLine.FindStringSubmatch(text)
	w := wanted{typ: m[1], name: m[3], pattern: m[4], repeat: m[2] != "", least: 1}
	if m[2] == "*" {
		w.least = 0
	}
	return w
}

// wants tells in what a frame is not the wanted one, and in what it is no frame of this stream at all.
func (w wanted) wants(subject, subscription string, f *frame) string {
	kind := f.event
	switch {
	case f.over:
		kind = "end"
	case f.comment != "":
		kind = f.comment
	}
	if kind != w.typ {
		return fmt.Sprintf("got %s: %s", kind, f.data)
	}
	pattern := cmp.Or(w.pattern, `"<any>"`)
	words := strings.Fields(w.pattern)
	head := fmt.Sprintf(`{"v":"1","kind":%q,"subscriptionId":%q`, kind, subscription)
	switch kind {
	case "end", "keep-alive":
		return ""
	case "lifecycle", "error":
		if f.id != "" {
			return "a frame without an event has no id"
		}
		switch {
		case len(words) == 1:
			pattern = fmt.Sprintf(`%s,"status":%q}`, head, words[0])
		case len(words) == 2:
			pattern = fmt.Sprintf(`%s,"status":%q,"reason":%q}`, head, words[0], words[1])
		case pattern == `"<any>"`:
			pattern = head + `,"...":0}`
		}
	case "replay-marker":
		if !strings.HasPrefix(w.pattern, "{") {
			pattern = fmt.Sprintf(`%s,"eventId":%q,"droppedCount":"<int>"}`, head, cmp.Or(w.pattern, "<string>"))
		}
	default:
		// Clients refuse a frame with a member too many.
		pattern = fmt.Sprintf(`{"v":"1","kind":"event","eventId":%q,"subscriptionId":%q,"subject":%q,"type":%q,"payload":%s}`,
			f.id, subscription, subject, f.event, pattern)
		if f.id == "" || !strings.Contains(f.data, fmt.Sprintf(`"payload":{"type":%q`, f.event)) {
			return "its payload does not begin with its type, or it has no id: " + f.data
		}
	}
	if diff := mismatch(pattern, f.data); diff != nil {
		return fmt.Sprintf("%s\ngot %s", strings.Join(diff, "\n"), f.data)
	}
	return ""
}

// readFrame reads up to the next empty line. The fields of a frame are event, id and data, in this order, each at most
// once and on one line.
func readFrame(r *bufio.Reader) (frame, error) {
	var f frame
	var fields []string
	for {
		text, err := r.ReadString('\n')
		if err == io.EOF && text == "" && fields == nil {
			return frame{over: true}, nil
		}
		if err != nil {
			return f, fmt.Errorf("%w after %q", err, text)
		}
		text = strings.TrimSuffix(text, "\n")
		if text == "" {
			break
		}
		name, value, ok := strings.Cut(text, ": ")
		if !ok || strings.ContainsRune(text, '\r') {
			return f, fmt.Errorf("%q is no field", text)
		}
		fields = append(fields, name)
		switch name {
		case "":
			f.comment = value
		case "event":
			f.event = value
		case "id":
			f.id = value
		case "data":
			f.data = value
		}
	}
	switch strings.Join(fields, " ") {
	case "", "event id data", "event data":
		return f, nil
	}
	return f, fmt.Errorf("a frame has the fields %q", fields)
}
