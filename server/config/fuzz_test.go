package config_test

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/shape"
)

// FuzzVariable sets a setting with its variable and with its flag, which must come to the same.
func FuzzVariable(f *testing.F) {
	var settings []shape.Row
	for _, s := range config.Fields() {
		if !strings.Contains(s.Path, "<") && s.Path != "$schema" {
			settings = append(settings, s)
		}
	}
	texts := []string{"", "1", "-1", "1e3", "9007199254740993", "true", " a , b,", "env:NAME", "literal:s3cret-value", "none", "8080 // x", "[1,]", "\xff\x00", "*", "null", "\"1\""}
	for i := range settings {
		f.Add(uint16(i), texts[i%len(texts)])
	}
	f.Fuzz(func(t *testing.T, which uint16, text string) {
		s := settings[int(which)%len(settings)]
		byVariable := config.Options{Dir: "/etc/agentd", Env: []string{variable(s.Path) + "=bad", variable(s.Path) + "=" + text}}
		byFlag := config.Options{Dir: "/etc/agentd", Overrides: map[string]string{s.Path: text}}
		c, err := config.Parse([]byte("{}"), byVariable)
		d, err2 := config.Parse([]byte("{}"), byFlag)
		if err != nil || err2 != nil {
			a, b := fault.Of(err), fault.Of(err2)
			if err == nil || err2 == nil || a.Kind != fault.ConfigInvalid || b.Kind != fault.ConfigInvalid || len(a.Issues) == 0 || len(a.Issues) != len(b.Issues) {
				t.Errorf("%s=%q = %v, but as a flag %v, want config-invalid of both or neither", variable(s.Path), text, err, err2)
				return
			}
			shown := fmt.Sprint(a.Issues)
			if s.Type == "reference" && len(text) > 24 && strings.Contains(shown, text) {
				t.Errorf("%s=%q = %v, which repeats what may be a secret", variable(s.Path), text, err)
			}
			if len(shown) > 4096 {
				t.Errorf("%s with %d bytes: the problems have %d", variable(s.Path), len(text), len(shown))
			}
			return
		}
		if !reflect.DeepEqual(exported(c), exported(d)) {
			t.Errorf("%s=%q is another configuration than %s: %s, %s", variable(s.Path), text, s.Path, c.Print(), d.Print())
		}
		printed := c.Print()
		again, err := config.Parse(printed, config.Options{Dir: "/etc/agentd"})
		if !bytes.Contains(printed, []byte("***")) && (err != nil || !reflect.DeepEqual(exported(again), exported(c))) {
			t.Errorf("%s=%q is printed as %s, which is another: %v", variable(s.Path), text, printed, err)
		}
	})
}

// fileCost is that of Parse's contract.
var fileCost = fuzztest.Cost{PerByte: 1500, Base: 2 << 20, Time: time.Second}

func TestParseCost(t *testing.T) {
	o := config.Options{Files: files, Dir: "/etc/agentd"}
	texts := fuzztest.JSON()
	for name, text := range fuzztest.JSON() {
		texts[name+" in a tool"] = fmt.Appendf(nil, `{"tools":{"t":{"kind":"http","url":"http://h/","input":%s}}}`, text)
		texts[name+" as a text"] = fmt.Appendf(nil, `{"agents":{"a":{"kind":"llm","instructions":%s}}}`, text)
	}
	unit := func(form string) func(int) string { return func(i int) string { return fmt.Sprintf(form, i) } }
	texts["agents"] = fuzztest.Fill(`{"agents":{`, unit(`"a%d":{},`), `"a":{}}}`)
	texts["providers"] = fuzztest.Fill(`{"providers":{`, unit(`"a%d":{"kind":"scripted"},`), `"a":{}}}`)
	texts["unknown"] = fuzztest.Fill(`{"server":{`, unit(`"prt%d":0,`), `"port":0}}`)
	texts["long names"] = fuzztest.Fill(`{"server":{`, unit(`"x`+strings.Repeat("y", 300)+`%d":{"a":[{}]},`), `"port":0}}`)
	texts["comments"] = fuzztest.Fill("", unit("/**///%d\n"), "{}")
	texts["open comments"] = fuzztest.Fill("{", unit("/*%d"), "")
	texts["workflows"] = fuzztest.Fill(`{"workflows":{`, unit(`"w%d":{},`), `"w":{}}}`)
	texts["sound workflows"] = fuzztest.Fill(`{"workflows":{`, unit(`"w%d":{"start":"a","nodes":{"a":{"kind":"sleep","forMs":1,"next":"end"}}},`), `"w":{}}}`)
	nodes := func(form string) []byte {
		return fuzztest.Fill(`{"workflows":{"w":{"start":"n0","state":{"k":{}},"nodes":{`, unit(form), `"n":{"kind":"fail","code":"c","message":""}}}}}`)
	}
	texts["nodes"] = nodes(`"n%d":{},`)
	texts["unknown nodes"] = nodes(`"n%[1]d":{"kind":"sleep","forMs":1,"next":"x%[1]d"},`)
	texts["waits"] = nodes(`"n%d":{"kind":"await","name":"n","schema":{},"next":"n"},`)
	texts["parallels"] = nodes(`"n%d":{"kind":"parallel","branches":["n","n0","n1"],"next":"n"},`)
	texts["bad expressions"] = nodes(`"n%d":{"kind":"set","values":{"k":"${ 1 + }"},"next":"n"},`)
	texts["cases"] = fuzztest.Fill(`{"workflows":{"w":{"start":"n","nodes":{"n":{"kind":"branch","else":"end","cases":[`, unit(`{"if":"input.a[%d]>1","next":"end"},`), `{}]}}}}}`)
	texts["expressions"] = fuzztest.Fill(`{"workflows":{"w":{"start":"n","state":{"k":{}},"nodes":{"n":{"kind":"set","next":"end","values":{"k":[`, unit(`"${[input.a,-%d]}",`), `0]}}}}}}`)
	texts["reads and writes"] = fuzztest.Fill(`{"workflows":{"w":{"start":"p","state":{"k":{"merge":"sum"}},"nodes":{"p":{"kind":"parallel","branches":["n","m"],"next":"end"},"m":{"kind":"set","next":"end","values":{"k":1}},"n":{"kind":"branch","else":"end","cases":[`,
		unit(`{"if":"state.k>%d","next":"end"},`), `{"if":"true","next":"end"}]}}}}}`)
	texts["depth"] = []byte(`{"tools":{"t":{"kind":"http","url":"http://h/","input":` + strings.Repeat(`{"a":`, 40) + string(fuzztest.Fill("[", unit("{},"), "{}]")) + strings.Repeat("}", 43))
	for name, text := range texts {
		fileCost.Check(t, len(text), func() { config.Parse(text, o) }) //nolint:errcheck // only what it costs counts
		if t.Failed() {
			t.Fatal(name)
		}
	}
	var env []string
	for i := range 2000 {
		env = append(env, fmt.Sprintf("AGENTD_SERVER_SHUTDOWN_DRAIN_TIME_%d=x", i))
	}
	size := len(strings.Join(env, ""))
	fileCost.Check(t, size, func() { config.Parse([]byte("{}"), config.Options{Env: env}) }) //nolint:errcheck // only what it costs counts
	_, err := config.Parse([]byte("{}"), config.Options{Env: slices.Concat(env, env)})
	if e := fault.Of(err); e == nil || len(e.Issues) != 101 {
		t.Errorf("Parse() with 2000 unknown variables = %.200v, want 100 problems and their number", err)
	}
}
