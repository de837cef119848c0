package cli

import (
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"agentd/server/fault"
)

// firstInherited is the first file descriptor that a service manager passes on (sd_listen_fds(3)).
const firstInherited = 3

// inherited is the listener that a service manager has opened for this process; nil when there is none.
func (c *call) inherited() (net.Listener, error) {
	if c.getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	if n := c.getenv("LISTEN_FDS"); n != "1" {
		return nil, fault.New(fault.BindFailed, "The service manager passes %.10q sockets; agentd needs exactly one.", n).
			Advise("Keep one ListenStream= in the socket unit.")
	}
	f := os.NewFile(firstInherited, "inherited socket")
	defer f.Close()
	l, err := net.FileListener(f) // of its own, closed in programs that this one starts
	if err != nil {
		return nil, fault.New(fault.BindFailed, "The socket of the service manager cannot be used: %v.", err).Because(err)
	}
	return l, nil
}

// notifyPatience is how long a service manager may take to make room for a state.
const notifyPatience = 2 * time.Second

// notify tells a service manager how the process is (sd_notify(3)), where one wants to know.
func (c *call) notify(state string) error {
	path := c.getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:] // of the abstract namespace
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(notifyPatience)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return err
}
