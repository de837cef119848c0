package ws

import (
	"bytes"
	"fmt"
	"testing"
)

func maskBytes(p []byte, key uint32) {
	for i := range p {
		p[i] ^= byte(key >> (8 * (i % 4)))
	}
}

// TestMask compares mask with a loop over bytes, at all lengths and offsets, in one piece and in two.
func TestMask(t *testing.T) {
	const key = 0x4D3C2B1A
	whole := make([]byte, 300)
	for i := range whole {
		whole[i] = byte(7 * i)
	}
	for from := range 9 {
		for to := from; to <= len(whole); to++ {
			want := bytes.Clone(whole[from:to])
			maskBytes(want, key)
			at := min((to-from)/3, 21)
			got := bytes.Clone(whole)
			mask(got[from+at:to], mask(got[from:from+at], key))
			if !bytes.Equal(got[from:to], want) || !bytes.Equal(got[:from], whole[:from]) || !bytes.Equal(got[to:], whole[to:]) {
				t.Fatalf("mask(p[%d:%d], %#x) in two pieces, cut at %d, is wrong", from, to, key, at)
			}
		}
	}
}

func TestBufferClasses(t *testing.T) {
	for n, want := range map[int]int{0: 512, 1: 512, 512: 512, 513: 2048, 2048: 2048, 2049: 8192, 8192: 8192, 8193: 32768,
		32768: 32768, 32769: 131072, 1 << 21: 1 << 21, 1<<21 + 1: 1<<21 + 1} {
		b := getBuffer(n)
		if cap(b.b) != want || len(b.b) != 0 {
			t.Errorf("getBuffer(%d) = %d bytes of %d, want 0 of %d", n, len(b.b), cap(b.b), want)
		}
		b.free()
	}
}

// BenchmarkMask compares mask with what it replaces and with the speed of memory.
func BenchmarkMask(b *testing.B) {
	for _, n := range []int{16, 125, 1 << 10, 16 << 10, 1 << 20} {
		p, q := make([]byte, n), make([]byte, n)
		for name, f := range map[string]func(){
			"words": func() { mask(p, 0x4D3C2B1A) },
			"bytes": func() { maskBytes(p, 0x4D3C2B1A) },
			"copy":  func() { copy(q, p) },
		} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f()
				}
			})
		}
	}
}
