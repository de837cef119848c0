package tool

import (
	"strings"
	"sync"

	"agentd/server/message"
)

// maxBuffer is how much of the chunks of one call is kept, in bytes: 8 MiB.
const maxBuffer = 8 << 20

// live passes what a tool reports on, and keeps its chunks as the body of a result that has no other. Once closed it
// does neither.
type live struct {
	mu       sync.Mutex // guards all, and makes the receivers be called one at a time
	progress func(current, total float64, note string)
	stream   func(Chunk)
	closed   bool

	streamed  bool // there was a chunk
	size      int
	truncated bool // a chunk did not fit; later ones are not kept either
	text      strings.Builder
	images    []message.Part
}

func (l *live) reportProgress(current, total float64, note string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed && l.progress != nil {
		l.progress(current, total, note)
	}
}

func (l *live) reportChunk(c Chunk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	c.Text = strings.ToValidUTF8(c.Text, "\uFFFD")
	l.keep(c)
	if l.stream != nil {
		l.stream(c)
	}
}

// keep adds a text or an image to the body. The text that crosses the limit is kept up to it; an image that does not fit is not
// kept at all.
func (l *live) keep(c Chunk) {
	l.streamed = true
	if l.truncated || c.Kind == JSONDelta {
		return
	}
	room := maxBuffer - l.size
	l.truncated = len(c.Text)+len(c.Data) > room
	if c.Kind == Text {
		c.Text = message.Clean(c.Text, room)
		l.text.WriteString(c.Text)
	} else if !l.truncated {
		l.images = append(l.images, message.Part{Type: "image", MimeType: c.MediaType, Image: &message.Bytes{Enc: "base64", Data: c.Data}})
	}
	l.size += len(c.Text) + len(c.Data)
}

// close ends it: nothing is passed on or kept when it has returned.
func (l *live) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// body is the result that the texts and images make, once closed.
func (l *live) body() Result {
	r := Result{Parts: l.images}
	if l.text.Len() > 0 {
		r.Output, _ = message.Encode(l.text.String())
	}
	return r
}
