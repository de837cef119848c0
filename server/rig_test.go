package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server"
	"agentd/server/config"
	"agentd/store"
)

// patience is how long a test waits for something that must happen. It ends only tests that fail.
const patience = time.Minute

// rig is a server on a folder of its own, and a client of it that checks every answer.
type rig struct {
	t        testing.TB
	cfg      *config.Config
	srv      *server.Server
	url      string // http://127.0.0.1:port
	admin    string // an administrator's token; empty when there is no authentication
	released chan struct{}
	client   *http.Client
	log      *slog.Logger // of the servers that start from now on; nil: none
	contract *contract
}

const rigConfig = `{"server": {"port": 0, "rateLimit": {"enabled": false}}, "storage": {"path": "data.db"}, "auth": {"pepperRef": "file:pepper"}}`

// newRig starts a server whose configuration is the one above with the given one laid over it.
func newRig(t testing.TB, overlay string, files fs.FS) *rig {
	t.Helper()
	r := &rig{t: t, cfg: rigSettings(t, overlay, files), released: make(chan struct{}), client: &http.Client{Transport: &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if r.cfg.Auth.Kind == "token" {
		_, r.admin = r.operatorToken(auth.MintRequest{Label: "root", Scopes: []string{"admin:*"}})
	}
	r.start()
	t.Cleanup(r.stop)
	return r
}

// rigSettings is the configuration above with the given one laid over it, in a new folder.
func rigSettings(t testing.TB, overlay string, files fs.FS) *config.Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pepper"), []byte("0123456789abcdef0123456789ABCDEF"), 0o600); err != nil {
		t.Fatal(err)
	}
	if files != nil { // for programs that the configuration starts
		if err := os.CopyFS(dir, files); err != nil {
			t.Fatal(err)
		}
	}
	var base, over map[string]any
	if err := json.Unmarshal([]byte(rigConfig), &base); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(overlay), &over); err != nil {
		t.Fatalf("configuration %s: %v", overlay, err)
	}
	text, err := json.Marshal(lay(base, over))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(text, config.Options{Dir: dir, Files: files})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func lay(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	for k, v := range over {
		below, isObject := v.(map[string]any)
		if under, ok := base[k].(map[string]any); ok && isObject {
			v = lay(under, below)
		}
		out[k] = v
	}
	return out
}

// operatorToken makes a token as the command line does: on the store itself, whether or not the server has it. Each is a
// principal by itself.
func (r *rig) operatorToken(req auth.MintRequest) (id, raw string) {
	r.t.Helper()
	r.withIssuer(r.t, func(issuer *auth.Issuer) { id, raw = mintWith(r.t, issuer, req) })
	return id, raw
}

// expired makes tokens that have expired: they were made in a bubble, whose clock begins in the year 2000.
func (r *rig) expired(n int, scope string) (all []string) {
	r.t.Helper()
	synctest.Test(r.t.(*testing.T), func(t *testing.T) {
		r.withIssuer(t, func(issuer *auth.Issuer) {
			for range n {
				_, raw := mintWith(t, issuer, auth.MintRequest{Scopes: []string{scope}, ExpiresIn: time.Minute})
				all = append(all, raw)
			}
		})
	})
	return all
}

func (r *rig) withIssuer(t testing.TB, do func(*auth.Issuer)) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: r.cfg.Resolve(r.cfg.Storage.Path), Beside: r.srv != nil})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	do(issuerOf(t, r.cfg, db))
}

func mintWith(t testing.TB, issuer *auth.Issuer, req auth.MintRequest) (id, raw string) {
	t.Helper()
	tok, secret, err := issuer.Mint(t.Context(), auth.Anonymous(), req)
	if err != nil {
		t.Fatal(err)
	}
	return tok.ID, string(secret)
}

// issuerOf makes tokens of a configuration.
func issuerOf(t testing.TB, cfg *config.Config, db *store.DB) *auth.Issuer {
	t.Helper()
	secrets, err := server.SecretsFor(cfg, slog.New(slog.DiscardHandler), string(cfg.Auth.PepperRef))
	if err != nil {
		t.Fatal(err)
	}
	key, err := secrets.Resolve(string(cfg.Auth.PepperRef))
	if err != nil {
		t.Fatal(err)
	}
	v, err := auth.NewVerifier(auth.Options{Tokens: db.Tokens(), Pepper: key, Prefix: cfg.Auth.TokenPrefix, Envs: cfg.Auth.TokenEnvironments})
	if err != nil {
		t.Fatal(err)
	}
	return v.Issuer()
}

func (r *rig) start() {
	r.t.Helper()
	srv, err := server.New(server.Options{Config: r.cfg, Logger: r.log})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, reg := range testAgents(r.released) {
		if err := srv.Agents().Register(reg); err != nil {
			r.t.Fatal(err)
		}
	}
	addr, err := srv.Start(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	r.srv, r.url = srv, "http://"+addr.String()
	r.contract = readContract(r.t, r)
}

// stop ends the server without waiting for runs.
func (r *rig) stop() {
	r.t.Helper()
	r.client.CloseIdleConnections()
	if r.srv == nil { // the test has stopped it
		return
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.srv.Shutdown(now); err != nil {
		r.t.Errorf("Shutdown() = %v, want none", err)
	}
}

// release lets one run of the agent hold finish.
func (r *rig) release() {
	r.t.Helper()
	select {
	case r.released <- struct{}{}:
	case <-time.After(patience):
		r.t.Fatal("no run waits to be released")
	}
}

// mint makes a token of the administrator's lineage, through the API.
func (r *rig) mint(expiresInMS int, scopes ...string) (id, raw string) {
	r.t.Helper()
	return r.mintBy(r.admin, expiresInMS, scopes...)
}

func (r *rig) mintBy(minter string, expiresInMS int, scopes ...string) (id, raw string) {
	r.t.Helper()
	ask := map[string]any{"scopes": scopes}
	if expiresInMS > 0 {
		ask["expiresInMs"] = expiresInMS
	}
	body, _ := json.Marshal(ask)
	ans := r.do("POST", r.cfg.Server.BasePath+"/tokens", minter, string(body))
	if ans.StatusCode != http.StatusCreated {
		r.t.Fatalf("POST /tokens %s = %d %s, want 201", body, ans.StatusCode, ans.body)
	}
	var minted struct {
		Token struct{ ID string }
		Raw   string
	}
	if err := json.Unmarshal([]byte(ans.body), &minted); err != nil {
		r.t.Fatal(err)
	}
	return minted.Token.ID, minted.Raw
}

// answer is a response with its whole body.
type answer struct {
	*http.Response
	body string
}

// code is the member error of the body.
func (a answer) code() string {
	var body struct{ Error string }
	json.Unmarshal([]byte(a.body), &body) //nolint:errcheck // then it has none
	return body.Error
}

// do sends a request and reads the whole answer; headers are "Name: value".
func (r *rig) do(method, path, token, body string, headers ...string) answer {
	r.t.Helper()
	x := r.send(method, path, token, body, headers...)
	defer x.close()
	return x.whole(r.t)
}

// send sends a request in the background.
func (r *rig) send(method, path, token, body string, headers ...string) *exchange {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body == "" {
		req.Body = nil
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		if name == "Host" {
			req.Host = strings.TrimSpace(value)
			continue
		}
		req.Header.Set(name, strings.TrimSpace(value))
	}
	x := &exchange{rig: r, method: method, path: path, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		x.resp, x.err = r.client.Do(req)
	}()
	return x
}

// exchange is a request that was sent. Its fields resp and err may be read when done is closed.
type exchange struct {
	rig    *rig
	method string
	path   string
	cancel context.CancelFunc
	done   chan struct{}
	resp   *http.Response
	err    error
	stream *bufio.Reader // of an event stream
	all    *string       // the body, once it is read
}

// response waits for the headers of the answer.
func (x *exchange) response(t testing.TB) *http.Response {
	t.Helper()
	<-x.done
	if x.err != nil {
		t.Fatalf("%s %s: %v", x.method, x.path, x.err)
	}
	return x.resp
}

func (x *exchange) isStream(t testing.TB) bool {
	return strings.HasPrefix(x.response(t).Header.Get("Content-Type"), "text/event-stream")
}

// whole reads the body to its end and checks the answer.
func (x *exchange) whole(t testing.TB) answer {
	t.Helper()
	resp := x.response(t)
	if x.all == nil {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%s %s: the body ends with %v", x.method, x.path, err)
		}
		x.all = new(string(body))
		if c := x.rig.contract; c != nil {
			c.check(t, x, *x.all)
		}
	}
	return answer{resp, *x.all}
}

// close gives the connection back; a stream that has not ended is left.
func (x *exchange) close() {
	x.cancel()
	<-x.done
	if x.err == nil {
		x.resp.Body.Close()
	}
}
