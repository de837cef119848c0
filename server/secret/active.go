package secret

import (
	"fmt"
	"strings"

	"agentd/server/fault"
)

// A Report is what is known about the active store.
type Report struct {
	Active          string   `json:"active" doc:"encrypted-file or env."`
	FallbackChain   []string `json:"fallbackChain" doc:"The stores that may become active, in this order."`
	DowngradedFrom  string   `json:"downgradedFrom,omitempty" doc:"The first store that the server tried, if another one is active."`
	DowngradeReason string   `json:"downgradeReason,omitempty" doc:"Why it is not."`
	StrictMode      bool     `json:"strictMode"`
	HeadlessReasons []string `json:"headlessReasons" doc:"Why there is no keyring on this host. Always empty, because agentd does not support keyrings."`
}

// Activate chooses the store that source names: encrypted-file or env, of several with commas between them the first that
// is available, and with auto the first of these two.
// The encrypted file at path is available when the environment names a passphrase; it need not exist yet. A file that
// exists and cannot be read with it is an error, never a reason to fall back. With strict only the first store is tried.
//
// The resolver reads the passphrase, and should get the store as its own. Errors are faults,
// strict-secrets-unavailable when no store that may be active is available.
func Activate(source string, strict bool, path string, r *Resolver) (Store, Report, error) {
	report := Report{StrictMode: strict, HeadlessReasons: []string{}}
	switch {
	case source == "auto" || source == "":
		report.FallbackChain = []string{"encrypted-file", "env"}
	default:
		report.FallbackChain = strings.FieldsFunc(source, func(r rune) bool { return r == ',' || r == ' ' })
	}
	if strict && len(report.FallbackChain) > 1 {
		report.FallbackChain = report.FallbackChain[:1]
	}
	var reasons []string
	for _, kind := range report.FallbackChain {
		store, reason, err := try(kind, path, r)
		if err != nil {
			return nil, Report{}, failure(err)
		}
		if store == nil {
			reasons = append(reasons, reason)
			continue
		}
		report.Active = store.Name()
		if reasons != nil {
			report.DowngradedFrom, report.DowngradeReason = report.FallbackChain[0], strings.Join(reasons, "; ")
		}
		return store, report, nil
	}
	return nil, Report{}, failed(fault.StrictSecretsUnavailable, "the store of secrets %s is not available: %s",
		strings.Join(report.FallbackChain, " or "), strings.Join(reasons, "; "))
}

// try opens a store, or says why it is not available.
func try(kind, path string, r *Resolver) (Store, string, error) {
	switch kind {
	case "env":
		return envStore{r.lookup}, "", nil
	case "encrypted-file":
		passphrase, err := r.master()
		if err != nil {
			return nil, "", err
		}
		if passphrase == nil {
			return nil, "neither " + Passphrase + " nor " + PassphraseAt + " is set", nil
		}
		s := &fileStore{path: path, passphrase: passphrase}
		if _, err := s.read(); err != nil {
			return nil, "", err
		}
		return s, "", nil
	case "keyring":
		return nil, "this build has no keyring; use encrypted-file or env", nil
	}
	return nil, fmt.Sprintf("there is no store %q", kind), nil
}
