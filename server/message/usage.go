package message

// Usage counts what model calls consumed. PromptTokens includes the cached ones, which are subsets of it;
// ReasoningTokens are not part of CompletionTokens. Clients rely on the counts of cached tokens to be there.
type Usage struct {
	PromptTokens     int64  `json:"promptTokens" check:"lenient 0.."`
	CompletionTokens int64  `json:"completionTokens" check:"lenient 0.."`
	TotalTokens      int64  `json:"totalTokens" check:"lenient 0.."`
	ReasoningTokens  *int64 `json:"reasoningTokens,omitempty" check:"lenient 0.."`
	CachedReadTokens int64  `json:"cachedReadTokens" check:"lenient 0.." doc:"Those of promptTokens that were read from the provider's cache; 0 if the provider does not report it."`
	CacheWriteTokens int64  `json:"cacheWriteTokens" check:"lenient 0.." doc:"Those of promptTokens that were written to the provider's cache; 0 if the provider does not report it."`
	Cost             *Cost  `json:"cost,omitempty" check:"lenient"`
	Estimated        bool   `json:"estimated,omitempty" doc:"A model reported no usage, so at least a part of the numbers is estimated from the length of texts."`
}

// Cost is an amount in whole currency units (0.0123 is 1.23 cents).
type Cost struct {
	Amount   float64 `json:"amount" check:"lenient 0.."`
	Currency string  `json:"currency" check:"lenient" default:"USD"` // ISO 4217
}

// ModelUsage is the usage of one model and the number of calls it is made of.
type ModelUsage struct {
	Usage
	AttemptCount int64 `json:"attemptCount" check:"lenient 0.." default:"1"`
}

// Plus returns the sum. Optional counts are present when either side has them. Costs are summed when their
// currencies match and dropped when they differ; a side without cost does not change the other's.
func (u Usage) Plus(v Usage) Usage {
	u.PromptTokens += v.PromptTokens
	u.Estimated = u.Estimated || v.Estimated
	u.CompletionTokens += v.CompletionTokens
	u.TotalTokens += v.TotalTokens
	u.ReasoningTokens = plus(u.ReasoningTokens, v.ReasoningTokens)
	u.CachedReadTokens += v.CachedReadTokens
	u.CacheWriteTokens += v.CacheWriteTokens
	switch {
	case v.Cost == nil:
	case u.Cost == nil:
		u.Cost = new(*v.Cost)
	case u.Cost.Currency == v.Cost.Currency:
		u.Cost = &Cost{Amount: u.Cost.Amount + v.Cost.Amount, Currency: u.Cost.Currency}
	default:
		u.Cost = nil
	}
	return u
}

func plus(a, b *int64) *int64 {
	switch {
	case b == nil:
		return a
	case a == nil:
		return new(*b)
	}
	return new(*a + *b)
}

// Value is the number behind an optional count, zero where it is absent.
func Value(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}
