package evidence

import (
	"bytes"
	"encoding/json"
	"slices"

	"agentd/server/message"
)

// maxManifest is the length of a manifest.
const maxManifest = 64 << 10

// split reads the manifest and finds the members that it tells of.
func (v *verifier) split(text []byte) {
	if len(text) > MaxBytes {
		v.bad(manifestName, "the file is larger than %d MiB", MaxBytes>>20)
		return
	}
	line, rest, ended := bytes.Cut(text, []byte{'\n'})
	m := &v.manifest
	if !ended || len(line) > maxManifest || json.Unmarshal(line, m) != nil {
		v.bad(manifestName, "the first line is no manifest, or is cut off")
		return
	}
	if m.V != Version && m.V != Second && m.V != First {
		v.bad(manifestName, "its label is %.64q, want %q, %q or %q", m.V, Version, Second, First)
	}
	if m.V == Version && !slices.Equal(m.WritersWord, writersWord()) {
		v.bad(manifestName, "it does not name the members that are the word of who wrote it")
	}
	want := *m
	err := want.seal()
	again, encErr := message.Encode(m)
	if err != nil || encErr != nil || want.SHA256 != m.SHA256 || !bytes.Equal(again, line) {
		v.bad(manifestName, "it was altered: its hash is another")
	}
	if len(v.report.Problems) > 0 {
		return
	}
	names := members()
	if !slices.EqualFunc(m.Members, names, func(m Member, name string) bool { return m.Name == name && m.Bytes >= 0 }) {
		v.bad(manifestName, "its members are not those of %s", m.V)
		return
	}
	v.report.RunID = m.RunID
	s := newSearch(rest, m.Members)
	s.find()
	v.bodies = map[string][]byte{}
	for i, part := range m.Members {
		if s.found(i) {
			v.bodies[part.Name] = s.body(i)
		}
	}
	d := damage{search: s, bad: v.bad}
	d.tell()
	v.report.Members = len(v.bodies) - len(d.moved)
}

// damage tells what became of a bundle, by where its members were found.
type damage struct {
	*search
	bad   func(member, format string, args ...any)
	moved []int // members that are whole, and not where they belong
}

// tell names the members that are not as the manifest says, and what is there beside them. A member that was found is
// unharmed, wherever what came before it has shifted it to.
func (d *damage) tell() {
	there := d.placed()
	d.moved = outOfPlace(there)
	for _, i := range d.moved {
		after := "at the beginning"
		if at := slices.Index(there, i); at > 0 {
			after = "after " + d.members[there[at-1]].Name
		}
		d.bad(d.members[i].Name, "it is whole, but not in its place: it comes %s", after)
	}
	stays := slices.DeleteFunc(slices.Clone(there), func(i int) bool { return slices.Contains(d.moved, i) })
	gaps := d.gaps(there)
	for from := 0; from < len(d.members); {
		if d.found(from) {
			from++
			continue
		}
		to := from + 1 // of members that are not there, one after the other, but for those that were moved
		for to < len(d.members) && !slices.Contains(stays, to) {
			to++
		}
		gaps = d.lost(from, to, stays, gaps)
		from = to
	}
	for _, g := range gaps {
		d.foreign(g)
	}
}

// lost tells of the members in a range that were not found, and returns the gaps but for those in their place.
func (d *damage) lost(from, to int, stays []int, gaps []gap) (others []gap) {
	lo, hi := 0, len(d.text)
	for _, i := range stays {
		switch {
		case i < from:
			lo = d.end(i)
		case i >= to:
			hi = min(hi, d.at[i])
		}
	}
	var lost []Member
	for i := from; i < to; i++ {
		if !d.found(i) {
			lost = append(lost, d.members[i])
		}
	}
	size := 0
	for _, g := range gaps {
		if g.from >= lo && g.to <= hi {
			size += g.to - g.from
		} else {
			others = append(others, g)
		}
	}
	cut := hi == len(d.text) && !bytes.HasSuffix(d.text, []byte{'\n'})
	for n, m := range lost {
		switch {
		case m.Bytes == 0: // it is there, and has another hash
			d.bad(m.Name, "it was altered: its hash is another")
		case cut && n == 0 && size > 0 && size < m.Bytes:
			d.bad(m.Name, "it is cut off: %d of %d bytes are there", size, m.Bytes)
		case cut && n > 0 && size < lost[0].Bytes:
			d.bad(m.Name, "it is missing: the file is cut off")
		case size == 0:
			d.bad(m.Name, "it is missing")
		case len(lost) > 1:
			d.bad(m.Name, "it was altered or taken out: in the place of %d members there are %d bytes%s", len(lost), size, d.given())
		case size == m.Bytes:
			d.bad(m.Name, "it was altered: its hash is another")
		default:
			d.bad(m.Name, "it was altered: it has %d bytes, want %d", size, m.Bytes)
		}
	}
	return others
}

func (d *damage) given() string {
	if d.budget <= 0 {
		return "; the search for them was given up"
	}
	return ""
}

// foreign tells of bytes that are in the place of no member. They are told as a member's only when they show whose they
// are: as a copy, or by the name of their first field.
func (d *damage) foreign(g gap) {
	text := d.text[g.from:g.to]
	for i, m := range d.members {
		if d.found(i) && bytes.Equal(text, d.body(i)) {
			d.bad(m.Name, "it is there twice")
			return
		}
	}
	beside := []int{g.before, g.after}
	for _, i := range beside {
		if i >= 0 && holdsLines(d.body(i), text) {
			d.bad(d.members[i].Name, "lines of it are there twice: %d bytes beside it", len(text))
			return
		}
	}
	var alike []int
	for _, i := range beside {
		if i >= 0 && field(text) != "" && field(text) == field(d.body(i)) {
			alike = append(alike, i)
		}
	}
	switch {
	case len(alike) == 1:
		d.bad(d.members[alike[0]].Name, "%d bytes beside it are like it and belong to no member", len(text))
	case g.after < 0:
		d.bad(manifestName, "%d bytes follow the last member", len(text))
	case g.before < 0:
		d.bad(manifestName, "%d bytes come before the first member", len(text))
	default:
		d.bad(manifestName, "%d bytes between %s and %s belong to no member", len(text), d.members[g.before].Name, d.members[g.after].Name)
	}
}

// holdsLines reports whether all lines of a text are lines of a body too.
func holdsLines(body, text []byte) bool {
	wanted := map[string]bool{}
	for line := range bytes.Lines(text) {
		wanted[string(line)] = true
	}
	for line := range bytes.Lines(body) {
		delete(wanted, string(line))
	}
	return len(wanted) == 0
}

// field is what an object on the first line begins with, up to the value of its first member.
func field(text []byte) string {
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	if name, _, ok := bytes.Cut(line, []byte{':'}); ok && bytes.HasPrefix(name, []byte(`{"`)) {
		return string(name)
	}
	return ""
}

// outOfPlace are the members, of some in the order in which they are there, that were moved: both of two that changed
// places, else the fewest without which the others are in their order.
func outOfPlace(there []int) (moved []int) {
	for n, i := range slices.Sorted(slices.Values(there)) {
		if there[n] != i {
			moved = append(moved, i)
		}
	}
	if len(moved) <= 2 {
		return moved
	}
	// The longest ascending subsequence, by the best one that ends at each place.
	var best []int
	ends := make([][]int, len(there))
	for n, i := range there {
		for k := range n {
			if there[k] < i && len(ends[k]) > len(ends[n]) {
				ends[n] = ends[k]
			}
		}
		ends[n] = append(slices.Clip(ends[n]), i)
		if len(ends[n]) > len(best) {
			best = ends[n]
		}
	}
	return slices.DeleteFunc(moved, func(i int) bool { return slices.Contains(best, i) })
}
