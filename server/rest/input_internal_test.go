package rest

import (
	"encoding/json"
	"math/big"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"agentd/server/fault"
	"agentd/server/fuzztest"
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
			Limit  int    `query:"limit" check:"1..1000"`
			Status string `query:"status" enum:"a|b"`
			Body   struct {
				Name  string `json:"name" check:"2.."`
				Count int    `json:"count" check:"..9"`
			}
		}
		_, err := new(API).read(nil, r, 1<<20, &in, &weight{all: newBodies()})
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

func FuzzPlace(f *testing.F) {
	for _, s := range []string{"1", "zz", "0", "-1", "+1", "01", "ZZ", "1y2p0ij32e8e7", "1y2p0ij32e8e8", "", "1_0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		fuzztest.Check(t, len(cursor), func() { place(cursor, 36) })
		for _, base := range []int{10, 36} {
			n, ok := place(cursor, base)
			big, sound := new(big.Int).SetString(cursor, base)
			if want := sound && big.IsInt64() && big.Sign() > 0 && big.Text(base) == cursor; ok != want || ok && n != big.Int64() {
				t.Errorf("place(%q, %d) = %d, %v, want %v, %v", cursor, base, n, ok, big, want)
			}
		}
	})
}

// FuzzMoment reads the times of a query: whatever is taken reads the same when it is written in another of the forms.
func FuzzMoment(f *testing.F) {
	for _, s := range []string{"0", "1767225600000", "-1", "2026-01-31", "2026-01-31T12:00", "2026-01-31T12:00:00.5+02:00", "2026-02", "Mon, 02 Jan 2006 15:04:05 MST", "1969-12-31",
		"9999-12-31T23:59:59Z", "2026-02-30", "+5", "9223372036854775807", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// A time that is none is told of with the text in quotes, for each of the forms.
		fuzztest.Cost{PerByte: 100}.Check(t, len(text), func() { moment(text) })
		ms, ok := moment(text)
		if !ok {
			if n, err := strconv.ParseUint(text, 10, 63); err == nil {
				t.Errorf("moment(%q) refuses %d", text, n)
			}
			return
		}
		if ms < 0 {
			t.Errorf("moment(%q) = %d", text, ms)
		}
		if again, ok := moment(strconv.FormatInt(ms, 10)); !ok || again != ms {
			t.Errorf("moment(%d) = %d, %v", ms, again, ok)
		}
		if at := time.UnixMilli(ms).UTC(); at.Year() < 10_000 {
			if again, ok := moment(at.Format(time.RFC3339Nano)); !ok || again != ms {
				t.Errorf("moment(%s) = %d, %v, want %d", at.Format(time.RFC3339Nano), again, ok, ms)
			}
		}
	})
}

// FuzzAccepts takes the types that a client accepts apart in a second way.
func FuzzAccepts(f *testing.F) {
	for _, s := range []string{"application/x-ndjson", "text/html, Application/X-NDJSON ; q=0.5", ",;,", "application/x-ndjsonx", "*/*", "x,application/x-ndjson;,"} {
		f.Add(s, s)
	}
	part := regexp.MustCompile(`(?i)(?:^|,)[\t-\r\x{85}\p{Z}]*application/x-ndjson[\t-\r\x{85}\p{Z}]*(?:$|[,;])`)
	f.Fuzz(func(t *testing.T, first, second string) {
		r := httptest.NewRequest("POST", "/x", nil)
		r.Header["Accept"] = []string{first, second}
		fuzztest.Check(t, len(first)+len(second), func() { accepts(r, ndjson) })
		if got, want := accepts(r, ndjson), part.MatchString(first) || part.MatchString(second); got != want {
			t.Errorf("accepts(%q, %q) = %v, want %v", first, second, got, want)
		}
	})
}

// FuzzEscaped writes a download as a JSON string, in two pieces.
func FuzzEscaped(f *testing.F) {
	f.Add("{\"a\":\"\\n\"}\n\x00\x1f\u2028 é", uint(3))
	f.Add("\x7f", uint(0))
	f.Fuzz(func(t *testing.T, text string, cut uint) {
		if !utf8.ValidString(text) {
			return
		}
		at := int(cut % uint(len(text)+1))
		answer := httptest.NewRecorder()
		out := newDownload(answer, ndjson)
		out.before, out.quoted = `"`, true
		for _, piece := range []string{text[:at], text[at:]} {
			if _, err := out.Write([]byte(piece)); err != nil {
				t.Fatal(err)
			}
		}
		var got string
		if err := json.Unmarshal(append(answer.Body.Bytes(), '"'), &got); err != nil || got != text {
			t.Errorf("%q is written as %q, and read as %q, %v", text, answer.Body, got, err)
		}
	})
}
