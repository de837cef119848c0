package server

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"agentd/server/fault"
)

// Address is where a server listens: on a host and port, or on a Unix socket.
type Address struct {
	Host   string `json:"host"`
	Port   int    `json:"port"`
	Socket string `json:"socket,omitempty"` // path of the Unix socket; then there is no host
	TLS    bool   `json:"tls,omitempty"`
}

// String is host:port, or the path of the socket.
func (a Address) String() string {
	if a.Socket != "" {
		return a.Socket
	}
	return net.JoinHostPort(a.Host, strconv.Itoa(a.Port))
}

// URL is the address of a path on the server. That of a Unix socket has the form unix:PATH#PATH.
func (a Address) URL(path string) string {
	switch {
	case a.Socket != "":
		return "unix:" + a.Socket + "#" + path
	case a.TLS:
		return "https://" + a.String() + path
	}
	return "http://" + a.String() + path
}

// listen binds the listener, unless the caller of New has brought one.
func (s *Server) listen() (net.Listener, Address, error) {
	cfg := &s.cfg.Server
	addr := Address{Host: cfg.Host, TLS: cfg.TLS.CertFile != ""}
	var certificates *keyPair
	if addr.TLS {
		certificates = &keyPair{cert: s.cfg.Resolve(cfg.TLS.CertFile), key: s.cfg.Resolve(cfg.TLS.KeyFile), log: s.log, changed: s.auditCertificate(s.parts)}
		if _, err := certificates.current(nil); err != nil {
			return nil, addr, fault.New(fault.TLSUnusable, "The server cannot use the certificate of server.tls: %v.", fault.Innermost(err)).Because(err)
		}
	}
	l, err := s.opts.Listener, error(nil)
	switch {
	case l != nil:
	case cfg.Socket.Path != "":
		l, err = listenSocket(s.cfg.Resolve(cfg.Socket.Path), fs.FileMode(cfg.Socket.Mode))
	default:
		l, err = net.Listen("tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(cfg.Port)))
	}
	if err != nil {
		where := fmt.Sprintf("Port %d of %s", cfg.Port, cfg.Host)
		if cfg.Socket.Path != "" {
			where = "The socket " + cfg.Socket.Path
		}
		return nil, addr, fault.New(fault.BindFailed, "%s cannot be bound: %v.", where, fault.Innermost(err)).Because(err)
	}
	switch bound := l.Addr().(type) {
	case *net.TCPAddr:
		if addr.Port = bound.Port; s.opts.Listener != nil {
			addr.Host = bound.IP.String()
		}
	case *net.UnixAddr:
		addr.Host, addr.Socket = "", bound.Name
	}
	l = s.parts.connections.limit(l, certificates != nil)
	if certificates != nil {
		l = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificates.current, NextProtos: []string{"http/1.1"}})
	}
	return l, addr, nil
}

// listenSocket binds a Unix socket. One that an earlier process has left is replaced.
func listenSocket(path string, mode fs.FileMode) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		conn, dialErr := net.DialTimeout("unix", path, time.Second)
		if dialErr == nil {
			conn.Close()
		}
		if !errors.Is(dialErr, syscall.ECONNREFUSED) { // somebody has it, even if too busy to answer or not for us
			return nil, err
		}
		if info, statErr := os.Lstat(path); statErr != nil || info.Mode().Type() != fs.ModeSocket {
			return nil, err
		}
		if rmErr := os.Remove(path); rmErr != nil {
			return nil, errors.Join(err, rmErr)
		}
		if l, err = net.Listen("unix", path); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// keyPair is a certificate in files, which are read again while the server runs.
type keyPair struct {
	cert, key string
	log       *slog.Logger
	changed   func(*tls.Certificate) // called with another certificate before it is used

	mu      sync.Mutex // guards the fields below
	checked time.Time
	broken  bool // the files could not be read the last time; logged
	loaded  *tls.Certificate
}

// recheck is how long a certificate is used before its files are read again.
const recheck = time.Second

// current is the certificate to use. Files that cannot be read are logged once, and the certificate before stays in use
// until they can.
func (k *keyPair) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.loaded != nil && time.Since(k.checked) < recheck {
		return k.loaded, nil
	}
	k.checked = time.Now()
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	switch {
	case err != nil && k.loaded == nil:
		return nil, err
	case err != nil && !k.broken:
		k.log.Error("certificate cannot be read; the previous one remains in use", "file", k.cert, "error", err)
	case err == nil && k.loaded == nil:
		k.loaded = &pair
	case err == nil && !slices.EqualFunc(pair.Certificate, k.loaded.Certificate, bytes.Equal):
		k.log.Info("certificate reloaded", "file", k.cert)
		k.changed(&pair)
		k.loaded = &pair
	}
	k.broken = err != nil
	return k.loaded, nil
}
