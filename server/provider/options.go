package provider

import (
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"agentd/server/outbound"
	"agentd/server/secret"
)

// Defaults of [OpenAIOptions].
const (
	DefaultTimeout     = 120 * time.Second
	DefaultIdleTimeout = 60 * time.Second
	DefaultRetries     = 3
)

// OpenAIOptions describe a server that speaks the chat completions protocol. Name and BaseURL are required.
type OpenAIOptions struct {
	Name string
	// BaseURL is where the protocol begins: a path that ends in /v1 gets /chat/completions, one that ends in
	// /chat/completions stays, any other gets /v1/chat/completions. A query is kept.
	BaseURL     string
	APIKey      string            // without it, no Authorization header is sent
	Headers     map[string]string // sent with every request; they win over the provider's own
	Timeout     time.Duration     // until the answer's headers; 0 = DefaultTimeout
	IdleTimeout time.Duration     // between bytes of the answer; 0 = DefaultIdleTimeout
	Retries     *int              // further attempts after one that failed in passing; nil = DefaultRetries
	Prices      Prices            // nil = nothing is priced
	// Whole asks for each answer in one piece, for servers whose streams lack something, such as tool calls. Timeout is then
	// the limit for the complete answer.
	Whole bool
	// Transport makes the connections and belongs to the caller; nil = the provider makes one, which dials what BaseURL
	// names, uses no proxy and is released by Close.
	Transport http.RoundTripper
	Outbound  *outbound.Guard // of the provider's own transport; nil = one without options
	Logger    *slog.Logger    // nil = silence
	// Known are secrets that are taken out of what is quoted of the server's answers, besides the key and the headers of this
	// provider; nil: there are none.
	Known *secret.Redactor
}

// endpointOf finds the endpoint under a base URL. Its errors do not quote the URL, which may hold a key.
func endpointOf(base string) (*url.URL, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return nil, errors.New("must be an http or https URL")
	case u.User != nil:
		return nil, errors.New("must not hold credentials; use apiKeyRef")
	case u.Fragment != "":
		return nil, errors.New("must not have a fragment")
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	switch {
	case strings.HasSuffix(u.Path, "/chat/completions"):
		return u, nil
	case strings.HasSuffix(u.Path, "/v1"):
		return u.JoinPath("chat/completions"), nil
	}
	return u.JoinPath("v1/chat/completions"), nil
}
