package ws

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Close sends a close frame, if none has been sent, waits for the peer's, and closes the TCP connection (section 7.1.1 and
// 7.1.2), whatever happens. It takes no longer than the context and CloseTimeout allow, even if others are writing to a
// peer that does not read. The reason is cut to 123 bytes. CodeNone sends no code; of the others, one that must
// not be sent closes without a close frame.
//
// The error is nil if the peer's close frame has come. Messages that come meanwhile go to a Read that is waiting, or are
// dropped. After Read has failed, Close only waits until the peer has taken notice.
func (c *Conn) Close(ctx context.Context, code Code, reason string) error {
	defer c.CloseNow()
	payload, err := closePayload(code, reason)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.CloseTimeout)
	defer cancel()
	leave := context.AfterFunc(ctx, func() { c.shut(fmt.Errorf("ws: close: %w", context.Cause(ctx))) })
	defer leave()

	if err := c.sendClose(ctx, payload); err != nil {
		return err
	}
	if err := c.acquire(ctx, c.reading); err != nil {
		return err
	}
	defer func() { <-c.reading }()
	if c.readErr == nil {
		c.in.detach() // who has called Read may still use what it returned
		c.msg.buf = nil
		c.readErr = c.awaitClose()
	}
	c.linger()
	if !c.peerDone {
		return c.readErr
	}
	return nil
}

// awaitClose reads until the peer's close frame.
func (c *Conn) awaitClose() error {
	if err := c.nc.SetReadDeadline(time.Time{}); err != nil {
		return c.lost("read", err)
	}
	for {
		h, err := c.readHeader()
		if err != nil {
			return err
		}
		if h.op == opClose {
			return c.readControl(h)
		}
		for left := h.length; left > 0; {
			if c.in.buffered() == 0 {
				if err := c.fill(); err != nil {
					return err
				}
			}
			n := min(left, uint64(c.in.buffered()))
			c.in.skip(int(n))
			left -= n
		}
	}
}

// linger waits until the peer has closed the TCP connection, so that what was sent last reaches it: a socket that is
// closed with bytes unread resets the connection, which can destroy what is on its way to the peer.
func (c *Conn) linger() {
	if !c.client || !c.peerDone { // section 7.1.1: otherwise the server is the first to close
		half, ok := c.nc.(interface{ CloseWrite() error })
		if !ok || half.CloseWrite() != nil {
			return
		}
	}
	if c.nc.SetReadDeadline(time.Time{}) == nil {
		io.Copy(io.Discard, c.nc) //nolint:errcheck // its end is what is waited for, however it comes
	}
}

// answerClose sends a close frame in answer to what has been read. What becomes of it is of no consequence: the
// connection is over.
func (c *Conn) answerClose(code Code, reason string) {
	ctx, cancel := context.WithTimeout(context.Background(), c.options.WriteTimeout)
	defer cancel()
	if payload, err := closePayload(code, reason); err == nil {
		c.sendClose(ctx, payload) //nolint:errcheck // see above
	}
}

// sendClose sends the close frame, unless one has been sent.
func (c *Conn) sendClose(ctx context.Context, payload []byte) error {
	if err := c.acquire(ctx, c.writing); err != nil {
		return err
	}
	defer func() { <-c.writing }()
	if c.closeSent {
		return nil
	}
	c.closeSent = true
	return c.writeFrame(opClose, payload)
}
