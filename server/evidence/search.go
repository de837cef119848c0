package evidence

import (
	"bytes"
	"cmp"
	"slices"
)

// A search finds the members of a bundle in what follows its manifest, by their lengths and hashes.
//
// First it takes them from the front and from the back, for as long as they are there. What is left lies between two
// places that were altered, or beyond one and what was added at the end. A member there may begin at any line: it is
// looked for wherever one begins and another ends as many bytes later as it has, those with the fewest bytes first, since
// the neighbours of one that is found need no looking for. However the file was made, no more is hashed than a fixed
// multiple of it and a constant.
type search struct {
	text    []byte
	members []Member
	at      []int // by member: where it begins; -1: not found
	budget  int   // of work: a byte that is hashed is 1
}

// The budget is so often the length of the text, and a constant; and what a place costs that is looked at, and one that is
// tried, beside its bytes. A line of a bundle has some hundred bytes, so this bounds what was made to take long only.
const (
	searchFactor = 8
	searchBytes  = 16 << 20
	lookCost     = 8
	tryCost      = 512
)

func newSearch(text []byte, members []Member) *search {
	s := &search{text: text, members: members, at: slices.Repeat([]int{-1}, len(members)), budget: searchFactor*len(text) + searchBytes}
	for i, m := range members {
		if m.Bytes == 0 && m.SHA256 == sum(nil) {
			s.at[i] = 0 // anywhere
		}
	}
	return s
}

func (s *search) found(i int) bool  { return s.at[i] >= 0 }
func (s *search) end(i int) int     { return s.at[i] + s.members[i].Bytes }
func (s *search) body(i int) []byte { return s.text[s.at[i]:s.end(i)] }

// solid are the members that have bytes.
func (s *search) solid() (list []int) {
	for i, m := range s.members {
		if m.Bytes > 0 {
			list = append(list, i)
		}
	}
	return list
}

func (s *search) find() {
	order := s.solid()
	at, front := 0, 0
	for front < len(order) && s.try(order[front], at) {
		at = s.end(order[front])
		front++
	}
	at = len(s.text)
	for back := len(order) - 1; back >= front && s.try(order[back], at-s.members[order[back]].Bytes); back-- {
		at = s.at[order[back]]
	}
	left := slices.DeleteFunc(slices.Clone(order), s.found)
	slices.SortStableFunc(left, func(a, b int) int { return cmp.Compare(s.members[a].Bytes, s.members[b].Bytes) })
	for _, i := range left {
		if !s.found(i) && s.scan(i) {
			s.spread(order, slices.Index(order, i))
		}
	}
}

// scan looks for a member wherever a line begins.
func (s *search) scan(i int) bool {
	size := s.members[i].Bytes
	for at := 0; size <= len(s.text)-at && s.budget > 0; {
		s.budget -= lookCost
		if s.text[at+size-1] == '\n' && s.try(i, at) {
			return true
		}
		line := bytes.IndexByte(s.text[at:], '\n')
		if line < 0 {
			break
		}
		at += line + 1
	}
	return false
}

// spread looks for the neighbours of a member that was found where they belong.
func (s *search) spread(order []int, n int) {
	for k := n + 1; k < len(order) && !s.found(order[k]) && s.try(order[k], s.end(order[k-1])); k++ {
	}
	for k := n - 1; k >= 0 && !s.found(order[k]) && s.try(order[k], s.at[order[k+1]]-s.members[order[k]].Bytes); k-- {
	}
}

// try reports whether a member is at a place that none has been found in, and takes it.
func (s *search) try(i, at int) bool {
	m := s.members[i]
	if at < 0 || m.Bytes > len(s.text)-at || s.taken(at, at+m.Bytes) || s.budget <= 0 {
		return false
	}
	s.budget -= m.Bytes + tryCost
	if sum(s.text[at:at+m.Bytes]) != m.SHA256 {
		return false
	}
	s.at[i] = at
	return true
}

func (s *search) taken(from, to int) bool {
	for i, m := range s.members {
		if m.Bytes > 0 && s.found(i) && from < s.end(i) && s.at[i] < to {
			return true
		}
	}
	return false
}

// placed are the members that have bytes and were found, in the order in which they are there.
func (s *search) placed() []int {
	list := slices.DeleteFunc(s.solid(), func(i int) bool { return !s.found(i) })
	slices.SortFunc(list, func(a, b int) int { return cmp.Compare(s.at[a], s.at[b]) })
	return list
}

// A gap is a range of bytes in which no member was found, and the members beside it; -1: none.
type gap struct{ from, to, before, after int }

// gaps are those between members that are there in an order.
func (s *search) gaps(there []int) (list []gap) {
	at, before := 0, -1
	for _, i := range there {
		if s.at[i] > at {
			list = append(list, gap{at, s.at[i], before, i})
		}
		at, before = s.end(i), i
	}
	if at < len(s.text) {
		list = append(list, gap{at, len(s.text), before, -1})
	}
	return list
}
