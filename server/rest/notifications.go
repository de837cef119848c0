package rest

import (
	"cmp"
	"context"
	"net/http"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/notify"
	"agentd/store"
)

// NotificationList is the answer of GET /notifications.
type NotificationList struct {
	Receivers     []notify.Receiver `json:"receivers" doc:"Those that the configuration declares."`
	Notifications []notify.Shown    `json:"notifications" doc:"The newest first."`
	NextCursor    string            `json:"nextCursor,omitempty" doc:"Send it as cursor for the next page. Absent on the last page."`
}

// NotifyRetryBody says what to send again.
type NotifyRetryBody struct {
	IDs    []string `json:"ids,omitempty" check:"1..1000" doc:"Ids of notifications that wait or are dead."`
	Target string   `json:"target,omitempty" check:"1..512" doc:"Instead of ids: the oldest 1000 dead notifications of this receiver."`
}

// NotifyRetried is the answer of POST /notifications/retry.
type NotifyRetried struct {
	OK      bool `json:"ok"`
	Retried int  `json:"retried" doc:"How many notifications wait afresh. Of 1000, there may be more: ask again."`
}

// NotifyTestBody says what to test.
type NotifyTestBody struct {
	Target string `json:"target,omitempty" check:"1..512" doc:"A receiver. Absent: all."`
}

// NotifyTested is the answer of POST /notifications/test.
type NotifyTested struct {
	Results []notify.Tested `json:"results"`
}

// Notifications is the routes of notifications.
type Notifications struct{ Daemon *notify.Daemon }

// Routes are the rows of the table.
func (a *Notifications) Routes() []Route {
	return []Route{
		{Method: "GET", Path: "/notifications", Access: "notify:read", Summary: "List the receivers of notifications, and the notifications that retention has not deleted.",
			Endpoint: call(http.StatusOK, a.list)},
		{Method: "POST", Path: "/notifications/retry", Access: "notify:write", Action: audit.NotifyRetry, Target: "notifications",
			Summary: "Send notifications again that wait or are dead, under the same webhook-id, and enable their receivers.",
			Errors:  []*fault.Kind{fault.NotFound, fault.NotificationDelivered}, Endpoint: call(http.StatusOK, a.retry)},
		{Method: "POST", Path: "/notifications/test", Access: "notify:write", Action: audit.NotifyTest, Target: "notifications",
			Summary: "Send a notification of the type test to receivers now, and answer with theirs. A receiver that answers 2xx is enabled.",
			Errors:  []*fault.Kind{fault.NotFound}, Endpoint: call(http.StatusOK, a.test)},
	}
}

func (a *Notifications) list(ctx context.Context, _ Call, in struct {
	State  string `query:"state" enum:"waiting|delivered|dead" doc:"Default: any."`
	Limit  int    `query:"limit" check:"1..1000" doc:"Default 100."`
	Cursor string `query:"cursor" check:"1.." doc:"nextCursor of the previous page."`
}) (answer NotificationList, err error) {
	from, err := before(in.Cursor)
	if err != nil {
		return answer, err
	}
	var next int64
	if answer.Notifications, next, err = a.Daemon.List(ctx, in.State, from, cmp.Or(in.Limit, 100)); err == nil {
		answer.Receivers, err = a.Daemon.Receivers(ctx)
	}
	answer.NextCursor = nextCursor(next)
	return answer, err
}

func (a *Notifications) retry(ctx context.Context, c Call, in struct{ Body NotifyRetryBody }) (answer NotifyRetried, err error) {
	if (in.Body.IDs == nil) == (in.Body.Target == "") {
		return answer, fault.Invalid("The request is not valid.", fault.At("want one of ids and target", "ids"))
	}
	_, err = a.Daemon.Retry(ctx, in.Body.IDs, in.Body.Target, func(tx *store.Tx, retried int) error {
		answer = NotifyRetried{true, retried}
		detail := map[string]any{"retried": retried}
		if in.Body.Target != "" {
			detail["target"] = in.Body.Target
		} else {
			detail["ids"] = in.Body.IDs[:min(len(in.Body.IDs), 100)] // an entry of the chain is small
		}
		c.Request.On("", detail)
		return c.Keep(tx, store.KeyRecord{Status: http.StatusOK}, answer)
	})
	return answer, err
}

func (a *Notifications) test(ctx context.Context, c Call, in struct{ Body NotifyTestBody }) (NotifyTested, error) {
	if in.Body.Target != "" {
		c.Request.On("", map[string]any{"target": in.Body.Target})
	}
	results, err := a.Daemon.Test(ctx, in.Body.Target)
	return NotifyTested{results}, err
}
