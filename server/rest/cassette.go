package rest

import (
	"net/http"

	"agentd/server/fault"
	"agentd/server/openapi"
	"agentd/server/recording"
)

func (a *Runs) cassetteRoute() Route {
	return Route{Method: "GET", Path: "/runs/{runId}/cassette", Access: "traces:read:raw",
		Summary:  "Export a finished recorded run as a file for `agentd replay`: `svc-tool-cassette` 1.0. It holds everything that was said.",
		Errors:   []*fault.Kind{fault.RunNotFound, fault.RunNotEnded, fault.RunNotRecorded},
		Answers:  []openapi.Response{{Status: 200, ContentType: ndjson, Description: "One JSON object on each line. The last line is a footer."}},
		Endpoint: streamed(a.runCassette)}
}

func (a *Runs) runCassette(w http.ResponseWriter, r *http.Request, _ Call, in runInputID) error {
	return recording.Export(r.Context(), a.Engine, in.RunID, newDownload(w, ndjson))
}
