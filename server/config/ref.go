package config

import "agentd/server/secret"

// Ref is a reference to a secret, such as env:NAME or file:path; the secret itself is never in the configuration. The
// zero value is absent. A relative file is relative to the folder of the configuration. Package secret has its grammar.
type Ref string

func (r *Ref) decode(l *loader, n *node, path []any) {
	if l.expect(n, stringNode, path, "a reference such as env:NAME or file:path") && l.accept(n, path, Ref(n.text).check()) {
		*r = Ref(n.text)
	}
}

// check repeats nothing of a text that may be a secret itself.
func (r Ref) check() string {
	if r == "" {
		return ""
	}
	if err := secret.Check(string(r)); err != nil {
		return err.Error()
	}
	return ""
}

func refSchema() map[string]any {
	return map[string]any{"type": "string", "pattern": `^[A-Za-z][A-Za-z0-9+.-]*:.+`}
}

func (*Ref) form() (string, map[string]any) { return "reference", refSchema() }

// String is the reference for people, without what may be secret in it: a default, for instance.
func (r Ref) String() string {
	if r == "" {
		return ""
	}
	return secret.Show(string(r))
}

// MarshalJSON writes String.
func (r Ref) MarshalJSON() ([]byte, error) { return encode(r.String()), nil }
