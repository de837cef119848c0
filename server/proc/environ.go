package proc

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// usual are the variables that programs commonly need to work at all.
var usual = []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"}

// Inherited are the names of the server's variables that a program gets: names and, unless it is to be clean, PATH, HOME,
// LANG, TZ and TMPDIR.
func Inherited(names []string, clean bool) []string {
	if clean {
		return names
	}
	return slices.Concat(usual, names)
}

// Environ makes a whole environment, sorted by name: the server's variables that inherit names, as far as they are
// set, then env, then extra (each KEY=value); a later one wins over an earlier one of the same name.
func Environ(env map[string]string, inherit []string, extra ...string) []string {
	all := map[string]string{}
	for _, name := range inherit {
		if value, ok := os.LookupEnv(name); ok {
			all[name] = value
		}
	}
	maps.Copy(all, env)
	for _, pair := range extra {
		name, value, _ := strings.Cut(pair, "=")
		all[name] = value
	}
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}
