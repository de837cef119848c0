package server_test

// Scripts are the files of ../testdata/scripts. Each runs against a server of its own: the real one, on a store in a
// folder of its own and a port of its own, with the agents of agents_test.go. This is their language.
//
// A line that begins with white space continues the line before it; a line that begins with # is a comment. A block
// ends at an empty line. ${name} stands for a captured value, everywhere but in the names of things.
//
// At the top, before everything else:
//
//	config JSON         laid over the runner's own configuration, member by member
//	file NAME TEXT      a file that the configuration can name, in the server's folder
//
// Single lines:
//
//	token NAME SCOPE... [for=MS] [by=NAME]
//	                              makes a token; ${NAME} is its raw text and ${NAME.id} its id. The operator makes it, so
//	                              that it is a principal by itself; or a token mints it, that of the administrator for
//	                              by=admin, through the API
//	release                       lets one run of the agent "hold" finish
//	restart                       stops the server at once and starts another on the same folder
//
// A request is a block. Its first line is the method and the path as they are sent; the lines after it are, in this
// order, what else is sent and what must come back:
//
//	as NAME             send the token NAME, or none when NAME is nobody; without this line, that of an administrator
//	with HEADER: VALUE  send a header
//	send TEXT           send a body as it is written here
//	start NAME          do not wait for the answer: `await NAME` does, in a block of its own that says what must come
//	until               send it again until all that follows holds
//
//	status CODE         the status
//	header NAME REGEXP  a header of the answer; `header NAME -` wants it absent
//	body PATTERN        the whole body, as a JSON pattern (see pattern_test.go); `body -` wants it empty
//	text REGEXP         something in the body
//	capture NAME PLACE  keep a value of the body, such as .runs[0].runId, or of a header: `header:X-Run-Id`
//	events SUBJECT      the next events of a stream, one a line: TYPE [=> NAME] [PATTERN]. NAME keeps the event's id.
//	                    The pattern is that of the payload, or of the whole frame of a lifecycle or replay-marker;
//	                    STATUS [REASON] or the marker's event id can stand in its place.
//	                    TYPE* is any number of events of a type, TYPE+ at least one. Two lines are not events:
//	                    keep-alive is the comment that a quiet stream sends, and end says that the server ends the
//	                    stream here. A stream that does not end stays open, and `await NAME` can read on.
//
// A socket is a WebSocket. Its block begins with `socket NAME`, and goes on with the socket of this name if one is open.
// If not, it opens one; then the first lines are
//
//	as, with            as of a request
//	offer PROTOCOL...   the subprotocols to offer; without this line svc.protocol.v1, and none for `offer -`
//	status CODE         the upgrade is refused; what follows is as of an answer, and there is no socket
//
// The lines after them do one thing each:
//
//	> TEXT                 sends a text frame as it is written here
//	pad SIZE TEXT          sends a text frame with spaces at its end, SIZE bytes long
//	bytes TYPE HEX         sends a text or binary frame of these bytes
//	< PATTERN              the next frame; `capture NAME PLACE` keeps a value of it
//	call METHOD [PARAMS]   sends a request, the id of which is a number
//	result PATTERN         the next frame is the result of the latest call
//	error CODE [PATTERN]   the next frame is its failure; the pattern is that of the message
//	subscribe NAME SUBJECT [since=ID] [replayed=COUNT]
//	                       subscribes, and takes both frames that tell of it. ${NAME} is the id of the subscription,
//	                       ${NAME.snapshot} its snapshotEventId
//	events NAME            the next frames are all of this subscription, one a line as of a stream; that of an error frame
//	                       is an event, too
//	silent                 nothing is under way: all that comes are the answers to two pings
//	closed CODE [REASON]   the server closes the socket, and nothing comes before that
//
// Besides what a script says, every answer is checked against what holds for all of them; see contract_test.go.

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("../testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			s, err := readScript(file)
			if err != nil {
				t.Fatal(err)
			}
			p := &player{rig: newRig(t, s.config, s.files), script: s, vars: map[string]string{}, open: map[string]*exchange{}, sockets: map[string]*socket{}}
			for _, b := range s.blocks {
				p.play(b)
			}
		})
	}
}

type script struct {
	file   string
	config string
	files  fstest.MapFS
	blocks []block
}

// A block is a request with what belongs to it, or a single line.
type block struct {
	head  line
	lines []line
}

type line struct {
	number int
	verb   string
	rest   string
}

var requestVerb = regexp.MustCompile(`^([A-Z]+|await|socket)$`)

func readScript(file string) (*script, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &script{file: filepath.Base(file), config: "{}", files: fstest.MapFS{}}
	inRequest := false
	for _, l := range logicalLines(string(data)) {
		switch {
		case l.verb == "":
			inRequest = false
		case requestVerb.MatchString(l.verb):
			s.blocks, inRequest = append(s.blocks, block{head: l}), true
		case inRequest:
			last := &s.blocks[len(s.blocks)-1]
			last.lines = append(last.lines, l)
		case l.verb == "config" && s.blocks == nil:
			s.config = l.rest
		case l.verb == "file" && s.blocks == nil:
			name, text, _ := strings.Cut(l.rest, " ")
			s.files[name] = &fstest.MapFile{Data: []byte(text)}
		case l.verb == "token" || l.verb == "release" || l.verb == "restart":
			s.blocks = append(s.blocks, block{head: l})
		default:
			return nil, fmt.Errorf("%s:%d: %q cannot stand here", s.file, l.number, l.verb)
		}
	}
	return s, nil
}

// logicalLines joins continued lines and drops comments. An empty line has no verb.
func logicalLines(text string) []line {
	var lines []line
	for i, raw := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(raw)
		switch {
		case strings.HasPrefix(raw, "#"):
		case trimmed != "" && trimmed[0] != raw[0]:
			last := &lines[len(lines)-1]
			last.rest += "\n" + trimmed
		default:
			verb, rest, _ := strings.Cut(trimmed, " ")
			lines = append(lines, line{i + 1, verb, strings.TrimSpace(rest)})
		}
	}
	return lines
}
