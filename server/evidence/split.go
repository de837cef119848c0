package evidence

import (
	"bytes"
	"encoding/json"
	"slices"

	"agentd/server/message"
)

// maxManifest bounds the first line, in bytes.
const maxManifest = 64 << 10

// split reads the manifest and takes the file apart into the members that it names.
func (v *verifier) split(text []byte) {
	if len(text) > MaxBytes {
		v.bad(manifestName, "the file is larger than %d MiB", MaxBytes>>20)
		return
	}
	line, rest, ended := bytes.Cut(text, []byte{'\n'})
	m := &v.manifest
	if !ended || len(line) > maxManifest || json.Unmarshal(line, m) != nil {
		v.bad(manifestName, "the first line is not a manifest, or is cut off")
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
	v.bodies = find(rest, m.Members)
	v.report.Members = len(v.bodies)
	v.compare(len(rest))
}

// find returns the members that are unharmed. Each is looked for at two places: where the lengths of the members before it
// put it, and where the lengths of those after it do. So the members on either side of one alteration are found.
func find(text []byte, list []Member) map[string][]byte {
	bodies := map[string][]byte{}
	shift := len(text)
	for _, m := range list {
		shift -= m.Bytes
	}
	at := 0
	for _, m := range list {
		for _, from := range []int{at, at + shift} {
			if from < 0 || from > len(text) || m.Bytes > len(text)-from {
				continue
			}
			if body := text[from : from+m.Bytes]; sum(body) == m.SHA256 {
				bodies[m.Name] = body
				break
			}
		}
		at += m.Bytes
	}
	return bodies
}

// compare names the members that were not found, and says how the length of the file differs from that in the manifest.
func (v *verifier) compare(size int) {
	want := 0
	for _, m := range v.manifest.Members {
		want += m.Bytes
	}
	lost := slices.DeleteFunc(slices.Clone(v.manifest.Members), func(m Member) bool { _, found := v.bodies[m.Name]; return found })
	for _, m := range lost {
		switch {
		case size == want:
			v.bad(m.Name, "it was altered: its hash is another")
		case len(lost) > 1:
			v.bad(m.Name, "it was altered, moved, cut off or taken out: the members have %d bytes, want %d", size, want)
		case m.Bytes+size-want == 0:
			v.bad(m.Name, "it is missing")
		default:
			v.bad(m.Name, "it was altered or cut off: it has %d bytes, want %d", m.Bytes+size-want, m.Bytes)
		}
	}
	if len(lost) == 0 && size != want {
		v.bad(manifestName, "the members have %d bytes, and the file has %d: bytes were added, or taken out", want, size)
	}
}
