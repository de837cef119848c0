package proc

import (
	"maps"
	"os"
	"slices"
)

// usual are the variables that programs commonly need to work at all.
var usual = []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"}

// Environ makes a whole environment, sorted by name: of the server's variables those that inherit names and, unless it is to be
// clean, PATH, HOME, LANG, TZ and TMPDIR, as far as they are set; then env, which wins.
func Environ(env map[string]string, inherit []string, clean bool) []string {
	if !clean {
		inherit = slices.Concat(usual, inherit)
	}
	all := map[string]string{}
	for _, name := range inherit {
		if value, ok := os.LookupEnv(name); ok {
			all[name] = value
		}
	}
	maps.Copy(all, env)
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}
