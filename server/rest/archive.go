package rest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"reflect"
	"time"

	"agentd/server/audit"
	"agentd/server/canonical"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/openapi"
	"agentd/server/session"
	"agentd/store"
)

// ndjson is JSON Lines.
const ndjson = "application/x-ndjson"

// ExportBody says what to export of a session.
type ExportBody struct {
	IncludeAuditEntries bool  `json:"includeAuditEntries,omitempty" doc:"Add the session's audit entries. At present no session has any."`
	Hash                *bool `json:"hash,omitempty" doc:"Whether the footer has a checksum. Default true."`
}

// SessionExport is an export in JSON: the file is one text.
type SessionExport struct {
	SessionID string `json:"sessionId"`
	Export    string `json:"export" doc:"JSON Lines, svc-session-export 1.0."`
}

// SessionImport is the result of an import.
type SessionImport struct {
	Session  Session  `json:"session"`
	Messages int      `json:"messages"`
	Handoffs int      `json:"handoffs"`
	Warnings []string `json:"warnings" doc:"What the import omits from the file, and why."`
}

// sessionImportOf is the wire form of what an import made.
func sessionImportOf(v session.Imported) SessionImport {
	return SessionImport{Session: sessionOf(v.Session), Messages: v.Messages, Handoffs: v.Handoffs, Warnings: v.Warnings}
}

func (a *Sessions) archiveRoutes() []Route {
	return []Route{
		{Method: "POST", Path: "/sessions/{id}/export", Access: "sessions:export:{id}", Action: audit.SessionExport, Target: "session:{id}",
			Summary: "Export a whole session, of any length, as JSON Lines: as a text in JSON or, with `Accept: " + ndjson + "`, unwrapped.",
			Errors:  []*fault.Kind{fault.SessionNotFound},
			Answers: []openapi.Response{{Status: 200, Type: reflect.TypeFor[SessionExport](), Description: "The export as a text."},
				{Status: 200, ContentType: ndjson, Description: "The export unwrapped. An export without a footer is incomplete."}},
			Exists: func(r *http.Request) error {
				_, err := a.Sessions.Get(r.Context(), r.PathValue("id"))
				return err
			},
			Endpoint: streamed(a.exportSession)},
		{Method: "POST", Path: "/sessions/import", Access: "sessions:write", Action: audit.SessionImport, Target: "session",
			Summary: "Create a session from an export. Its messages, with new ids, are the history of later runs.",
			Errors: []*fault.Kind{fault.ExportFormat, fault.ExportTooNew, fault.ExportUnsupported, fault.ExportChecksum, fault.ExportEncrypted,
				fault.SessionExists},
			Endpoint: call(http.StatusCreated, func(ctx context.Context, c Call, in struct {
				As   string `query:"as" doc:"An id for the session, instead of the one in the export."`
				Body []byte `content:"application/x-ndjson"`
			}) (SessionImport, error) {
				v, err := a.Sessions.Import(ctx, bytes.NewReader(in.Body), session.ImportOptions{As: in.As, Maker: c.Principal.Lineage(),
					Also: func(tx *store.Tx, v session.Imported) error {
						c.createdSession(v.Session.ID)
						return c.Keep(tx, store.KeyRecord{Session: v.Session.ID, Status: http.StatusCreated}, sessionImportOf(v))
					}})
				return sessionImportOf(v), err
			})},
	}
}

func (a *Sessions) exportSession(w http.ResponseWriter, r *http.Request, _ Call, in struct {
	ID   string `path:"id"`
	Body ExportBody
}) error {
	o := session.ExportOptions{Version: a.Version, Hash: in.Body.Hash == nil || *in.Body.Hash}
	lines := accepts(r, ndjson)
	out := newDownload(w, ndjson)
	if !lines {
		id, err := message.Encode(in.ID)
		if err != nil {
			return err
		}
		out.contentType, out.before, out.quoted = "application/json", `{"sessionId":`+string(id)+`,"export":"`, true
	}
	err := a.Sessions.Export(r.Context(), in.ID, out, o)
	if err == nil && !lines {
		out.quoted = false
		_, err = io.WriteString(out, "\"}\n")
	}
	return err
}

// downloadTimeout is how long a client may take for one piece of a download.
const downloadTimeout = 30 * time.Second

// A download is a long answer. Its header leaves with the first piece, so an earlier error can still be the answer.
type download struct {
	w           http.ResponseWriter
	rc          *http.ResponseController
	contentType string
	before      string // comes first
	quoted      bool   // escape for the inside of a JSON string
	begun       bool
	buf         []byte
}

func newDownload(w http.ResponseWriter, contentType string) *download {
	return &download{w: w, rc: http.NewResponseController(w), contentType: contentType}
}

func (d *download) Write(p []byte) (int, error) {
	d.buf = d.buf[:0]
	if !d.begun {
		d.begun = true
		d.w.Header().Set("Content-Type", d.contentType)
		d.buf = append(d.buf, d.before...)
	}
	if d.quoted {
		text := canonical.AppendText(nil, string(p))
		d.buf = append(d.buf, text[1:len(text)-1]...)
	} else {
		d.buf = append(d.buf, p...)
	}
	d.rc.SetWriteDeadline(time.Now().Add(downloadTimeout)) //nolint:errcheck // a recorder in a test has none; it stays for the end
	if _, err := d.w.Write(d.buf); err != nil {
		return 0, err
	}
	return len(p), nil
}
