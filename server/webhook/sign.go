package webhook

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"agentd/server/fault"
)

// A Signer signs outgoing requests as Standard Webhooks does. It is safe for concurrent use, and printing it shows no secret.
type Signer struct{ keys []key }

// NewSigner returns a Signer whose requests have a signature by each of the secrets, so that a receiver may change its secret
// while both are configured. What secrets may be, and the errors, are as in [New] for standard-webhooks.
func NewSigner(secrets ...[]byte) (*Signer, error) {
	keys, issues := keysOf(true, secrets)
	if len(issues) > 0 {
		return nil, fault.Invalid("Outgoing webhooks cannot be signed.", issues...)
	}
	return &Signer{keys}, nil
}

// Sign sets the headers of a request that are Standard Webhooks': webhook-id, webhook-timestamp with the time now, and
// webhook-signature. Each attempt to deliver an event needs a call of its own, with the same id: by the id the receiver recognises
// the event, and an older time it would refuse. It is an error if the id is not 1 to [MaxID] visible ASCII characters without a point.
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
