package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"agentd/server/proc"
	"agentd/ws"
	"agentd/ws/wstest"
)

// chromium is a browser that a test drives by the DevTools protocol.
type chromium struct {
	devtools string   // host:port
	said     []string // the last lines that the browser wrote; to be read when it has ended
}

// chromiumFlags make a browser that dials nobody but this machine, keeps nothing, and treats all its tabs as visible. The
// names below .example are this machine's; policies of the browser that would protect it are off, since it is the
// server's that are tested.
var chromiumFlags = []string{
	"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0",
	"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
	"--disable-breakpad", "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
	"--disable-features=LocalNetworkAccessChecks,HttpsUpgrades",
	"--host-resolver-rules=MAP *.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
}

// startChromium starts a browser that ends with the test.
func startChromium(t *testing.T) *chromium {
	t.Helper()
	const env = "AGENTD_CHROMIUM"
	path := os.Getenv(env)
	if path == "" {
		t.Skipf("%s is not set: .ci/run sets it to the path of Chromium and runs this test with it", env)
	}
	home := t.TempDir()
	argv := append([]string{"/bin/sh", "-c", `exec "$0" "$@" 2>&1`, path, "--user-data-dir=" + home}, chromiumFlags...)
	ctx, end := context.WithCancel(context.Background())
	p, err := proc.Start(ctx, proc.Command{Argv: argv, Env: proc.Environ(map[string]string{"HOME": home, "TMPDIR": home}, []string{"PATH"}, true)})
	if err != nil {
		end()
		t.Fatal(err)
	}
	b := &chromium{}
	found, done := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(p); lines.Scan(); {
			if !strings.Contains(lines.Text(), "/dbus/") { // nobody misses it
				b.said = append(b.said[max(0, len(b.said)-30):], lines.Text())
			}
			if _, rest, ok := strings.Cut(lines.Text(), "DevTools listening on ws://"); ok {
				address, _, _ := strings.Cut(rest, "/")
				found <- address
			}
		}
		status, _ := p.Wait()
		b.said = append(b.said, status.String())
	}()
	t.Cleanup(func() {
		end()
		<-done
		if t.Failed() {
			t.Logf("Chromium wrote:\n%s", strings.Join(b.said, "\n"))
		}
	})
	select {
	case b.devtools = <-found:
	case <-done:
		t.Fatal("Chromium does not start")
	case <-time.After(patience):
		t.Fatal("Chromium does not tell where its DevTools listen")
	}
	return b
}

// page is a tab. It is for one goroutine.
type page struct {
	t       *testing.T
	ctx     context.Context
	conn    *wstest.Conn
	last    int             // number of the latest command
	doing   string          // what it does, for messages
	loaded  map[string]bool // loaders of documents
	console []string
}

// open opens a tab on an address. It waits for the document and its scripts.
func (b *chromium) open(t *testing.T, address string) *page {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // a page does several things
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+b.devtools+"/json/new?about:blank", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var target struct {
		URL string `json:"webSocketDebuggerUrl"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&target); err != nil {
		t.Fatalf("DevTools open no tab: %s, %v", resp.Status, err)
	}
	conn, err := wstest.Dial(ctx, target.URL, &wstest.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &page{t: t, ctx: ctx, conn: conn, loaded: map[string]bool{}}
	t.Cleanup(func() {
		conn.CloseNow()
		if t.Failed() {
			t.Logf("the page at %s said:\n%s", address, strings.Join(p.console, "\n"))
		}
	})
	p.doing = "opening a tab"
	for _, method := range []string{"Page.enable", "Runtime.enable", "Log.enable"} {
		p.command(method, struct{}{}, nil)
	}
	p.command("Page.setLifecycleEventsEnabled", map[string]bool{"enabled": true}, nil)
	p.visit(address)
	return p
}

// visit leads the tab to another address.
func (p *page) visit(address string) {
	p.t.Helper()
	var navigation struct{ LoaderID, ErrorText string }
	p.doing = "opening " + address
	p.command("Page.navigate", map[string]string{"url": address}, &navigation)
	if navigation.ErrorText != "" {
		p.t.Fatalf("the browser cannot open %s: %s", address, navigation.ErrorText)
	}
	for !p.loaded[navigation.LoaderID] {
		p.read()
	}
}

// call calls a function of the page, waits for what it promises, and decodes that into result.
func (p *page) call(result any, function string, args ...any) {
	p.t.Helper()
	var list []string
	for _, a := range args {
		text, err := json.Marshal(a)
		if err != nil {
			p.t.Fatal(err)
		}
		list = append(list, string(text))
	}
	expression := fmt.Sprintf("%s(%s)", function, strings.Join(list, ", "))
	p.doing = "in " + expression
	var answer struct {
		Result struct{ Value json.RawMessage }
		thrown
	}
	p.command("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &answer)
	if what := answer.String(); what != "" {
		p.t.Fatalf("%s throws %s", expression, what)
	}
	if result == nil {
		return
	}
	if err := json.Unmarshal(answer.Result.Value, result); err != nil {
		p.t.Fatalf("%s = %s: %v", expression, answer.Result.Value, err)
	}
}

// thrown is what a script threw, if it did.
type thrown struct {
	ExceptionDetails struct {
		Text      string
		Exception struct{ Description string }
	}
}

func (t thrown) String() string {
	return strings.TrimSpace(t.ExceptionDetails.Text + " " + t.ExceptionDetails.Exception.Description)
}

// command sends a command and decodes its result.
func (p *page) command(method string, params, result any) {
	p.t.Helper()
	p.last++
	text, err := json.Marshal(map[string]any{"id": p.last, "method": method, "params": params})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.conn.Write(p.ctx, ws.Text, text); err != nil {
		p.t.Fatalf("%s: %v", method, err)
	}
	for {
		id, answer := p.read()
		if id != p.last {
			continue
		}
		if result != nil {
			if err := json.Unmarshal(answer, result); err != nil {
				p.t.Fatalf("%s = %s: %v", method, answer, err)
			}
		}
		return
	}
}

// read reads one message, which is the answer to a command or tells of an event.
func (p *page) read() (id int, result json.RawMessage) {
	p.t.Helper()
	_, text, err := p.conn.Read(p.ctx)
	if err != nil {
		p.t.Fatalf("waiting for the browser, which is %s: %v", p.doing, err)
	}
	var m struct {
		ID     int
		Result json.RawMessage
		Error  struct{ Message string }
		Method string
		Params struct {
			Name, LoaderID string
			Args           []struct{ Value any }
			Entry          struct{ Text, URL string }
			thrown
		}
	}
	if err := json.Unmarshal(text, &m); err != nil {
		p.t.Fatalf("the browser says %s: %v", text, err)
	}
	if m.Error.Message != "" {
		p.t.Fatalf("the browser refuses: %s", m.Error.Message)
	}
	switch m.Method {
	case "Page.lifecycleEvent":
		if m.Params.Name == "load" {
			p.loaded[m.Params.LoaderID] = true
		}
	case "Runtime.consoleAPICalled":
		for _, a := range m.Params.Args {
			p.console = append(p.console, fmt.Sprint(a.Value))
		}
	case "Runtime.exceptionThrown":
		p.console = append(p.console, m.Params.String())
	case "Log.entryAdded":
		p.console = append(p.console, m.Params.Entry.Text+" "+m.Params.Entry.URL)
	}
	return m.ID, m.Result
}
