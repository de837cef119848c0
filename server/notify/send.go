package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"agentd/server/expr"
	"agentd/server/fault"
	"agentd/server/outbound"
	"agentd/server/tracecontext"
	"agentd/server/webhook"
	"agentd/store"
)

const (
	maxBody    = 1 << 20 // bytes, of what a template makes
	maxFailure = 200     // characters
)

// send makes one attempt. It also says in a line why it failed, with nothing from the receiver but the status.
func (d *Daemon) send(ctx context.Context, t *Target, v *store.Notification) (webhook.Result, string) {
	if t.Signer == nil {
		return webhook.Result{}, "only a running server sends notifications"
	}
	ctx, cancel := context.WithTimeout(ctx, webhook.Timeout)
	defer cancel()
	text, err := d.text(ctx, t, v)
	if err != nil {
		d.o.Logger.Warn("the body of a notification could not be made", "id", v.ID, "type", v.Type, "target", t.ID, "error", err)
		return webhook.Result{}, "the body could not be made: the server's log says why"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(text))
	if err == nil {
		req.Header.Set("Content-Type", "application/json")
		if trace, ok := tracecontext.Parse(v.Trace); ok {
			trace.Inject(req.Header)
		}
		err = t.Signer.Sign(req.Header, v.ID, text)
	}
	if err != nil {
		return webhook.Result{}, "the request could not be made"
	}
	res, err := t.Transport.RoundTrip(req)
	switch refused, denied := errors.AsType[*fault.Error](err); {
	case denied:
		return webhook.Result{}, outbound.Line(refused.Message, maxFailure)
	case ctx.Err() != nil:
		return webhook.Result{}, "it did not answer in time"
	case err != nil:
		return webhook.Result{}, strings.TrimPrefix("it could not be reached"+outbound.Reason(err), "it could not be reached: ")
	}
	defer res.Body.Close()
	io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10)) //nolint:errcheck // the status is the answer
	why := ""
	if res.StatusCode < 200 || res.StatusCode > 299 {
		why = "it answered " + strconv.Itoa(res.StatusCode)
	}
	return webhook.Result{Status: res.StatusCode, RetryAfter: outbound.RetryAfter(res.Header, webhook.Lifetime)}, why
}

// text is the body of a request.
func (d *Daemon) text(ctx context.Context, t *Target, v *store.Notification) ([]byte, error) {
	var b body
	if err := json.Unmarshal(v.Body, &b); err != nil {
		return nil, err
	}
	b.Sequence = v.Sequence
	if t.Template == nil {
		return json.Marshal(b)
	}
	data, err := expr.Decode(b.Data)
	if err != nil {
		return nil, err
	}
	scope := expr.Map{"type": b.Type, "timestamp": b.Timestamp, "sequence": b.Sequence, "data": data, "arguments": nil}
	for _, r := range t.Template.Reads() {
		if r.Var == "arguments" && v.Type == ApprovalRequested && scope["arguments"] == nil {
			var of ofRun
			raw := json.RawMessage(nil)
			if err = json.Unmarshal(b.Data, &of); err == nil {
				raw, err = d.o.Arguments(ctx, of.RunID, of.ToolCallID)
			}
			if err == nil && raw != nil {
				scope["arguments"], err = expr.Decode(raw)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	made, err := t.Template.Eval(lenient{scope})
	if err != nil && v.Type == test { // which has nothing that a template asks for, and is to show that requests arrive
		return json.Marshal(b)
	}
	if err != nil {
		return nil, err
	}
	text, err := expr.Encode(made)
	if err == nil && len(text) > maxBody {
		return nil, fmt.Errorf("the template makes a body of more than %d bytes", maxBody)
	}
	return []byte(d.o.Redact(string(text))), err
}

// lenient is a scope in which the members that the data of a type does not have are null, because a template serves several types.
type lenient struct{ expr.Map }

// Value implements [expr.Scope].
func (l lenient) Value(name, key string) (any, bool, error) {
	v, ok, err := l.Map.Value(name, key)
	return v, ok || name == "data", err
}
