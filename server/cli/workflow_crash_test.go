package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var orderKills = often(200, 20) // how often TestKillWorkflows kills the server

// An order takes one path through every kind of node that waits, fails or has effects. Each effect is a line in a file
// outside of the server: what had it, and for which order.
const orderConfig = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"agents": {"writer": {"kind": "llm", "provider": "p", "model": "m"}},
	"tools": {
		"price": {"kind": "exec", "description": "has no effect", "sideEffect": "read-only", "command": ["sh", "-c", "echo '{\"lines\": [0, 1, 2]}'"]},
		"pick": {"kind": "exec", "description": "has an effect each time", "command": ["sh", "-c", "echo \"$(cat)\" >> effects; sleep 0.01; echo '\"picked\"'"]},
		"ship": {"kind": "exec", "description": "fails twice, then has its effect once for a call id", "idempotent": true, "command": ["sh", "ship.sh"]},
		"wreck": {"kind": "exec", "description": "fails", "sideEffect": "read-only", "command": ["sh", "-c", "exit 3"]}
	},
	"workflows": {"order": {
		"input": {"type": "object", "required": ["id", "total"], "properties": {"id": {"type": "string"}, "total": {"type": "integer"}}},
		"state": {"price": {}, "picked": {}, "granted": {}, "shipped": {}, "billed": {}, "problem": {}, "note": {}, "told": {}},
		"output": "${ {'picked': state.picked, 'problem': state.problem.node, 'shipped': state.shipped, 'billed': state.billed, 'note': state.note} }",
		"start": "price",
		"nodes": {
			"price": {"kind": "tool", "tool": "price", "args": {"id": "${ input.id }"}, "save": "price", "next": "size"},
			"size": {"kind": "branch", "cases": [{"if": "input.total > 100", "next": "ask"}], "else": "each"},
			"ask": {"kind": "approval", "name": "big", "show": {"total": "${ input.total }"}, "save": "granted", "next": "each"},
			"each": {"kind": "map", "over": "${ state.price.lines }", "save": "picked", "next": "both", "concurrency": 2,
				"do": {"kind": "tool", "tool": "pick", "args": {"id": "${ input.id }", "line": "${ item }"}}},
			"both": {"kind": "parallel", "branches": ["ship", "bill"], "next": "nap"},
			"ship": {"kind": "tool", "tool": "ship", "args": {"id": "${ input.id }"}, "save": "shipped", "retry": {"maxAttempts": 4, "backoffMs": 20}, "next": "end"},
			"bill": {"kind": "set", "values": {"billed": "${ input.total * 2 }"}, "next": "write"},
			"write": {"kind": "agent", "agent": "writer", "input": "Tell: ${ input.id }", "save": "note", "next": "end"},
			"nap": {"kind": "sleep", "forMs": 30, "next": "wreck"},
			"wreck": {"kind": "tool", "tool": "wreck", "args": {}, "onError": {"next": "tell", "save": "problem"}, "next": "end"},
			"tell": {"kind": "tool", "tool": "pick", "args": {"id": "${ input.id }", "line": 3}, "save": "told", "next": "end"}
		}
	}}
}`

const orderShip = `args=$(cat)
echo x >> "tries.$AGENTD_RUN_ID"
[ "$(wc -l < "tries.$AGENTD_RUN_ID")" -ge 3 ] || exit 1
flock effects sh -c 'grep -qF "ship $1 " effects || echo "ship $1 $2" >> effects' - "$AGENTD_CALL_ID" "$args"
echo '"shipped"'
`

func newOrderSite(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), orderConfig)
	write(t, filepath.Join(dir, "ship.sh"), orderShip)
	write(t, filepath.Join(dir, "effects"), "")
	write(t, filepath.Join(dir, "script.json"), `{"turns": [{"text": "written", "chunkSize": 2, "chunkDelayMs": 5}]}`)
	return dir
}

// A bookkeeper starts orders and decides what they wait for, and notes what each effect may come to. It forgets nothing that the
// server may have taken in, also where no answer came.
type bookkeeper struct {
	client *http.Client
	mu     sync.Mutex // guards all below
	random *rand.Rand
	orders map[string]string         // run ids by the ids of orders
	again  map[string]int            // how often a line may have been made again
	left   map[string]bool           // lines whose outcome a person gave
	asked  map[string]map[string]int // how often each tool of unknown outcome was decided in which way
}

// a waitingCall is a pending approval.
type waitingCall struct {
	ToolCallID, ToolName, Reason, SubRunToolCallID string
	Args                                           json.RawMessage
}

func (b *bookkeeper) post(url, body string, to any) (code int) {
	res, err := b.client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && to != nil {
		err = json.Unmarshal(text, to)
	}
	if err != nil {
		return 0
	}
	return res.StatusCode
}

func (b *bookkeeper) start(url, id string, total int) {
	var started struct{ RunID, ThreadID string }
	if b.post(url+"/workflows/order/execute", fmt.Sprintf(`{"threadId": %q, "input": {"id": %q, "total": %d}}`, id, id, total), &started) == http.StatusAccepted {
		b.mu.Lock()
		b.orders[id] = started.RunID
		b.mu.Unlock()
	}
}

// decide decides what a run waits for: it grants approvals, and of what may have happened it has one in three made again,
// gives the outcome of another, and denies the third, so that its node fails.
func (b *bookkeeper) decide(url, runID string, pending []waitingCall) {
	var decisions []string
	for _, p := range pending {
		d := `"granted": true`
		if p.Reason == "outcome-unknown" {
			line := key(p.Args)
			b.mu.Lock()
			way := []string{"again", "result", "denied"}[b.random.IntN(3)]
			switch way {
			case "again":
				d = `"granted": true, "again": true`
				b.again[line]++
			case "result":
				d = `"granted": false, "reason": "seen", "result": "picked"`
				b.left[line] = true
			default:
				d = `"granted": false, "reason": "leave it"`
				b.left[line] = true
			}
			if b.asked[p.ToolName] == nil {
				b.asked[p.ToolName] = map[string]int{}
			}
			b.asked[p.ToolName][way]++
			b.mu.Unlock()
		}
		path := ""
		if p.SubRunToolCallID != "" {
			path = fmt.Sprintf(`, "subRunToolCallId": %q`, p.SubRunToolCallID)
		}
		decisions = append(decisions, fmt.Sprintf(`{"toolCallId": %q, %s%s}`, p.ToolCallID, d, path))
	}
	b.post(url+"/runs/"+runID+"/resume", `{"approvals": [`+strings.Join(decisions, ",")+`]}`, nil)
}

// key names the line of an order that the arguments of a call mean.
func key(args []byte) string {
	var a struct {
		ID   string
		Line int
	}
	if json.Unmarshal(args, &a) != nil {
		return string(args)
	}
	return fmt.Sprint(a.ID, "/", a.Line)
}

// TestKillWorkflows kills the server at random moments while orders run, and starts it again each time. Then every order that
// was acknowledged must end, and each effect have happened once, except where the server asked what became of it and a
// person decided otherwise.
func TestKillWorkflows(t *testing.T) {
	t.Parallel()
	dir := newOrderSite(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	b := &bookkeeper{client: &http.Client{Timeout: 10 * time.Second}, random: rand.New(rand.NewPCG(seed, 2)), orders: map[string]string{}, again: map[string]int{},
		left: map[string]bool{}, asked: map[string]map[string]int{}}
	for round := range orderKills {
		s := serve(t, dir)
		stop := make(chan struct{})
		var clients sync.WaitGroup
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
					b.start(s.url, fmt.Sprintf("o%d-%d", round, n), 50+100*(n%2))
				}
			}
		})
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				b.mu.Lock()
				orders := make([]string, 0, len(b.orders))
				for _, runID := range b.orders {
					orders = append(orders, runID)
				}
				b.mu.Unlock()
				for _, runID := range orders[max(0, len(orders)-10):] {
					b.look(s.url, runID)
				}
			}
		})
		<-time.After(time.Duration(random.IntN(400)) * time.Millisecond)
		s.signal(syscall.SIGKILL)
		s.wait()
		close(stop)
		clients.Wait()
	}
	s := serve(t, dir)
	ends := map[string]int{}
	completed := map[string]bool{}
	for id, runID := range b.orders {
		var state orderState
		eventually(t, "the end of order "+id, func() bool {
			state = b.look(s.url, runID)
			return state.Status == "completed" || state.Status == "failed"
		})
		completed[id] = state.Status == "completed"
		if ends[state.Status+" "+state.Error.Code]++; state.Status == "failed" && state.Error.Code != "outcome-unknown" && state.Error.Code != "crash-loop" {
			t.Errorf("the order %s failed with %+v", id, state.Error)
		}
		checkEventNumbers(t, b.client, s.url, runID, "workflow.end", "workflow.error")
		if completed[id] {
			var thread struct {
				State struct{ Output json.RawMessage }
			}
			s.call("GET", "/workflows/order/state?threadId="+id, "", &thread)
			if got, want := string(thread.State.Output), `"note":"written","picked":["picked","picked","picked"],"problem":"wreck","shipped":"shipped"}`; !strings.HasSuffix(got, want) {
				t.Errorf("the order %s gave %s, want %s at its end", id, got, want)
			}
		}
	}
	made, shipped := map[string]int{}, map[string]int{}
	for line := range strings.Lines(read(t, filepath.Join(dir, "effects"))) {
		if rest, ok := strings.CutPrefix(line, "ship "); ok {
			_, args, _ := strings.Cut(rest, " ")
			shipped[strings.TrimSuffix(key([]byte(args)), "/0")]++
			continue
		}
		made[key([]byte(line))]++
	}
	for id, ok := range completed {
		if n := shipped[id]; n > 1 || ok && n != 1 {
			t.Errorf("the order %s (completed: %v) was shipped %d times, want once", id, ok, n)
		}
		for line := range 4 {
			l := fmt.Sprint(id, "/", line)
			most, least := 1+b.again[l], 1
			if b.left[l] || !ok {
				least = 0
			}
			if n := made[l]; n > most || n < least {
				t.Errorf("the line %s was picked %d times, want %d to %d", l, n, least, most)
			}
		}
	}
	t.Logf("%d kills, %d acknowledged orders, %d lines picked, %d shipped, ends: %v, decided: %v", orderKills, len(b.orders), len(made), len(shipped), ends, b.asked)
	if len(b.orders) < orderKills || len(made) < orderKills {
		t.Errorf("%d orders with %d lines are too few to tell anything", len(b.orders), len(made))
	}
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	spawn(t, dir, nil, nil, "storage", "verify").wait().want(t, 0, "undamaged", "")
}

type orderState struct {
	Status           string
	Error            struct{ Code, Message string }
	PendingApprovals []waitingCall
}

// look reads how a run stands, and decides what it waits for.
func (b *bookkeeper) look(url, runID string) (state orderState) {
	res, err := b.client.Get(url + "/runs/" + runID + "/state")
	if err != nil {
		return state
	}
	defer res.Body.Close()
	if json.NewDecoder(res.Body).Decode(&state) == nil && len(state.PendingApprovals) > 0 {
		b.decide(url, runID, slices.Clip(state.PendingApprovals))
	}
	return state
}
