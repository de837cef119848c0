package rest

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"agentd/server/fault"
)

// FuzzRead reads queries and bodies. What is taken keeps to the bounds that the tags tell, and what is refused says why.
func FuzzRead(f *testing.F) {
	f.Add("limit=5&status=a", `{"name":"x","count":3}`, "application/x-ndjson")
	f.Add("limit=0&limit=7&status=", `{"name":"x","name":"y"}`, "text/html, */*;q=0.1")
	f.Add("limit=%zz;a=b&&=", `{"count":1e2}`, ",;,")
	f.Add("limit=9223372036854775808&status=c", "", "")
	f.Add("status=%00&limit=+1", "{} {}", "APPLICATION/X-NDJSON;q=0")
	f.Fuzz(func(t *testing.T, query, body, accept string) {
		r := httptest.NewRequest("POST", "/x", strings.NewReader(body))
		r.URL.RawQuery = query
		r.Header.Set("Accept", accept)
		accepts(r, ndjson)
		var in struct {
			Limit  int    `query:"limit" min:"1" max:"1000"`
			Status string `query:"status" enum:"a|b"`
			Body   struct {
				Name  string `json:"name" min:"2"`
				Count int    `json:"count" max:"9"`
			}
		}
		_, err := read(r, &in)
		if e := fault.Of(err); err != nil && (e.Kind != fault.ConfigInvalid || len(e.Issues) == 0) {
			t.Errorf("read(%q, %q) = %v, want config-invalid with issues", query, body, err)
		}
		if err != nil {
			return
		}
		asked, _ := url.ParseQuery(query)
		if in.Limit < 0 || in.Limit > 1000 || (in.Limit == 0) != !asked.Has("limit") || in.Status != "" && in.Status != "a" && in.Status != "b" ||
			len(in.Body.Name) == 1 || in.Body.Count > 9 {
			t.Errorf("read(%q, %q) takes %+v", query, body, in)
		}
	})
}
