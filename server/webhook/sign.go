package webhook

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"agentd/server/fault"
)

// A Signer signs outgoing requests by the scheme standard-webhooks. It is safe for concurrent use, and printing it shows no secret.
type Signer struct{ keys []key }

// NewSigner returns a Signer that adds a signature by each of the secrets: while two are configured, a receiver can change from one
// to the other. Secrets have the form, and errors the issues, that [New] documents for standard-webhooks.
func NewSigner(secrets ...[]byte) (*Signer, error) {
	keys, issues := keysOf(true, secrets)
	if len(issues) > 0 {
		return nil, fault.Invalid("Outgoing webhooks cannot be signed.", issues...)
	}
	return &Signer{keys}, nil
}

// Sign sets the headers webhook-id, webhook-timestamp (the current time) and webhook-signature of a request. Call it for each
// attempt to deliver an event, with the same id: the receiver recognises the event by its id, and refuses an old time. Sign returns
// an error, and sets nothing, if the id is not 1 to [MaxID] visible ASCII characters without a point.
func (s *Signer) Sign(h map[string][]string, id string, body []byte) error {
	if !validID(id) || strings.Contains(id, ".") {
		return fmt.Errorf("signing a webhook: %.50q cannot be the id of an event", id)
	}
	now := strconv.FormatInt(time.Now().Unix(), 10)
	all := make([]string, len(s.keys))
	for i, key := range s.keys {
		all[i] = "v1," + base64.StdEncoding.EncodeToString(key(id+"."+now+".", body))
	}
	h[idHeader], h[timeHeader], h[signatureHeader] = []string{id}, []string{now}, []string{strings.Join(all, " ")}
	return nil
}
