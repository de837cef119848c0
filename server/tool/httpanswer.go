package tool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"agentd/server/message"
	"agentd/server/outbound"
)

// checkRedirect decides about following a redirect, and takes what is secret out of a request to another host.
func (t *httpTool) checkRedirect(req *http.Request, via []*http.Request) error {
	host := outbound.HostPort(req.URL)
	switch {
	case len(via) > maxRedirects:
		return t.badRedirect(fmt.Sprintf("The server redirects more than %d times.", maxRedirects))
	case req.URL.Scheme != "http" && req.URL.Scheme != "https":
		return t.badRedirect("The server redirects to something that is not http.")
	case req.URL.Scheme == "http" && via[len(via)-1].URL.Scheme == "https":
		return t.badRedirect("The server redirects from https to http.")
	case !slices.Contains(t.allowed, host):
		t.o.Outbound.Deny(req.Context(), outbound.Denial{Setting: t.setting(), Target: host, Reason: "a redirect leads there, and allowHosts does not name it"})
		return t.badRedirect(fmt.Sprintf("The server redirects to %s, which is not allowed.", host))
	}
	req.URL.User = nil
	req.Header.Del("Referer") // it has the arguments
	if host != t.address.host {
		keep := http.Header{"Accept": req.Header["Accept"], "User-Agent": {"agentd"}}
		for _, name := range []string{"Content-Type", "idempotency-key"} {
			if v := req.Header[name]; v != nil {
				keep[name] = v
			}
		}
		req.Header = keep
	}
	return nil
}

func (t *httpTool) badRedirect(text string) *Error { return &Error{Message: text, Hint: t.warning()} }

// refused is the error for a status that is no success.
func (t *httpTool) refused(resp *http.Response) *Error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	text := fmt.Sprintf("The server answered %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	if said := strings.TrimSpace(t.o.Known.Piece(strings.ToValidUTF8(string(body), ""))); said != "" {
		text += ": " + said
	} else {
		text = strings.TrimSpace(text) + "."
	}
	switch {
	case err != nil, resp.StatusCode == http.StatusRequestTimeout, resp.StatusCode == http.StatusBadGateway, resp.StatusCode == http.StatusGatewayTimeout:
		return &Error{Message: text, Hint: t.warning(), Unknown: true}
	case resp.StatusCode != http.StatusTooManyRequests:
		return &Error{Message: text}
	}
	e := &Error{Kind: message.RateLimited, Message: text, RetryAfter: outbound.RetryAfter(resp.Header, maxRetryAfter)}
	if e.RetryAfter > 0 {
		e.Hint = fmt.Sprintf("Wait %v before the next try.", e.RetryAfter.Round(time.Second))
	}
	return e
}

// result makes JSON, an image or text of an answer.
func (t *httpTool) result(resp *http.Response, body []byte) (Result, error) {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if strings.HasPrefix(kind, "image/") && kind != "image/svg+xml" && len(body) > 0 {
		return Result{Parts: []message.Part{{Type: "image", MimeType: kind, Image: &message.Bytes{Enc: "base64", Data: body}}}}, nil
	}
	body = bytes.TrimPrefix(body, []byte("\xEF\xBB\xBF")) // a byte order mark, which is not JSON
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return Result{}, nil
	case json.Valid(body):
		return Result{Output: body}, nil
	case !utf8.Valid(body) && !strings.HasPrefix(kind, "text/"):
		if kind == "" {
			kind = "of no declared type"
		}
		return Result{}, &Error{Kind: message.InvalidOutput, Message: "The answer is binary (" + kind + ").", Hint: t.warning()}
	}
	return JSON(strings.ToValidUTF8(string(body), "\uFFFD"))
}
