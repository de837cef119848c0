package cli_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"agentd/server/cli"
)

// flood says more deltas than any queue holds, at once, then makes the file done and says the whole text. The lines are
// long, so that few of them fit in the pipe to whoever reads them.
const flood = `read line
i=0
while [ $i -lt 6000 ]; do
	printf '{"type":"text.delta","delta":"%d ","pad":"%0300d"}\n' $i 0
	text="$text$i "
	i=$((i+1))
done
: > done
printf '{"type":"text.complete","text":"%s"}\n{"type":"result","output":null}\n' "$text"
`

// A lateReader does not take the first write before the agent has said all.
type lateReader struct {
	t    *testing.T
	done string
	took bytes.Buffer
}

func (w *lateReader) Write(p []byte) (int, error) {
	if w.took.Len() == 0 {
		eventually(w.t, "the end of the flood", func() bool { _, err := os.Stat(w.done); return !errors.Is(err, fs.ErrNotExist) })
	}
	return w.took.Write(p)
}

// TestTextIsWhole shows that stdout gets every byte, in order and once, also when it is read too late for the deltas.
func TestTextIsWhole(t *testing.T) {
	for _, remote := range []bool{false, true} {
		dir := newSite(t)
		t.Chdir(dir)
		write(t, "flood.sh", flood)
		write(t, "agentd.json", `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "server": {"stream": {"perConnectionQueueLimit": 5}},
			"agents": {"flood": {"kind": "exec", "protocol": "jsonl", "command": ["sh", "flood.sh"]}}}`)
		if remote {
			serve(t, dir)
		}
		out := &lateReader{t: t, done: filepath.Join(dir, "done")}
		var stderr bytes.Buffer
		if code := cli.Main(t.Context(), []string{"run", "flood", "x"}, nil, out, &stderr, nil); code != 0 {
			t.Errorf("remote %v: run = %d, want 0; stderr:\n%s", remote, code, stderr.String())
		}
		var want strings.Builder
		for i := range 6000 {
			want.WriteString(strconv.Itoa(i) + " ")
		}
		if got := out.took.String(); got != want.String() {
			at := 0
			for at < min(len(got), want.Len()) && got[at] == want.String()[at] {
				at++
			}
			t.Errorf("remote %v: stdout has %d bytes and differs from byte %d on, want %d: %.60q", remote, len(got), at, want.Len(), got[at:])
		}
	}
}
