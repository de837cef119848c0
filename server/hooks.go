package server

import (
	"fmt"
	"maps"
	"slices"

	"agentd/server/fault"
	"agentd/server/rest"
	"agentd/server/secret"
	"agentd/server/webhook"
)

// webhooks resolves the secrets of the hooks. Without a listener nobody can call them, so there are none.
func (s *Server) webhooks(secrets *secret.Resolver) (map[string]rest.Hook, error) {
	hooks := map[string]rest.Hook{}
	if s.access != serving {
		return hooks, nil
	}
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Hooks)) {
		h := s.cfg.Hooks[name]
		var keys [][]byte
		for i, ref := range h.Verify.SecretRefs {
			key, err := secrets.Resolve(string(ref))
			if err != nil {
				return nil, secret.Unresolvable(fmt.Sprintf("hooks.%s.verify.secretRefs.%d", name, i), ref.String(), err)
			}
			keys = append(keys, key)
		}
		v, err := webhook.New(h.Scheme(), keys...)
		if err != nil {
			f := fault.Of(err)
			for i := range f.Issues {
				f.Issues[i].Path = append([]any{"hooks", name, "verify"}, f.Issues[i].Path...)
			}
			return nil, f
		}
		hooks[name] = rest.Hook{Event: h.Event, Headers: h.Headers, Verifier: v}
	}
	return hooks, nil
}
