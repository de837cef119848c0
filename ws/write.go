package ws

import (
	"bytes"
	"time"
)

// AppendHead adds to b what precedes the payload of a message, which has size bytes. With the payload behind it, b has one
// more message for Write: so a server can build messages from parts that many peers share. Text has to be valid UTF-8.
func AppendHead(b []byte, t Type, size int) []byte { return appendHeader(b, opcode(t), size) }

// Write sends messages that were built with AppendHead, with one write to the network, after those of others who wait. It
// neither changes nor keeps them. If it takes longer than WriteTimeout, it shuts the connection.
//
// The error says how the connection has ended, as that of Read does, or is ErrClosed after Close. Some of the messages may
// have been sent.
func (c *Conn) Write(messages []byte) error {
	return c.turn(func() error { return c.send(messages) })
}

// Ping sends a ping, and does not wait for the pong. If the peer has not answered the ping before, Ping shuts the connection.
// Errors are those of Write. So one loop can keep any number of connections alive.
func (c *Conn) Ping() error {
	if c.pinged.Swap(true) {
		c.CloseNow()
	}
	return c.turn(func() error { return c.sendControl(opPing, nil) })
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

// sendControl sends a control frame.
func (c *Conn) sendControl(op opcode, payload []byte) error {
	return c.send(append(appendHeader(nil, op, len(payload)), payload...))
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
			err = c.sendControl(opPong, *pong)
		}
		<-c.writing
	}
	return err
}
