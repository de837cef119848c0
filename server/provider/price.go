package provider

import (
	"cmp"
	"regexp"

	"agentd/server/message"
)

// Prices maps a model's name to its price. The name "*" is for every other model.
type Prices map[string]Price

// A Price is what a model costs, in US dollars per million tokens.
type Price struct {
	Input      float64
	Output     float64
	CachedRead *float64 // input read from the provider's cache; nil = as input
	CacheWrite *float64 // input written to the provider's cache; nil = as input
	Reasoning  *float64 // nil = as output
}

// dated is the date that providers append to the name of a model's snapshot: -20250930 or -2025-09-30.
var dated = regexp.MustCompile(`-(\d{8}|\d{4}-\d\d-\d\d)$`)

// Cost prices a usage of a model under its name, under its name without the date at its end, or under "*"; nil when the model
// has no price. Cached tokens are part of the prompt's and are taken out before the rest of it is priced as input; that rest is
// never less than nothing, whatever a server reports.
func (p Prices) Cost(model string, u message.Usage) *message.Cost {
	for _, name := range []string{model, dated.ReplaceAllString(model, ""), "*"} {
		if price, ok := p[name]; ok {
			return &message.Cost{Amount: price.micros(u) / 1e6, Currency: "USD"}
		}
	}
	return nil
}

func (p Price) micros(u message.Usage) float64 {
	read, write := u.CachedReadTokens, u.CacheWriteTokens
	return p.Input*float64(max(0, u.PromptTokens-read-write)) +
		*cmp.Or(p.CachedRead, &p.Input)*float64(read) +
		*cmp.Or(p.CacheWrite, &p.Input)*float64(write) +
		p.Output*float64(u.CompletionTokens) +
		*cmp.Or(p.Reasoning, &p.Output)*float64(message.Value(u.ReasoningTokens))
}
