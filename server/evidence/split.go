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
	if m.V == Version && !slices.Equal(m.WritersWord, writersWord) {
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
	if !slices.EqualFunc(m.Members, memberNames, func(m Member, name string) bool { return m.Name == name && m.Bytes >= 0 }) {
		v.bad(manifestName, "its members are not those of %s", m.V)
		return
	}
	v.report.RunID = m.RunID
	v.members(rest)
	v.report.Members = len(v.bodies)
}

// members separates the members and compares each with its hash. If their total length differs from the manifest, it names only
// the first member that differs, since the others may just have moved.
func (v *verifier) members(rest []byte) {
	size, want := len(rest), 0
	for _, m := range v.manifest.Members {
		want += m.Bytes
	}
	for _, m := range v.manifest.Members {
		var body []byte
		body, rest = rest[:min(m.Bytes, len(rest))], rest[min(m.Bytes, len(rest)):]
		switch {
		case sum(body) == m.SHA256:
			v.bodies[m.Name] = body
		case size == want:
			v.bad(m.Name, "it was altered: its hash is another")
		default:
			v.bad(m.Name, "it was altered, cut off, moved or taken out: the members have %d bytes, want %d", size, want)
			return
		}
	}
	if len(rest) > 0 {
		v.bad(manifestName, "the members have %d bytes, and the file has %d: bytes were added", want, size)
	}
}
