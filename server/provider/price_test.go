package provider_test

import (
	"math"
	"testing"

	"agentd/server/message"
	"agentd/server/provider"
)

func TestCost(t *testing.T) {
	prices := provider.Prices{
		"plain":  {Input: 2, Output: 8},
		"full":   {Input: 2, Output: 8, CachedRead: new(0.5), CacheWrite: new(2.5), Reasoning: new(4.0)},
		"free":   {},
		"m-2024": {Input: 1},
	}
	usage := message.Usage{PromptTokens: 1_000_000, CompletionTokens: 100_000}
	cached := usage
	cached.CachedReadTokens, cached.CacheWriteTokens, cached.ReasoningTokens = 400_000, 100_000, new(int64(50_000))
	odd := message.Usage{PromptTokens: 10, CachedReadTokens: 1_000_000}
	for _, tc := range []struct {
		model string
		usage message.Usage
		want  float64 // negative = unpriced
	}{
		{"plain", usage, 2.8},
		{"plain", cached, 3.2}, // cached tokens without a rate cost what input costs
		{"full", cached, 0.5*2 + 0.4*0.5 + 0.1*2.5 + 0.1*8 + 0.05*4},
		{"full", odd, 0.5},
		{"full", message.Usage{}, 0},
		{"free", usage, 0},
		{"plain-20250930", usage, 2.8},
		{"plain-2025-09-30", usage, 2.8},
		{"m-2024", usage, 1},
		{"plain-2025", usage, -1},
		{"plain-20250930-x", usage, -1},
		{"none", usage, -1},
	} {
		got := prices.Cost(tc.model, tc.usage)
		switch {
		case tc.want < 0 && got != nil:
			t.Errorf("Cost(%s) = %v, want none", tc.model, *got)
		case tc.want >= 0 && (got == nil || math.Abs(got.Amount-tc.want) > 1e-12 || got.Currency != "USD"):
			t.Errorf("Cost(%s, %+v) = %v, want %v USD", tc.model, tc.usage, got, tc.want)
		}
	}
	prices["*"] = provider.Price{Output: 1}
	if got := prices.Cost("none", usage); got == nil || got.Amount != 0.1 {
		t.Errorf("Cost(none) with a price for all = %v, want 0.1", got)
	}
	if got := provider.Prices(nil).Cost("m", usage); got != nil {
		t.Errorf("Cost() without prices = %v, want none", got)
	}
}

func TestEstimate(t *testing.T) {
	for text, want := range map[string]int{"": 0, "a": 1, "abcd": 1, "abcde": 2, "éééé": 1} {
		if got := message.Estimate(text); got != want {
			t.Errorf("Estimate(%q) = %d, want %d", text, got, want)
		}
	}
}
