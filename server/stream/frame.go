package stream

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentd/server/commentary"
	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/message"
)

// Every frame is a JSON object with `"v":"1"`; clients refuse members that they do not know, and null.

// A body is how all subscribers that may see as much get an entry: their frames differ only in the id of the subscription.
type body struct {
	head    []byte // `"eventId":"...","subject":"...","type":"...","payload":`
	payload json.RawMessage

	decision *commentary.Decision // why the payload is not as it would be; nil: it is
}

// forms are the bodies of an entry, each made when the first client wants it.
type forms struct {
	full, reduced         *body
	makeFull, makeReduced sync.Once
	told                  atomic.Bool // Redacted has been called for the entry
}

const eventHead = `{"v":"1","kind":"event","subscriptionId":"`

// Size of the frame for a subscription.
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

// bodyOf makes the form of an entry, that for clients who may not read its agent if reduced, and tells Redacted of the
// entry the first time. The payload is on one line and, where a policy wants that, sanitised.
func (c *client) bodyOf(subject string, e *hub.Entry, reduced bool) *body {
	f := e.Memo(func() any { return new(forms) }).(*forms)
	b := &f.full
	if reduced {
		b = &f.reduced
		f.makeReduced.Do(func() { *b = c.s.encodeBody(subject, e, event.Reduced(e.Type, e.Payload)) })
	} else {
		f.makeFull.Do(func() { *b = c.s.encodeBody(subject, e, e.Payload) })
	}
	if (*b).decision != nil && f.told.CompareAndSwap(false, true) && c.s.opts.Redacted != nil {
		c.s.opts.Redacted(c.wire.transport(), (*b).decision)
	}
	return *b
}

func (s *Service) encodeBody(subject string, e *hub.Entry, payload json.RawMessage) *body {
	b := &body{payload: oneLine(payload), head: make([]byte, 0, 64+len(e.ID)+len(subject)+len(e.Type))}
	if s.opts.Sanitiser != nil {
		b.payload, b.decision = s.opts.Sanitiser.Payload(e.Type, b.payload)
	}
	b.head = append(b.head, `"eventId":`...)
	b.head = appendQuoted(b.head, e.ID)
	b.head = append(b.head, `,"subject":`...)
	b.head = appendQuoted(b.head, subject)
	b.head = append(b.head, `,"type":`...)
	b.head = appendQuoted(b.head, e.Type)
	b.head = append(b.head, `,"payload":`...)
	return b
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

// appendQuoted adds a JSON string. What we make ourselves, such as ids, needs no escapes.
func appendQuoted(buf []byte, s string) []byte {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' || strings.ContainsRune(`"\<>&`, r) }) {
		return append(append(append(buf, '"'), s...), '"')
	}
	b, _ := message.Encode(s)
	return append(buf, b...)
}

type lifecycleFrame struct {
	V              string `json:"v"`
	Kind           string `json:"kind"`
	SubscriptionID string `json:"subscriptionId"`
	Status         string `json:"status"`
	Reason         string `json:"reason,omitempty"`
}

type markerFrame struct {
	V              string `json:"v"`
	Kind           string `json:"kind"`
	SubscriptionID string `json:"subscriptionId"`
	EventID        string `json:"eventId"`
	DroppedCount   int    `json:"droppedCount"`
}

type errorFrame struct {
	V              string `json:"v"`
	Kind           string `json:"kind"`
	Code           string `json:"code"`
	Message        string `json:"message"`
	SubscriptionID string `json:"subscriptionId,omitempty"`
}

// Frame is any frame, for documents.
type Frame struct{}

// OpenAPISchema is the union of the frames, told apart by their kind.
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

// encode encodes a frame of ours, which cannot fail.
func encode(frame any) []byte {
	b, err := message.Encode(frame)
	if err != nil {
		panic(err)
	}
	return b
}

// noEvent stands for the id of the latest event where none was replayed.
func noEvent() string { return "evt-replay-" + strconv.FormatInt(time.Now().UnixMilli(), 36) }
