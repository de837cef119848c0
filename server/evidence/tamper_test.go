package evidence_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"agentd/server/evidence"
)

// A piece is a member as it stands in a file.
type piece struct {
	name string
	body []byte
}

// pieces is a bundle as its manifest and its members, in their order.
func pieces(t testing.TB, text []byte) (manifest []byte, list []piece) {
	t.Helper()
	p := apart(t, text)
	line, _, _ := bytes.Cut(text, []byte{'\n'})
	for _, m := range p.manifest.Members {
		list = append(list, piece{m.Name, p.bodies[m.Name]})
	}
	return append(slices.Clone(line), '\n'), list
}

func file(manifest []byte, list []piece) []byte {
	out := slices.Clone(manifest)
	for _, p := range list {
		out = append(out, p.body...)
	}
	return out
}

func linesOf(body []byte) [][]byte { return slices.Collect(bytes.Lines(body)) }

// with is the list with another body for one member.
func with(list []piece, n int, lines ...[]byte) []piece {
	out := slices.Clone(list)
	out[n].body = slices.Concat(lines...)
	return out
}

// verifyTold verifies a file that was altered: some of the members that are named here must be blamed, and no other.
func verifyTold(t *testing.T, what string, text []byte, may ...string) evidence.Report {
	t.Helper()
	r := evidence.Verify(text, nil)
	got := blamed(r)
	if r.OK || len(got) == 0 || slices.ContainsFunc(got, func(name string) bool { return !slices.Contains(may, name) }) {
		t.Errorf("%s: Verify = %+v, want some of %v named and no other", what, r.Problems, may)
	}
	return r
}

// names are those of the members from n to k, in either order. After the last comes the manifest, which is named for bytes
// that are too many.
func names(list []piece, n, k int) (all []string) {
	for _, p := range append(slices.Clone(list), piece{name: "manifest"})[min(n, k) : max(n, k)+1] {
		all = append(all, p.name)
	}
	return all
}

func said(r evidence.Report, text string) bool {
	return slices.ContainsFunc(r.Problems, func(p evidence.Problem) bool { return strings.Contains(p.Problem, text) })
}

// bundles are the files that are altered: of each version, and one whose members of several lines are large, which no
// two lines of are alike.
func bundles(t *testing.T) map[string][]byte {
	t.Helper()
	return map[string][]byte{"1.0": fixture(t, "approved.jsonl"), "1.1": fixture(t, "recorded.jsonl"), "large": large(t, 300)}
}

// large is a bundle with many lines, which means nothing but is in the form of one.
func large(t testing.TB, n int) []byte {
	t.Helper()
	p := apart(t, fixture(t, "approved.jsonl"))
	for _, name := range []string{"events", "calls", "approvals", "config", "entries"} {
		var body []byte
		first := linesOf(p.bodies[name])[0]
		for i := range n {
			line := fmt.Appendf(nil, `%s,"n":%d,"pad":%q}`, bytes.TrimSuffix(first, []byte("}\n")), i, strings.Repeat("x", i%17))
			body = append(append(body, line...), '\n')
		}
		p.bodies[name] = body
	}
	return p.together(t)
}

// TestTamperedLines inserts, deletes, repeats and reorders lines of each member.
func TestTamperedLines(t *testing.T) {
	for version, text := range bundles(t) {
		manifest, list := pieces(t, text)
		for n, p := range list {
			t.Run(version+"/"+p.name, func(t *testing.T) {
				lines := linesOf(p.body)
				for i := range lines {
					if i > 2 && i < len(lines)-2 && i%97 != 0 {
						continue
					}
					verifyTold(t, fmt.Sprint("line deleted ", i), file(manifest, with(list, n, slices.Concat(lines[:i], lines[i+1:])...)), p.name)
					verifyTold(t, fmt.Sprint("line twice ", i), file(manifest, with(list, n, slices.Insert(slices.Clone(lines), i, lines[i])...)), names(list, n, n+1)...)
					changed := append(bytes.TrimSuffix(slices.Clone(lines[i]), []byte("}\n")), `,"more":true}`+"\n"...)
					verifyTold(t, fmt.Sprint("line changed ", i), file(manifest, with(list, n, slices.Replace(slices.Clone(lines), i, i+1, changed)...)), p.name)
					verifyTold(t, fmt.Sprint("line like it inserted ", i), file(manifest, with(list, n, slices.Insert(slices.Clone(lines), i, changed)...)), p.name)
					if i > 0 {
						verifyTold(t, fmt.Sprint("line inserted ", i), file(manifest, with(list, n, slices.Insert(slices.Clone(lines), i, []byte("{}\n"))...)), p.name)
						swapped := slices.Clone(lines)
						swapped[i], swapped[i-1] = swapped[i-1], swapped[i]
						verifyTold(t, fmt.Sprint("lines swapped ", i), file(manifest, with(list, n, swapped...)), p.name)
					}
					cut := slices.Clone(lines)
					cut[i] = cut[i][1:]
					if verifyTold(t, fmt.Sprint("byte deleted ", i), file(manifest, with(list, n, cut...)), p.name); t.Failed() {
						return
					}
				}
				verifyTold(t, "emptied", file(manifest, with(list, n)), p.name)
			})
		}
	}
}

// TestTamperedMembers takes out, repeats, exchanges and alters whole members, and adds bytes.
func TestTamperedMembers(t *testing.T) {
	for version, text := range bundles(t) {
		manifest, list := pieces(t, text)
		for n, p := range list {
			out := slices.Delete(slices.Clone(list), n, n+1)
			if r := verifyTold(t, version+": without "+p.name, file(manifest, out), p.name); !said(r, "taken out") || r.Members != n {
				t.Errorf("Verify without %s = %+v, want it missing and the %d members before it unharmed", p.name, r, n)
			}
			for k, q := range list {
				name := version + ": " + p.name + " and " + q.name
				verifyTold(t, name+" twice", file(manifest, slices.Insert(slices.Clone(list), k, p)), names(list, k, min(k+1, len(list)))...)
				if k == n {
					continue
				}
				between := names(list, n, k)
				swapped := slices.Clone(list)
				swapped[n], swapped[k] = swapped[k], swapped[n]
				verifyTold(t, name+" exchanged", file(manifest, swapped), between...)
				verifyTold(t, name+" moved", file(manifest, slices.Insert(slices.Clone(out), k, p)), between...)
				verifyTold(t, name+" both altered", file(manifest, with(with(list, n, p.body[1:]), k, q.body[1:])), between...)
				verifyTold(t, name+" out and altered", file(manifest, slices.Delete(with(list, k, []byte("{}\n"), q.body), n, n+1)), between...)
			}
			for _, garbage := range []string{"\n", "x", "{}\n{}\n", strings.Repeat("\n", 1000)} {
				verifyTold(t, version+": bytes before "+p.name, file(manifest, slices.Insert(slices.Clone(list), n, piece{body: []byte(garbage)})), p.name)
				verifyTold(t, version+": "+p.name+" altered and bytes appended", append(file(manifest, with(list, n, p.body[1:])), garbage...), names(list, n, len(list)-1)...)
				r := verifyTold(t, version+": bytes appended", append(file(manifest, list), garbage...), "manifest")
				if !said(r, "bytes were added") || r.Members != len(list) {
					t.Errorf("Verify with bytes at the end = %+v, want all members unharmed and the bytes reported", r)
				}
			}
		}
	}
}

// TestTruncatedNames cuts the file anywhere: the member that is cut is named, and no other.
func TestTruncatedNames(t *testing.T) {
	text := fixture(t, "approved.jsonl")
	p := apart(t, text)
	manifest, _, _ := bytes.Cut(text, []byte{'\n'})
	for n := len(manifest) + 1; n < len(text); n++ {
		cut := slices.IndexFunc(p.manifest.Members, func(m evidence.Member) bool { return p.from[m.Name]+m.Bytes > n })
		if verifyTold(t, fmt.Sprint("cut at ", n), text[:n], p.manifest.Members[cut].Name); t.Failed() {
			return
		}
	}
}

// TestTamperedMuch alters several members at once, without another length: those are named, and no other.
func TestTamperedMuch(t *testing.T) {
	manifest, list := pieces(t, large(t, 60))
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		out := slices.Clone(list)
		var want []string
		for n, p := range list {
			if random.IntN(3) == 0 {
				out[n].body = slices.Concat([]byte("x"), p.body[1:])
				want = append(want, p.name)
			}
		}
		if want == nil {
			continue
		}
		if r := verifyTold(t, fmt.Sprint(want, " altered"), file(manifest, out), want...); t.Failed() || len(blamed(r)) != len(want) {
			t.Fatalf("Verify blames %v, want %v", blamed(r), want)
		}
	}
}
