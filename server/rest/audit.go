package rest

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"agentd/server/audit"
	"agentd/server/audit/export"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/message"
	"agentd/server/openapi"
)

// DatedEntry is an entry of the audit chain with its time as text, which the chain does not hold.
type DatedEntry struct {
	audit.Entry
	TSISO string `json:"tsIso"`
}

// AuditList is the answer of GET /audit.
type AuditList struct {
	Entries []DatedEntry `json:"entries"`
	NextSeq int64        `json:"nextSeq,omitempty" doc:"There may be more: continue with it as fromSeq or, with order=desc, as toSeq."`
}

// AuditQuery is the query of GET /audit.
type AuditQuery struct {
	Limit   int    `query:"limit" check:"1..1000" doc:"Entries in the answer. Default 100."`
	FromSeq int64  `query:"fromSeq" check:"0.." doc:"The first sequence number."`
	ToSeq   int64  `query:"toSeq" check:"1.." doc:"The last sequence number."`
	From    string `query:"from" doc:"Entries since then: milliseconds since 1970, or a date such as 2026-01-31 or 2026-01-31T12:00:00Z."`
	To      string `query:"to" doc:"Entries until this time, in the same form."`
	Action  string `query:"action" check:"1..256" doc:"Only this action, such as http:request; at most 256 characters."`
	ActorID string `query:"actorId" doc:"Only entries of this actor, such as the id of a token."`
	Order   string `query:"order" enum:"asc|desc" doc:"desc: newest first. Default asc."`
}

// AuditRange says which entries to verify or to export.
type AuditRange struct {
	FromSeq int64  `json:"fromSeq,omitempty" check:"0.." doc:"The first sequence number. Default: the first of the chain."`
	ToSeq   *int64 `json:"toSeq,omitempty" check:"0.." doc:"The last sequence number. 0: no entries. Default: the last of the chain."`
	Format  string `json:"format,omitempty" enum:"jsonl|csv" doc:"Of an export. Default jsonl."`
}

// to is the bound as [audit.Verification] has it.
func (r *AuditRange) to() int64 {
	switch {
	case r.ToSeq == nil:
		return 0
	case *r.ToSeq == 0:
		return -1
	}
	return *r.ToSeq
}

// AuditVerdict is the answer of POST /audit/verify.
type AuditVerdict struct {
	Verify audit.Verdict `json:"verify"`
}

// AuditExport is the answer of POST /audit/export.
type AuditExport struct {
	Export export.Exported `json:"export"`
}

// AuditKey is the answer of GET /audit/key.
type AuditKey struct {
	Key audit.Key `json:"key"`
}

// Audit is the routes of the audit chain.
type Audit struct {
	Log         *audit.Log
	Checkpoints string // their file
}

// Routes are the rows of the table.
func (a *Audit) Routes() []Route {
	return []Route{
		{Method: "GET", Path: "/audit", Access: "audit:read", Summary: "List entries of the audit chain. A page may end early if few of many entries match.",
			Endpoint: call(http.StatusOK, func(ctx context.Context, _ Call, in AuditQuery) (AuditList, error) {
				q, err := in.query()
				if err != nil {
					return AuditList{}, err
				}
				page, more, err := a.Log.List(ctx, q)
				list := AuditList{Entries: make([]DatedEntry, len(page)), NextSeq: more}
				for i, e := range page {
					list.Entries[i] = DatedEntry{e, message.Millis(e.TS)}
				}
				return list, err
			})},
		{Method: "GET", Path: "/audit/key", Access: "audit:read",
			Summary: "Show the public key that checkpoints are signed with. Keep it, or its fingerprint, where the server cannot write.",
			Endpoint: call(http.StatusOK, func(context.Context, Call, struct{}) (AuditKey, error) {
				return AuditKey{audit.KeyOf(a.Log.PublicKey())}, nil
			})},
		{Method: "POST", Path: "/audit/verify", Access: "audit:verify", Action: audit.AuditVerify, Target: "audit",
			Summary: "Check whether the audit chain is whole. For a broken chain, the answer has status 200 and names the first bad entry.",
			Endpoint: call(http.StatusOK, func(ctx context.Context, _ Call, in struct{ Body AuditRange }) (AuditVerdict, error) {
				v, err := a.Log.Verify(ctx, audit.Verification{From: in.Body.FromSeq, To: in.Body.to(), Checkpoints: a.Checkpoints})
				return AuditVerdict{v}, err
			})},
		{Method: "POST", Path: "/audit/export", Access: "audit:export", Action: audit.AuditExport, Target: "audit",
			Summary: "Measure an export of the audit chain. `GET /audit/export` returns the entries.",
			Endpoint: call(http.StatusOK, func(ctx context.Context, _ Call, in struct {
				Format string `query:"format" enum:"jsonl|csv" doc:"As in the body, which takes precedence."`
				Body   AuditRange
			}) (AuditExport, error) {
				x, err := export.Write(ctx, a.Log, io.Discard, cmp.Or(in.Body.Format, in.Format, export.JSONL), in.Body.FromSeq, in.Body.to())
				return AuditExport{x}, err
			})},
		{Method: "GET", Path: "/audit/export", Access: "audit:export", Summary: "Export the entries of the audit chain at the time of the request, as a file.",
			Answers: []openapi.Response{{Status: 200, ContentType: ndjson, Description: "Each entry as a line of canonical JSON (RFC 8785)."},
				{Status: 200, ContentType: csvType, Description: "Each entry as a record, after a header. An apostrophe precedes each value that a spreadsheet would read as a formula, and each value that begins with an apostrophe."}},
			Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, in struct {
				Format  string `query:"format" enum:"jsonl|csv" doc:"Default jsonl."`
				FromSeq int64  `query:"fromSeq" check:"0.."`
				ToSeq   int64  `query:"toSeq" check:"1.."`
			}) error {
				format, as := cmp.Or(in.Format, export.JSONL), ndjson
				if format == export.CSV {
					as = csvType
				}
				out := newDownload(w, as)
				_, err := export.Write(r.Context(), a.Log, out, format, in.FromSeq, in.ToSeq)
				if err == nil && !out.begun {
					_, err = out.Write(nil)
				}
				return err
			})},
	}
}

const csvType = "text/csv; charset=utf-8"

func (in *AuditQuery) query() (audit.Query, error) {
	q := audit.Query{From: in.FromSeq, To: in.ToSeq, Action: in.Action, ActorID: in.ActorID, Newest: in.Order == "desc", Limit: in.Limit}
	issues := times(bound{"from", in.From, &q.Since}, bound{"to", in.To, &q.Until})
	if in.To != "" && q.Until == 0 {
		q.Until = -1 // nothing is as old as that, and 0 is no bound
	}
	if issues != nil {
		return q, fault.Invalid("The request is not valid.", issues...)
	}
	return q, nil
}

// A bound is a time in a query, which may be empty.
type bound struct {
	name, text string
	to         *int64
}

func times(bounds ...bound) (issues []fault.Issue) {
	for _, t := range bounds {
		if t.text == "" {
			continue
		}
		var ok bool
		if *t.to, ok = moment(t.text); !ok {
			issues = append(issues, fault.At("is neither milliseconds since 1970 nor a date such as 2026-01-31T12:00:00Z", t.name))
		}
	}
	return issues
}

// moment reads a time in milliseconds, or one of the forms that programs write dates in.
func moment(text string) (int64, bool) {
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		return ms, ms >= 0
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04Z07:00", "2006-01-02T15:04", "2006-01-02 15:04:05Z07:00", time.DateTime,
		time.DateOnly, "2006-01", time.RFC1123, time.RFC1123Z} {
		if t, err := time.Parse(layout, text); err == nil && t.UnixMilli() >= 0 {
			return t.UnixMilli(), true
		}
	}
	return 0, false
}

// auditEvent is the type of the events on audit/events.
const auditEvent = "audit.entry"

// AuditEntry is an entry of the chain on the subject audit/events: line is the entry in canonical form.
func AuditEntry(seq int64, line []byte) *hub.Entry {
	payload := make([]byte, 0, len(line)+40)
	payload = append(append(append(payload, `{"type":"`+auditEvent+`","entry":`...), line...), '}')
	return &hub.Entry{Pos: hub.Position{Epoch: 1, Seq: int(seq)}, ID: strconv.FormatInt(seq, 10), Type: auditEvent, Payload: payload}
}
