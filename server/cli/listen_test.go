package cli_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const listenSite = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "agents": {"shout": {"kind": "exec", "command": ["tr", "a-z", "A-Z"]}},
	"server": %s
}`

// startAt starts a server in a folder of its own and waits until it is ready; what is printed tells where it listens.
func startAt(t *testing.T, dir, settings string, env ...string) *process {
	t.Helper()
	write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(listenSite, settings))
	p := spawn(t, dir, nil, env, "start", "--port", "0")
	eventually(t, "the line that tells where it listens", func() bool {
		select {
		case <-p.done:
			t.Fatalf("start ended:\n%s", p.stderr.String())
		default:
		}
		return strings.Contains(p.stderr.String(), `"msg":"listening"`)
	})
	return p
}

// through runs an agent by way of the server that holds the store.
func through(t *testing.T, dir string) {
	t.Helper()
	spawn(t, dir, nil, nil, "run", "shout", "hello").wait().want(t, 0, "HELLO", "")
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	for range 2 { // the second finds the socket that the first has left
		p := startAt(t, dir, `{"socket": {"path": "s", "mode": 432}}`)
		info, err := os.Stat(path)
		if err != nil || info.Mode() != os.ModeSocket|0o660 {
			t.Errorf("the socket has mode %v, %v; want 0660", info.Mode(), err)
		}
		through(t, dir)
		p.signal(syscall.SIGKILL)
		p.wait()
	}
	write(t, filepath.Join(dir, "file"), "mine")
	write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(listenSite, `{"socket": {"path": "file"}}`))
	spawn(t, dir, nil, nil, "start").wait().want(t, 1, "", "bind-failed")
	if read(t, filepath.Join(dir, "file")) != "mine" {
		t.Error("a file that is no socket was replaced")
	}
}

// A server whose queue of connections is full still has its socket.
func TestUnixSocketBusy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		defer syscall.Close(fd)
		err = errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		conn, err := net.DialTimeout("unix", path, time.Second)
		if err != nil {
			break
		}
		defer conn.Close()
		if n == 100 {
			t.Skip("the queue takes everybody")
		}
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(listenSite, `{"socket": {"path": "s"}}`))
	p := spawn(t, dir, nil, nil, "start")
	eventually(t, "a refusal", func() bool {
		if strings.Contains(p.stderr.String(), `"msg":"listening"`) {
			p.signal(syscall.SIGKILL)
			t.Fatal("the server has taken the socket of another")
		}
		return strings.Contains(p.stderr.String(), "bind-failed")
	})
	p.wait().want(t, 1, "", "bind-failed")
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the socket of another server was replaced: %v", err)
	}
}

// certificate writes a certificate of its own for a name, and returns it.
func certificate(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	write(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	settings := `{"tls": {"certFile": "cert.pem", "keyFile": "key.pem"}}`
	write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(listenSite, settings))
	spawn(t, dir, nil, nil, "start", "--port", "0").wait().want(t, 1, "", "pre-bind-tls-unusable")

	certificate(t, dir, "one.example")
	write(t, filepath.Join(dir, "phrase"), "correct horse battery staple")
	env := []string{"AGENTD_AUDIT_ENABLED=true", "AGENTD_AUDIT_PASSPHRASEREF=file:phrase"}
	p := startAt(t, dir, settings, env...)
	through(t, dir)
	_, rest, _ := strings.Cut(p.stderr.String(), "https://")
	address, _, _ := strings.Cut(rest, "/")
	served := func() string {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // what it serves is looked at
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].DNSNames[0]
	}
	if got := served(); got != "one.example" {
		t.Errorf("the server is %s, want one.example", got)
	}
	write(t, filepath.Join(dir, "cert.pem"), "half")
	<-time.After(1100 * time.Millisecond)
	if got := served(); got != "one.example" {
		t.Errorf("with a broken certificate the server is %s, want the one before", got)
	}
	// What kept the file from being read can be gone without a change of its time.
	times := map[string]time.Time{}
	for _, name := range []string{"cert.pem", "key.pem"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		times[name] = info.ModTime()
	}
	certificate(t, dir, "two.example")
	for name, at := range times {
		if err := os.Chtimes(filepath.Join(dir, name), time.Time{}, at); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the new certificate", func() bool { return served() == "two.example" })
	logged := func() int { return strings.Count(p.stderr.String(), "certificate cannot be read") }
	eventually(t, "the log of the one that could not be read", func() bool { return logged() > 0 })
	if n := logged(); n != 1 {
		t.Errorf("that a certificate cannot be read is logged %d times, want once", n)
	}
	through(t, dir)
	chain := with(t, t.Context(), "", env, "audit", "list", "--config", filepath.Join(dir, "agentd.json"), "--action", "config:reload", "--json").want(t, 0, `"target": "server.tls"`, "").stdout
	if n := strings.Count(chain, `"certificateSha256"`); n != 1 {
		t.Errorf("the chain tells of %d changes of the certificate, want 1: %s", n, chain)
	}
	p.signal(syscall.SIGTERM)
	p.wait().want(t, 0, "", "")
}

// A service manager passes a socket on, and is told when the server is ready and when it stops.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(listenSite, `{}`))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "n"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	told := func() string {
		t.Helper()
		var b [200]byte
		manager.SetReadDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // the read tells
		n, err := manager.Read(b[:])
		if err != nil {
			t.Fatalf("the service manager is told nothing: %v", err)
		}
		return string(b[:n])
	}
	p := command(t, dir)
	// The shell becomes the program, whose process id it knows.
	p.cmd.Path, p.cmd.Args = "/bin/sh", []string{"sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" start`, binary}
	p.cmd.ExtraFiles = []*os.File{f}
	p.cmd.Env = append(p.cmd.Env, "NOTIFY_SOCKET="+manager.LocalAddr().String())
	p.start()
	if got, want := told(), "READY=1\nSTATUS=Listening on "+l.Addr().String(); got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	through(t, dir)
	p.signal(syscall.SIGTERM)
	if got := told(); got != "STOPPING=1" {
		t.Errorf("told %q, want STOPPING=1", got)
	}
	p.wait().want(t, 0, "", "")
}

// A service manager that reads no more does not keep the server from stopping.
func TestServiceManagerThatHangs(t *testing.T) {
	t.Parallel()
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "n"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	p := startAt(t, t.TempDir(), `{}`, "NOTIFY_SOCKET="+manager.LocalAddr().String())
	conn, err := net.Dial("unixgram", manager.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for err == nil { // until the queue is full
		conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond)) //nolint:errcheck // the write tells
		_, err = conn.Write([]byte("x"))
	}
	p.signal(syscall.SIGTERM)
	eventually(t, "the end of the server", func() bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
}

func TestFilesAreTheOwnersAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := startAt(t, dir, `{}`)
	through(t, dir)
	files, err := filepath.Glob(filepath.Join(dir, "data.db*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, %v; want nobody else to read it", file, info.Mode(), err)
		}
	}
	p.signal(syscall.SIGTERM)
	p.wait().want(t, 0, "", "")
	if os.Geteuid() == 0 {
		write(t, filepath.Join(dir, "agentd.json"), `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "hardening": {"refuseRoot": true}}`)
		spawn(t, dir, nil, nil, "start", "--port", "0").wait().want(t, 1, "", "refuse-to-run-as-root")
	}
}
