package stream

import (
	"bytes"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"agentd/server/commentary"
	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/message"
)

// A frame is what the server says besides events and answers: a JSON object with `"v":"1"`. Clients refuse members that
// they do not know, and null.
type frame struct {
	V              string `json:"v"`
	Kind           string `json:"kind"`
	Nonce          string `json:"nonce,omitempty"`   // of pong
	Code           string `json:"code,omitempty"`    // of error
	Message        string `json:"message,omitempty"` // of error
	SubscriptionID string `json:"subscriptionId,omitempty"`
	Subject        string `json:"subject,omitempty"`         // of subscribed
	Snapshot       string `json:"snapshotEventId,omitempty"` // of subscribed
	EventID        string `json:"eventId,omitempty"`         // of replay-marker
	DroppedCount   int    `json:"droppedCount,omitempty"`    // of replay-marker
	Status         string `json:"status,omitempty"`          // of lifecycle
	Reason         string `json:"reason,omitempty"`          // of lifecycle
}

// A body is an entry as all clients get it that may see as much: their frames differ only in the subscription's id.
type body struct {
	once     sync.Once // for what follows
	head     []byte    // `"eventId":"...","subject":"...","type":"...","payload":`
	payload  json.RawMessage
	decision *commentary.Decision // why the payload was changed; nil: it was not
}

// forms are the bodies of an entry, each made when the first client wants it.
type forms struct {
	full, reduced body
	redacted      sync.Once // for the call of Redacted
}

const eventHead = `{"v":"1","kind":"event","subscriptionId":"`

// size is that of the event frame for a subscription.
func (b *body) size(subscription string) int {
	return len(eventHead) + len(subscription) + len(`",`) + len(b.head) + len(b.payload) + len(`}`)
}

// append adds the event frame for a subscription, whose id needs no quoting.
func (b *body) append(buf []byte, subscription string) []byte {
	buf = append(buf, eventHead...)
	buf = append(buf, subscription...)
	buf = append(buf, `",`...)
	buf = append(buf, b.head...)
	buf = append(buf, b.payload...)
	return append(buf, '}')
}

// bodyOf returns the form of an entry, reduced for clients that may not read its agent. The first call that finds the
// payload sanitised calls Redacted.
func (c *client) bodyOf(subject string, e *hub.Entry, reduced bool) *body {
	f := e.Memo(func() any { return new(forms) }).(*forms)
	b := &f.full
	if reduced {
		b = &f.reduced
	}
	b.once.Do(func() {
		payload := e.Body()
		if reduced {
			payload = event.Reduced(e.Type, payload)
		}
		b.fill(c.s.opts.Sanitiser, subject, e, payload)
	})
	if b.decision != nil && c.s.opts.Redacted != nil {
		f.redacted.Do(func() { c.s.opts.Redacted(c.transport, b.decision) })
	}
	return b
}

// fill puts the payload on one line and, where a policy wants that, sanitises it.
func (b *body) fill(s *commentary.Sanitiser, subject string, e *hub.Entry, payload json.RawMessage) {
	b.payload = oneLine(payload)
	if s != nil {
		b.payload, b.decision = s.Payload(e.Type, b.payload)
	}
	b.head = make([]byte, 0, 64+len(e.ID)+len(subject)+len(e.Type))
	b.head = message.AppendText(append(b.head, `"eventId":`...), e.ID)
	b.head = message.AppendText(append(b.head, `,"subject":`...), subject)
	b.head = message.AppendText(append(b.head, `,"type":`...), e.Type)
	b.head = append(b.head, `,"payload":`...)
}

// oneLine is the payload without line breaks, which JSON has between tokens only.
func oneLine(p json.RawMessage) json.RawMessage {
	if !bytes.ContainsAny(p, "\r\n") {
		return p
	}
	var b bytes.Buffer
	if json.Compact(&b, p) != nil {
		return json.RawMessage("null")
	}
	return b.Bytes()
}

// Frame is any frame, for documents.
type Frame struct{}

// OpenAPISchema is the union of the frames. Each has its own kind.
func (Frame) OpenAPISchema() json.RawMessage {
	return json.RawMessage(`{"oneOf":[
		{"title":"event","type":"object","required":["v","kind","subscriptionId","eventId","subject","type","payload"],"properties":{
			"v":{"const":"1"},"kind":{"const":"event"},"subscriptionId":{"type":"string"},
			"eventId":{"type":"string","description":"Where to resume after it: sinceEventId, or Last-Event-ID."},
			"subject":{"type":"string"},"type":{"type":"string"},"payload":{"$ref":"#/components/schemas/Event"}}},
		{"title":"lifecycle","type":"object","required":["v","kind","subscriptionId","status"],"properties":{
			"v":{"const":"1"},"kind":{"const":"lifecycle"},"subscriptionId":{"type":"string"},
			"status":{"type":"string","enum":["subscribed","unsubscribed","paused","completed","failed","aborted"]},"reason":{"type":"string"}}},
		{"title":"replay-marker","description":"Events before the next one are gone.","type":"object","required":["v","kind","subscriptionId","eventId","droppedCount"],"properties":{
			"v":{"const":"1"},"kind":{"const":"replay-marker"},"subscriptionId":{"type":"string"},"eventId":{"type":"string"},"droppedCount":{"type":"integer"}}},
		{"title":"error","type":"object","required":["v","kind","code","message"],"properties":{
			"v":{"const":"1"},"kind":{"const":"error"},"code":{"type":"string"},"message":{"type":"string"},"subscriptionId":{"type":"string"}}}]}`)
}

// encode encodes a frame or an answer that this package made, which cannot fail.
func encode(frame any) []byte {
	b, err := message.Encode(frame)
	if err != nil {
		panic(err)
	}
	return b
}

// noEvent stands for the id of the latest event where none was replayed.
func noEvent() string { return "evt-replay-" + strconv.FormatInt(time.Now().UnixMilli(), 36) }
