package ws

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"time"
)

// largeOutput is how many bytes are gathered for one write to the network, at most.
const largeOutput = 32 << 10

// Write sends a message in one frame, after those of others who wait. It neither changes nor keeps p. Text has to be valid
// UTF-8, which is not checked.
//
// The error is the context's if it ended before the turn came: then the connection is as it was. If it ends during the
// writing, or that takes longer than WriteTimeout, the connection is shut. Otherwise the error tells how the connection
// has ended, as that of Read does, or is ErrClosed after Close.
func (c *Conn) Write(ctx context.Context, t Type, p []byte) error {
	if err := c.beginWrite(ctx); err != nil {
		return err
	}
	err := c.writeFrame(opcode(t), p)
	c.endWrite()
	return err
}

// AppendHead adds to b what stands before the payload of a server's message, which has size bytes. With the payload behind
// it, b is one more message for WriteEncoded: so a server can put messages together from parts that many peers share.
func AppendHead(b []byte, t Type, size int) []byte { return appendHeader(b, opcode(t), size, false) }

// WriteEncoded sends messages that were put together with AppendHead, with one write to the network. Only a server may
// call it. Errors are those of Write; some of the messages may have been sent.
func (c *Conn) WriteEncoded(ctx context.Context, messages []byte) error {
	if err := c.beginWrite(ctx); err != nil {
		return err
	}
	err := c.send(messages)
	c.endWrite()
	return err
}

// Ping sends a ping, and does not wait for the pong: see LastPong. Errors are those of Write.
func (c *Conn) Ping(ctx context.Context) error {
	if err := c.beginWrite(ctx); err != nil {
		return err
	}
	err := c.writeFrame(opPing, nil)
	c.endWrite()
	return err
}

// beginWrite waits for the turn to write.
func (c *Conn) beginWrite(ctx context.Context) error {
	if err := c.acquire(ctx, c.writing); err != nil {
		return err
	}
	err := c.failure()
	if err == nil && c.closeSent {
		err = ErrClosed
	}
	if err == nil {
		err = c.writeWatch.begin(ctx, c)
	}
	if err != nil {
		<-c.writing
	}
	return err
}

// endWrite gives the turn to the next.
func (c *Conn) endWrite() {
	c.writeWatch.end()
	<-c.writing
	c.writePongs()
}

// writeFrame sends one frame, by one write to the network if it is not longer than largeOutput.
func (c *Conn) writeFrame(op opcode, p []byte) error {
	out := getBuffer(min(maxHeader+len(p), largeOutput))
	defer out.free()
	out.b = appendHeader(out.b, op, len(p), c.client)
	if !c.client {
		n := min(len(p), cap(out.b)-len(out.b))
		out.b = append(out.b, p[:n]...)
		if err := c.send(out.b); err != nil {
			return err
		}
		return c.send(p[n:])
	}
	at := len(out.b)
	out.b = out.b[:at+4]
	rand.Read(out.b[at:]) //nolint:errcheck // it never fails; section 5.3 wants a key that nobody can predict
	key := binary.LittleEndian.Uint32(out.b[at:])
	for {
		at = len(out.b)
		n := min(len(p), cap(out.b)-at)
		out.b = append(out.b, p[:n]...)
		key = mask(out.b[at:], key)
		if err := c.send(out.b); err != nil {
			return err
		}
		p, out.b = p[n:], out.b[:0]
		if len(p) == 0 {
			return nil
		}
	}
}

// send writes to the network. Its deadline is set ahead, so that not every write has to set it.
func (c *Conn) send(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if now := time.Now(); c.writeBy.Sub(now) < c.options.WriteTimeout {
		c.writeBy = now.Add(c.options.WriteTimeout * 3 / 2)
		if err := c.nc.SetWriteDeadline(c.writeBy); err != nil {
			return c.lost("write", err)
		}
	}
	if _, err := c.nc.Write(b); err != nil {
		return c.lost("write", err)
	}
	return nil
}

// answerPing sends a pong (section 5.5.2), or leaves it to the one who is writing now. Only the last ping that still has
// no pong gets one, as section 5.5.3 allows: so pongs neither pile up nor make Read wait for a writer.
func (c *Conn) answerPing(payload []byte) error {
	c.mu.Lock()
	c.pong = append(c.pong[:0], payload...)
	c.pongDue = true
	c.mu.Unlock()
	return c.writePongs()
}

// writePongs sends what pong is due, unless somebody is writing, who will do it then.
func (c *Conn) writePongs() error {
	for {
		c.mu.Lock()
		due := c.pongDue && c.err == nil
		c.mu.Unlock()
		if !due {
			return nil
		}
		select {
		case c.writing <- struct{}{}:
		default:
			return nil
		}
		err := c.writePong()
		<-c.writing
		if err != nil {
			return err
		}
	}
}

func (c *Conn) writePong() error {
	var payload [maxControl]byte
	c.mu.Lock()
	due, n := c.pongDue, copy(payload[:], c.pong)
	c.pongDue = false
	c.mu.Unlock()
	if !due || c.closeSent {
		return nil
	}
	return c.writeFrame(opPong, payload[:n])
}
