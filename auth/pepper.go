package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"hash"
	"math"
	"slices"
	"sync"

	"agentd/server/fault"
)

// The least that a pepper must offer. A pepper of random bytes or of random hexadecimal digits passes by far.
const (
	minPepperBytes   = 32
	maxPepperRun     = 7   // identical bytes in a row
	minPepperEntropy = 3.0 // bits per byte, after Shannon, over the frequencies of its bytes
)

// CheckPepper refuses a pepper that can be guessed. The error is pre-bind-pepper-missing or pre-bind-pepper-weak, and
// says nothing about the pepper but in which way it is weak.
func CheckPepper(pepper []byte) error {
	if len(pepper) == 0 {
		return fault.New(fault.PepperMissing, "The pepper that tokens are hashed with is missing.")
	}
	if len(pepper) < minPepperBytes {
		return fault.New(fault.PepperWeak, "The pepper has fewer than %d bytes.", minPepperBytes)
	}
	run := 0
	var counts [256]int
	for i, b := range pepper {
		if i == 0 || b != pepper[i-1] {
			run = 0
		}
		if run++; run > maxPepperRun {
			return fault.New(fault.PepperWeak, "The pepper repeats one byte %d times or more.", maxPepperRun+1)
		}
		counts[b]++
	}
	entropy := 0.0
	for _, n := range counts {
		if n > 0 {
			p := float64(n) / float64(len(pepper))
			entropy -= p * math.Log2(p)
		}
	}
	if entropy < minPepperEntropy {
		return fault.New(fault.PepperWeak, "The pepper has too few different bytes.")
	}
	return nil
}

// digest is the keyed hash of a token: its HMAC-SHA256 under the pepper. The store keeps it in lower-case hexadecimal.
type digest [sha256.Size]byte

// A hasher computes keyed hashes without allocating: it keeps states that have absorbed the pepper already.
type hasher struct{ states sync.Pool }

type hashState struct {
	mac hash.Hash
	in  []byte
	out digest
}

func newHasher(pepper []byte) *hasher {
	pepper = slices.Clone(pepper)
	return &hasher{states: sync.Pool{New: func() any { return &hashState{mac: hmac.New(sha256.New, pepper)} }}}
}

func (h *hasher) sum(raw Raw) digest {
	s := h.states.Get().(*hashState)
	defer h.states.Put(s)
	s.in = append(s.in[:0], raw...)
	s.mac.Reset()
	s.mac.Write(s.in)
	s.mac.Sum(s.out[:0])
	clear(s.in)
	return s.out
}
