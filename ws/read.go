package ws

import (
	"fmt"
	"io"
	"time"
	"unicode/utf8"
)

// message is the one that is being read.
type message struct {
	typ     Type // 0: none is
	frames  int
	payload []byte // so far
	timed   bool   // nc has a read deadline for it
}

// Read returns the next message, which may come in any number of frames. Its payload is valid until the next call of
// Read; that of a Text message is valid UTF-8. While Read waits, it answers pings and notes pongs.
//
// The error is a *CloseError if the peer has closed or broken a rule; Read has answered both with a close frame. Otherwise
// it says how the connection was lost. Every later call returns the same.
func (c *Conn) Read() (Type, []byte, error) {
	c.reading <- struct{}{}
	defer func() { <-c.reading }()
	if c.readErr == nil {
		c.msg = message{}
		c.readErr = c.readMessage()
	}
	if c.readErr != nil {
		c.msg = message{}
	}
	return c.msg.typ, c.msg.payload, c.readErr
}

// Discard reads until the connection has ended, and drops what comes: it neither holds nor checks messages. It serves
// control frames as Read does. It returns why the connection has ended.
func (c *Conn) Discard() error {
	c.reading <- struct{}{}
	defer func() { <-c.reading }()
	return c.drop()
}

// drop reads frames and drops messages until the connection has ended.
func (c *Conn) drop() error {
	c.msg = message{}
	for c.readErr == nil {
		h, err := c.readHeader()
		if err == nil && h.op.control() {
			err, h.length = c.readControl(h), 0
		}
		for err == nil && h.length > 0 {
			var n int
			if n, err = c.br.Discard(int(min(h.length, inputSize))); err != nil {
				err = c.readFailed(err)
			}
			h.length -= uint64(n)
		}
		c.readErr = err
	}
	return c.readErr
}

// readMessage reads frames until a message is complete.
func (c *Conn) readMessage() error {
	m := &c.msg
	for last := false; !last; {
		h, err := c.readHeader()
		if err != nil {
			return err
		}
		if h.op.control() {
			if err := c.readControl(h); err != nil {
				return err
			}
			m.timed = m.timed && m.typ != 0
			continue
		}
		switch {
		case h.op == opContinuation && m.typ == 0: // section 5.4
			return c.refuse(CodeProtocol, "continuation of nothing")
		case h.op != opContinuation && m.typ != 0: // section 5.4
			return c.refuse(CodeProtocol, "new message inside another")
		case h.length > uint64(c.maxMessage-len(m.payload)):
			return c.refuse(CodeTooBig, fmt.Sprintf("message longer than %d bytes", c.maxMessage))
		case m.frames == maxFrames:
			return c.refuse(CodePolicy, fmt.Sprintf("message of more than %d frames", maxFrames))
		}
		m.frames++
		m.typ = max(m.typ, Type(h.op)) // a continuation is 0
		if err := c.readPayload(h); err != nil {
			return err
		}
		last = h.fin
	}
	if m.typ == Text && !utf8.Valid(m.payload) { // section 8.1
		return c.refuse(CodeInvalidPayload, "text that is not UTF-8")
	}
	return nil
}

// readHeader reads the next header. Between messages it waits for any time.
func (c *Conn) readHeader() (header, error) {
	if c.br.Buffered() == 0 && c.msg.typ == 0 {
		if c.limited {
			c.limited = false
			c.nc.SetReadDeadline(time.Time{}) //nolint:errcheck // the read fails
		}
		if _, err := c.br.Peek(1); err != nil {
			return header{}, c.readFailed(err)
		}
	}
	for n := 2; ; {
		b, err := c.peek(n)
		if err != nil {
			return header{}, err
		}
		h, size, broken := parseHeader(b)
		switch {
		case broken != "":
			return header{}, c.refuse(CodeProtocol, broken)
		case size == n:
			c.br.Discard(n) //nolint:errcheck // they have been peeked
			return h, nil
		}
		n = size
	}
}

// readPayload adds the payload of a frame to the message.
func (c *Conn) readPayload(h header) error {
	m, left := &c.msg, int(h.length)
	if h.fin && len(m.payload) == 0 && left <= c.br.Buffered() { // all of the message is here: no need to copy it
		p, _ := c.br.Peek(left)
		c.br.Discard(left) //nolint:errcheck // they have been peeked
		m.payload = p[:left:left]
		mask(m.payload, h.key)
		return nil
	}
	most := c.maxMessage
	if h.fin {
		most = len(m.payload) + left
	}
	for left > 0 {
		if c.br.Buffered() == 0 {
			c.hurry()
		}
		have := len(m.payload)
		if have == cap(m.payload) { // memory does not follow what the peer announces, only what it has sent
			m.payload = append(make([]byte, 0, min(max(4*have, min(left, firstPayload)), most)), m.payload...)
		}
		p := m.payload[have:min(have+left, cap(m.payload))]
		n, err := c.br.Read(p)
		if err != nil {
			return c.readFailed(err)
		}
		h.key = mask(p[:n], h.key)
		m.payload = m.payload[:have+n]
		left -= n
	}
	return nil
}

// firstPayload is how many bytes a message gets before more than that of it has come.
const firstPayload = 8 << 10

// peek returns the next n bytes. They stay where they are until the next read.
func (c *Conn) peek(n int) ([]byte, error) {
	if c.br.Buffered() < n {
		c.hurry()
	}
	p, err := c.br.Peek(n)
	if err != nil {
		return nil, c.readFailed(err)
	}
	return p, nil
}

// hurry limits the time of a message whose beginning has come and whose end has not.
func (c *Conn) hurry() {
	if !c.msg.timed {
		c.msg.timed, c.limited = true, true
		c.nc.SetReadDeadline(time.Now().Add(messageTimeout)) //nolint:errcheck // the read fails
	}
}

// readFailed interprets the failure of a read from the network.
func (c *Conn) readFailed(err error) error {
	if timeout, ok := err.(interface{ Timeout() bool }); ok && timeout.Timeout() && c.failure() == nil {
		return c.refuse(CodePolicy, "message slower than "+messageTimeout.String())
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF // section 7.1.5: without a close frame it is no proper end
	}
	return c.lost("read", err)
}

// lost ends a connection that does not work any more.
func (c *Conn) lost(what string, err error) error {
	c.shut(fmt.Errorf("ws: %s: %w", what, err))
	return c.failure()
}

// refuse ends a connection whose peer broke a rule with a close frame that says so (section 7.1.7).
func (c *Conn) refuse(code Code, reason string) error {
	return c.answerClose(&CloseError{Code: code, Reason: reason, Refused: true}, reason)
}

// answerClose ends a connection for a cause and sends a close frame with its code. If that fails, nothing follows from it:
// the connection is over.
func (c *Conn) answerClose(cause *CloseError, reason string) error {
	err := c.fail(cause)
	c.sendClose(closePayload(cause.Code, reason)) //nolint:errcheck // see above
	return err
}

// readControl reads and serves a control frame (section 5.5).
func (c *Conn) readControl(h header) error {
	p, err := c.peek(int(h.length))
	if err != nil {
		return err
	}
	c.br.Discard(len(p)) //nolint:errcheck // they have been peeked
	mask(p, h.key)
	switch h.op {
	case opPing:
		return c.answerPing(p)
	case opPong:
		c.pinged.Store(false)
		return nil
	}
	c.peerDone = true
	closed := parseClose(p)
	if closed.Refused {
		return c.answerClose(closed, closed.Reason)
	}
	return c.answerClose(closed, "")
}
