package server

import (
	"net/url"
	"strconv"

	"agentd/server/fault"
	"agentd/server/notify"
	"agentd/server/outbound"
	"agentd/server/secret"
	"agentd/server/webhook"
)

// openNotify makes what tells receivers outside; nil: the configuration declares none, or no agent runs here.
func (s *Server) openNotify(p *parts, secrets *secret.Resolver, guard *outbound.Guard) (*notify.Daemon, error) {
	if len(s.cfg.Notify) == 0 || !s.runs() {
		return nil, nil
	}
	o := notify.Options{Store: p.db.Notifications(), Logger: s.log}
	for i, n := range s.cfg.Notify {
		var keys [][]byte
		for _, ref := range n.SecretRefs {
			key, err := secrets.Resolve(string(ref))
			if err != nil {
				return nil, secret.Unresolvable("notify.secretRefs", ref.String(), err)
			}
			keys = append(keys, key)
		}
		signer, err := webhook.NewSigner(keys...)
		if err != nil {
			return nil, fault.Invalid("The secrets of a receiver cannot sign.", fault.At(fault.Of(err).Message, "notify", i, "secretRefs"))
		}
		u, err := url.Parse(n.URL)
		if err != nil {
			return nil, fault.Invalid("The address of a receiver cannot be read.", fault.At("want an address", "notify", i, "url"))
		}
		o.Targets = append(o.Targets, notify.Target{ID: notify.TargetID(n.URL), URL: n.URL, On: n.On, Agents: n.Agents, Signer: signer,
			Transport: guard.Transport("notify."+strconv.Itoa(i)+".url", outbound.HostPort(u))})
	}
	return notify.New(o), nil
}
