package ws

import (
	"bytes"
	"time"
)

// largeOutput is how many bytes are gathered for one write to the network, at most.
const largeOutput = 32 << 10

// Write sends a message in one frame, after those of others who wait. It neither changes nor keeps p. Text has to be valid
// UTF-8; Write does not check that. If it takes longer than WriteTimeout, it shuts the connection.
//
// The error says how the connection has ended, as that of Read does, or is ErrClosed after Close.
func (c *Conn) Write(t Type, p []byte) error {
	return c.turn(func() error { return c.writeFrame(opcode(t), p) })
}

// AppendHead adds to b what precedes the payload of a message, which has size bytes. With the payload behind it, b has one
// more message for WriteEncoded: so a server can build messages from parts that many peers share.
func AppendHead(b []byte, t Type, size int) []byte { return appendHeader(b, opcode(t), size) }

// WriteEncoded sends messages that were built with AppendHead, with one write to the network. Errors are those of
// Write; some of the messages may have been sent.
func (c *Conn) WriteEncoded(messages []byte) error {
	return c.turn(func() error { return c.send(messages) })
}

// Ping sends a ping, and does not wait for the pong. If the peer has not answered the ping before, Ping shuts the connection.
// So one loop can keep any number of connections alive. Errors are those of Write.
func (c *Conn) Ping() error {
	if c.pinged.Swap(true) {
		c.CloseNow()
	}
	return c.turn(func() error { return c.writeFrame(opPing, nil) })
}

// turn waits for the turn to write, and writes.
func (c *Conn) turn(write func() error) error {
	c.writing <- struct{}{}
	err := c.failure()
	if err == nil && c.closeSent {
		err = ErrClosed
	}
	if err == nil {
		err = write()
	}
	<-c.writing
	c.writePong() //nolint:errcheck // the next call fails
	return err
}

// writeFrame sends one frame, by one write to the network if it is not longer than largeOutput.
func (c *Conn) writeFrame(op opcode, p []byte) error {
	out := getBuffer(min(maxHeader+len(p), largeOutput))
	defer out.free()
	out.b = appendHeader(out.b, op, len(p))
	n := min(len(p), cap(out.b)-len(out.b))
	out.b = append(out.b, p[:n]...)
	if err := c.send(out.b); err != nil {
		return err
	}
	return c.send(p[n:])
}

// send writes to the network. Its deadline is set ahead, so that not every write has to set it.
func (c *Conn) send(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if now := time.Now(); c.writeBy.Sub(now) < c.writeTimeout {
		c.writeBy = now.Add(c.writeTimeout * 3 / 2)
		c.nc.SetWriteDeadline(c.writeBy) //nolint:errcheck // the write fails
	}
	if _, err := c.nc.Write(b); err != nil {
		return c.lost("write", err)
	}
	return nil
}

// answerPing sends a pong (section 5.5.2), or leaves it to the one who is writing now. Only the last ping that still has
// no pong gets one, as section 5.5.3 allows: so pongs neither pile up nor make Read wait for a writer.
func (c *Conn) answerPing(payload []byte) error {
	pong := bytes.Clone(payload)
	c.pong.Store(&pong)
	return c.writePong()
}

// writePong sends the pong that is due, unless somebody is writing, who does so afterwards.
func (c *Conn) writePong() (err error) {
	for err == nil && c.pong.Load() != nil {
		select {
		case c.writing <- struct{}{}:
		default:
			return nil
		}
		if pong := c.pong.Swap(nil); pong != nil && !c.closeSent {
			err = c.writeFrame(opPong, *pong)
		}
		<-c.writing
	}
	return err
}
