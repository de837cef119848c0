package audit_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"agentd/server/audit"
)

// A search finds what reading everything finds, whatever the clock did, and also when it knows what the blocks hold.
func TestSearchesMissNothing(t *testing.T) {
	l := openLog(t, audit.Options{})
	const entries = 5000
	at := func(n int) int64 {
		s := int64(n)
		if n > 2500 { // the clock was set back by a quarter of the time
			s -= 1300
		}
		if n%700 == 3 {
			s += 2000 // for one entry, it was ahead
		}
		return 1_700_000_000_000 + s*1000
	}
	var records []audit.Record
	for n := range entries {
		r := audit.Record{At: time.UnixMilli(at(n)), Actor: audit.Actor{Kind: audit.ActorToken, ID: "t"}, Action: "http:request", Target: fmt.Sprint(n), Decision: audit.Success}
		switch {
		case n == 2600:
			r.Action = "rare:one"
		case n == 1030 || n == 4999:
			r.Actor.ID = `a "rare" one`
		}
		records = append(records, r)
	}
	if err := l.Append(t.Context(), records...); err != nil {
		t.Fatal(err)
	}
	all := func(q audit.Query) (seqs []int64, pages int) {
		for {
			page, more, err := l.List(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				seqs = append(seqs, e.Seq)
			}
			if pages++; more == 0 {
				return seqs, pages
			}
			if q.Newest {
				q.To = more
			} else {
				q.From = more
			}
		}
	}
	everything := []audit.Entry{}
	for e, err := range l.Entries(t.Context(), audit.Query{Limit: 1000}) {
		if err != nil {
			t.Fatal(err)
		}
		everything = append(everything, *e)
	}
	if len(everything) < entries {
		t.Fatalf("%d entries", len(everything))
	}
	for round := range 2 {
		for _, q := range []audit.Query{
			{Since: at(4900)}, {Until: at(50)}, {Since: at(2400), Until: at(2450)}, {Since: at(2600), Until: at(2610)}, {Since: at(4203)},
			{Action: "rare:one"}, {ActorID: `a "rare" one`}, {Action: "rare:one", ActorID: "t"}, {Action: "rare:two"}, {Action: "rare:one", Since: at(2600)},
			{From: 1500, To: 3100, Action: "rare:one"}, {From: 3000, ActorID: `a "rare" one`}, {To: -1}, {From: 9000},
		} {
			for _, newest := range []bool{false, true} {
				q.Newest = newest
				var want []int64
				for _, e := range everything {
					if e.Seq < q.From || q.To != 0 && e.Seq > q.To || q.Since != 0 && e.TS < q.Since || q.Until != 0 && e.TS > q.Until ||
						q.Action != "" && e.Action != q.Action || q.ActorID != "" && e.Actor.ID != q.ActorID {
						continue
					}
					want = append(want, e.Seq)
				}
				if newest {
					slices.Reverse(want)
				}
				got, pages := all(q)
				if !slices.Equal(got, want) {
					t.Errorf("round %d: List(%+v) = %d entries, want %d", round, q, len(got), len(want))
				}
				if round == 1 && q.Action != "" && pages > 4 {
					t.Errorf("List(%+v) took %d pages, although it was known where the action is", q, pages)
				}
			}
		}
	}
}
