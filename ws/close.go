package ws

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Close sends a close frame, if none has been sent, waits for the peer's, and closes the TCP connection (section 7.1.1 and
// 7.1.2), whatever happens. It takes no longer than 5 s, even if others are writing to a peer that does not read.
// It cuts the reason to 123 bytes. CodeNone sends no code; of the others, only one that can be sent is allowed.
//
// The error is nil if the peer's close frame has come. Messages that come meanwhile go to a Read that is waiting, or are
// dropped. After Read has failed, Close only waits until the peer has closed the TCP connection.
func (c *Conn) Close(code Code, reason string) error {
	defer c.CloseNow()
	late := time.AfterFunc(closeTimeout, func() { c.shut(fmt.Errorf("ws: close: %w", os.ErrDeadlineExceeded)) })
	defer late.Stop()
	if err := c.sendClose(closePayload(code, reason)); err != nil {
		return err
	}
	c.reading <- struct{}{}
	defer func() { <-c.reading }()
	if c.readErr == nil {
		c.in.detach() // the caller of Read may still use what it returned
		c.msg = message{}
		c.drop() //nolint:errcheck // see below
	}
	c.linger()
	if !c.peerDone {
		return c.readErr
	}
	return nil
}

// linger waits until the peer has closed the TCP connection, so that the last bytes reach it: closing a socket with bytes
// unread resets the connection, which can destroy what is on its way to the peer.
func (c *Conn) linger() {
	half, ok := c.nc.(interface{ CloseWrite() error }) // section 7.1.1: the server is the first to close
	if ok && half.CloseWrite() == nil && c.nc.SetReadDeadline(time.Time{}) == nil {
		io.Copy(io.Discard, c.nc) //nolint:errcheck // only the end counts, however it comes
	}
}

// sendClose sends the close frame, unless one has been sent.
func (c *Conn) sendClose(payload []byte) error {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	if c.closeSent {
		return nil
	}
	c.closeSent = true
	return c.writeFrame(opClose, payload)
}
