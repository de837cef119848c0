package ws

import (
	"fmt"
	"io"
	"time"
)

// message is the one that is being read.
type message struct {
	typ    Type // 0: none is
	size   int  // bytes of payload so far
	frames int
	text   textCheck
	buf    *buffer // of the payload; nil: none needed yet
	timed  bool    // nc has a read deadline for it
}

// Read returns the next message, which may come in any number of frames. Its payload is valid until the next call of
// Read; that of a Text message is valid UTF-8. While Read waits, it answers pings and notes pongs.
//
// The error is a *CloseError if the peer has closed or broken a rule; Read has answered both with a close frame. Otherwise
// it says how the connection was lost. Every later call returns the same.
func (c *Conn) Read() (Type, []byte, error) {
	c.reading <- struct{}{}
	defer func() { <-c.reading }()
	if c.msg.buf != nil {
		c.msg.buf.free()
		c.msg.buf = nil
	}
	var p []byte
	if c.readErr == nil {
		p, c.readErr = c.readMessage()
	}
	if c.readErr != nil {
		return 0, nil, c.readErr
	}
	typ := c.msg.typ
	c.msg = message{buf: c.msg.buf}
	return typ, p, nil
}

// Discard reads until the connection has ended, and drops what comes: it neither holds nor checks messages. It serves
// control frames as Read does. It returns why the connection has ended.
func (c *Conn) Discard() error {
	c.reading <- struct{}{}
	defer func() { <-c.reading }()
	if c.msg.buf != nil {
		c.msg.buf.free()
	}
	c.msg = message{}
	return c.drop()
}

// drop reads frames and drops messages until the connection has ended.
func (c *Conn) drop() error {
	for c.readErr == nil {
		h, err := c.readHeader()
		if err == nil && h.op.control() {
			err, h.length = c.readControl(h), 0
		}
		for err == nil && h.length > 0 {
			if c.in.buffered() == 0 {
				err = c.fill()
			}
			n := min(h.length, uint64(c.in.buffered()))
			c.in.skip(int(n))
			h.length -= n
		}
		c.readErr = err
	}
	return c.readErr
}

// readMessage reads frames until a message is complete.
func (c *Conn) readMessage() ([]byte, error) {
	m := &c.msg
	for {
		h, err := c.readHeader()
		if err != nil {
			return nil, err
		}
		if h.op.control() {
			if err := c.readControl(h); err != nil {
				return nil, err
			}
			m.timed = m.timed && m.typ != 0
			continue
		}
		switch {
		case h.op == opContinuation && m.typ == 0: // section 5.4
			return nil, c.refuse(CodeProtocol, "continuation of nothing")
		case h.op != opContinuation && m.typ != 0: // section 5.4
			return nil, c.refuse(CodeProtocol, "new message inside another")
		case h.length > uint64(c.maxMessage-m.size):
			return nil, c.refuse(CodeTooBig, fmt.Sprintf("message longer than %d bytes", c.maxMessage))
		case m.frames == maxFrames:
			return nil, c.refuse(CodePolicy, fmt.Sprintf("message of more than %d frames", maxFrames))
		}
		m.frames++
		if h.op != opContinuation {
			m.typ = Type(h.op)
		}
		length := int(h.length)
		m.size += length
		if h.fin && m.buf == nil && length <= c.in.buffered() {
			p := c.in.peek(length) // all of the message is here: no need to copy it
			c.in.skip(length)
			mask(p, h.key)
			if m.typ == Text && !(m.text.add(p) && m.text.done()) {
				return nil, c.refuse(CodeInvalidPayload, notUTF8)
			}
			return p, nil
		}
		if err := c.readPayload(h.key, length, h.fin); err != nil {
			return nil, err
		}
		if !h.fin {
			continue
		}
		if m.typ == Text && !m.text.done() {
			return nil, c.refuse(CodeInvalidPayload, notUTF8)
		}
		return m.buf.b, nil
	}
}

const notUTF8 = "text that is not UTF-8"

// readHeader reads the next header.
func (c *Conn) readHeader() (header, error) {
	for n := 2; ; {
		if err := c.want(n); err != nil {
			return header{}, err
		}
		h, size, broken := parseHeader(c.in.peek(n))
		switch {
		case broken != "":
			return header{}, c.refuse(CodeProtocol, broken)
		case size == n:
			c.in.skip(n)
			return h, nil
		}
		n = size
	}
}

// readPayload adds the payload of a frame, the last one or not, to the message.
func (c *Conn) readPayload(key uint32, length int, last bool) error {
	m := &c.msg
	most := c.maxMessage
	if last {
		most = m.size
	}
	for length > 0 {
		if c.in.buffered() == 0 && length < largeInput/2 {
			if err := c.fill(); err != nil { // reads ahead: the next message may be there as well
				return err
			}
		}
		p := m.room(length, most)
		var n int
		if ready := c.in.buffered(); ready > 0 {
			n = copy(p, c.in.peek(min(ready, len(p))))
			c.in.skip(n)
		} else {
			c.hurry()
			var err error
			if n, err = c.nc.Read(p); n == 0 && err != nil {
				return c.readFailed(err)
			}
		}
		p = p[:n]
		key = mask(p, key)
		if m.typ == Text && !m.text.add(p) {
			return c.refuse(CodeInvalidPayload, notUTF8)
		}
		m.buf.b = m.buf.b[:len(m.buf.b)+n]
		length -= n
	}
	return nil
}

// room returns free memory behind the payload so far, at most n bytes, for a message of at most most bytes. Memory does not
// follow what the peer announces, only what it has sent: beyond 8 KiB it grows to four times that.
func (m *message) room(n, most int) []byte {
	if m.buf == nil {
		m.buf = getBuffer(min(n, largeInput))
	}
	have := len(m.buf.b)
	if have == cap(m.buf.b) {
		old := m.buf
		m.buf = getBuffer(min(4*have, most))
		m.buf.b = append(m.buf.b, old.b...)
		old.free()
	}
	return m.buf.b[have:min(have+n, cap(m.buf.b))]
}

// want makes sure that n bytes are buffered.
func (c *Conn) want(n int) error {
	for c.in.buffered() < n {
		if err := c.fill(); err != nil {
			return err
		}
	}
	return nil
}

// fill reads ahead once. Between messages it waits for any time.
func (c *Conn) fill() error {
	if c.in.buffered() > 0 || c.msg.typ != 0 {
		c.hurry()
	} else if c.hurried {
		c.hurried = false
		c.nc.SetReadDeadline(time.Time{}) //nolint:errcheck // the read fails
	}
	if err := c.in.fill(c.nc); err != nil {
		return c.readFailed(err)
	}
	return nil
}

// hurry limits the time of a message whose beginning has come and whose end has not.
func (c *Conn) hurry() {
	if !c.msg.timed {
		c.msg.timed, c.hurried = true, true
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
	return c.answerClose(&CloseError{code, reason, true})
}

// answerClose ends a connection for a cause and sends a close frame: with the reason if the peer broke a rule. If that fails,
// nothing follows from it: the connection is over.
func (c *Conn) answerClose(cause *CloseError) error {
	err, reason := c.fail(cause), ""
	if cause.Refused {
		reason = cause.Reason
	}
	c.sendClose(closePayload(cause.Code, reason)) //nolint:errcheck // see above
	return err
}

// readControl reads and serves a control frame (section 5.5).
func (c *Conn) readControl(h header) error {
	n := int(h.length)
	if err := c.want(n); err != nil {
		return err
	}
	p := c.in.peek(n)
	c.in.skip(n)
	mask(p, h.key)
	switch h.op {
	case opPing:
		return c.answerPing(p)
	case opPong:
		c.pinged.Store(false)
		return nil
	}
	c.peerDone = true
	return c.answerClose(parseClose(p))
}
