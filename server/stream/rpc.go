package stream

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/shape"
)

// Codes of RPC errors.
const (
	codeParse            = -32700 // the connection is closed
	codeInvalidRequest   = -32600 // the connection is closed
	codeUnknownSubject   = -32601
	codeInvalidParams    = -32602
	codeInternal         = -32603
	codeScopeDenied      = -32003
	codeLimited          = -32004
	codeTooEarly         = -32005
	codeRunNotFound      = -32010
	codeSubscriptionGone = -32011
)

// A request is one frame of a client, checked.
type request struct {
	id     json.RawMessage // as it was sent; nil for a notification
	method string
	params any // a pointer to the struct of the method
	action audit.Action
}

type initializeParams struct {
	ClientInfo struct {
		Name    string `json:"name" check:"required"`
		Version string `json:"version" check:"required"`
	} `json:"clientInfo" check:"required"`
	Capabilities json.RawMessage `json:"capabilities"` // an object of any members, which nothing depends on
}

type subscribeParams struct {
	Subject      string `json:"subject" check:"required"`
	SinceEventID string `json:"sinceEventId" check:"1.."`
}

type unsubscribeParams struct {
	SubscriptionID string `json:"subscriptionId" check:"required"`
}

type cancelParams struct {
	RunID              string `json:"runId" check:"required"`
	Reason             string `json:"reason" check:"1.."`
	Drain              bool   `json:"drain"`
	OnPendingApprovals string `json:"onPendingApprovals" enum:"deny|preserve|hold|fail"`
}

type pingParams struct {
	Nonce string `json:"nonce" check:"1..1024"`
}

type cancelledParams struct {
	RequestID string `json:"requestId" check:"required"`
}

const (
	methodInitialize = "initialize"
	methodPing       = "ping"
	methodCancelled  = "notifications/cancelled" // the only notification
)

// A method is what clients may ask for.
type method struct {
	params   func() any // makes the struct of its parameters
	optional bool       // the parameters may be absent
	action   audit.Action
}

var methods = map[string]method{
	methodInitialize:           {params: func() any { return new(initializeParams) }},
	"subscription.subscribe":   {params: func() any { return new(subscribeParams) }, action: audit.Subscribe},
	"subscription.unsubscribe": {params: func() any { return new(unsubscribeParams) }},
	"run.cancel":               {params: func() any { return new(cancelParams) }, action: audit.RunAbort},
	methodPing:                 {params: func() any { return new(pingParams) }, optional: true},
	methodCancelled:            {params: func() any { return new(cancelledParams) }, action: audit.RunAbort},
}

// parseRequest reads a frame. Of a frame that is no request it returns what is wrong, with the id if that can be echoed.
// It costs what [shape.Decode] does, for the frame and again for its parameters.
func parseRequest(frame []byte) (*request, *rpcError) {
	if !json.Valid(frame) {
		return nil, &rpcError{Code: codeParse, Message: "Frame is not valid JSON."}
	}
	var envelope struct {
		V       string          `json:"v" check:"required" enum:"1"`
		JSONRPC string          `json:"jsonrpc" check:"required" enum:"2.0"`
		ID      json.RawMessage `json:"id"`
		Method  string          `json:"method" check:"required"`
		Params  json.RawMessage `json:"params"`
	}
	issues := shape.Decode(frame, &envelope)
	r := &request{method: envelope.Method}
	if legalID(envelope.ID) {
		r.id = envelope.ID
	}
	m, known := methods[envelope.Method]
	switch {
	case !known && envelope.Method != "":
		issues = append(issues, fault.At("is not a method", "method"))
	case !known:
	case envelope.Method == methodCancelled && envelope.ID != nil:
		issues = append(issues, fault.At("is not for notifications", "id"))
	case envelope.Method != methodCancelled && r.id == nil:
		issues = append(issues, fault.At(fmt.Sprintf("is not a whole number or a non-empty string of at most %d bytes", maxID), "id"))
	}
	if known {
		r.params, r.action = m.params(), m.action
		switch {
		case envelope.Params != nil:
			for _, issue := range shape.Decode(envelope.Params, r.params) {
				issues = append(issues, fault.At(issue.Message, append([]any{"params"}, issue.Path...)...))
			}
		case !m.optional:
			issues = append(issues, fault.At("is required", "params"))
		}
		if p, ok := r.params.(*initializeParams); ok && p.Capabilities != nil && p.Capabilities[0] != '{' {
			issues = append(issues, fault.At("is an object", "params", "capabilities"))
		}
	}
	for i := range issues {
		if issues[i].Path == nil { // the whole frame; clients want a list all the same
			issues[i].Path = []any{}
		}
	}
	if issues != nil {
		return r, &rpcError{Code: codeInvalidRequest, Message: "The frame is not a valid request.", Data: rpcData{Issues: issues}}
	}
	return r, nil
}

// maxID is how long the id of a request may be, in bytes of JSON.
const maxID = 1024

// legalID reports whether a JSON value may be the id of a request: it is echoed as it was sent.
func legalID(id json.RawMessage) bool {
	if len(id) == 0 || len(id) > maxID {
		return false
	}
	if id[0] == '"' {
		return len(id) > 2
	}
	n, err := strconv.ParseFloat(string(id), 64)
	return err == nil && n == math.Trunc(n) && math.Abs(n) < 1<<53
}

// Answers. The id stands as it was sent.

type rpcAnswer struct {
	V       string          `json:"v"`
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"` // always with members
	Error   *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

// rpcData holds the parts of a fault for which an RPC error has no member.
type rpcData struct {
	Error  string        `json:"error,omitempty"`
	Hint   string        `json:"hint,omitempty"`
	Issues []fault.Issue `json:"issues,omitempty"`
}

// failed is the RPC error for a fault.
func failed(err error) *rpcError {
	f := fault.Of(err)
	e := &rpcError{Code: codeInternal, Message: f.Message, Data: rpcData{Error: f.Kind.Code, Hint: f.NextStep()}}
	switch f.Kind {
	case fault.RunNotFound:
		e.Code = codeRunNotFound
	case fault.ScopeDenied:
		e.Code = codeScopeDenied
	case fault.ConfigInvalid:
		if e.Code = codeInvalidParams; f.Extra["reason"] == "subject-unknown" {
			e.Code = codeUnknownSubject
		}
	case fault.Overloaded:
		e.Code = codeLimited
	default:
		if f.Kind.Status >= 400 && f.Kind.Status < 500 {
			e.Code = codeInvalidParams
		}
	}
	if e.Message == "" {
		e.Message = strings.ReplaceAll(f.Kind.Code, "-", " ")
	}
	return e
}

type initialized struct {
	ServerInfo struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	} `json:"serverInfo"`
	Capabilities struct {
		Subscriptions bool `json:"subscriptions"`
		ReplayBuffer  bool `json:"replayBuffer"`
		SSEFallback   bool `json:"sseFallback"`
	} `json:"capabilities"`
}

type subscribed struct {
	SubscriptionID  string `json:"subscriptionId"`
	Subject         string `json:"subject"`
	SnapshotEventID string `json:"snapshotEventId,omitempty"`
	ReplayedCount   int    `json:"replayedCount"`
}

type unsubscribed struct {
	SubscriptionID string `json:"subscriptionId"`
	Unsubscribed   bool   `json:"unsubscribed"`
}

type cancelled struct {
	RunID                 string `json:"runId"`
	Cancelled             bool   `json:"cancelled"`
	PartialStateAvailable bool   `json:"partialStateAvailable"`
}

type ponged struct {
	OK bool `json:"ok"`
}
