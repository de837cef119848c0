package ws_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"agentd/ws"
)

// autobahnCase is a case of the Autobahn test suite, version 0.8.2, told in our own words: what its fuzzing peer sends to
// one that echoes, and what must come back. Where the suite would accept less as NON-STRICT, want is what it calls OK.
type autobahnCase struct {
	id    string
	steps []step
	want  []string // messages and pongs in their order, and "wait" where the fuzzing peer waited without being cut off
	codes []int    // that the close frame may have that comes back; nil: the fuzzing peer closes with 1000 and that comes back
}

// step makes what to write, one slice at a time; nil waits until the side under test has done all it can.
type step func(p *peer) [][]byte

// part is a frame to be.
type part struct {
	b0      byte
	payload string
}

// frames writes frames at once.
func frames(parts ...part) step { return chopped(0, parts...) }

// chopped writes frames in pieces of n bytes, 0 being all at once.
func chopped(n int, parts ...part) step {
	return func(p *peer) [][]byte {
		var all []byte
		for _, f := range parts {
			all = append(all, p.frame(f.b0, f.payload)...)
		}
		if n == 0 {
			return [][]byte{all}
		}
		return slices.Collect(slices.Chunk(all, n))
	}
}

// cut writes a piece of a frame: its payload from one byte to another, with the header if it begins there.
func cut(f part, from, to int) step {
	return func(p *peer) [][]byte {
		all := p.frame(f.b0, f.payload)
		head := len(all) - len(f.payload)
		if from == 0 {
			return [][]byte{all[:head+to]}
		}
		return [][]byte{all[head+from : head+to]}
	}
}

// fragments splits a message into frames of n bytes.
func fragments(op byte, payload string, n int) []part {
	var parts []part
	for ; len(payload) > n; op, payload = cont, payload[n:] {
		parts = append(parts, part{op, payload[:n]})
	}
	return append(parts, part{fin | op, payload})
}

func kind(op byte) string { return map[byte]string{text: "text ", bin: "binary "}[op] }

func TestAutobahn(t *testing.T) {
	cases := autobahnCases()
	if len(cases) != 301 {
		t.Fatalf("autobahnCases() = %d cases, want 301", len(cases))
	}
	for _, tc := range cases {
		if testing.Short() && strings.HasPrefix(tc.id, "9.") {
			continue // they move half a gigabyte
		}
		t.Run(tc.id, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { tc.run(t) })
		})
	}
}

func (tc autobahnCase) run(t *testing.T) {
	c, p := opened(t, ws.Options{MaxMessage: 16 << 20})
	var group sync.WaitGroup
	group.Go(func() { echo(c) }) //nolint:errcheck // what the peer sees is what counts
	var mu sync.Mutex
	var got []string
	closed := ""
	group.Go(func() {
		for {
			s, err := p.next()
			mu.Lock()
			switch {
			case err != nil:
				mu.Unlock()
				return
			case strings.HasPrefix(s, "close") && closed == "":
				closed = s
			default:
				got = append(got, s)
			}
			mu.Unlock()
		}
	})
	for _, s := range tc.steps {
		if s == nil {
			synctest.Wait()
			mu.Lock()
			if closed == "" {
				got = append(got, "wait")
			}
			mu.Unlock()
			continue
		}
		p.send(s(p)...)
	}
	synctest.Wait()
	codes := tc.codes
	if codes == nil {
		mu.Lock()
		if closed != "" {
			t.Errorf("closed = %q, before the peer closes", closed)
		}
		mu.Unlock()
		codes = []int{1000}
		p.send(p.frame(fin|shut, closing(1000, "")))
		synctest.Wait()
	}
	p.nc.Close()
	group.Wait()
	if !slices.Equal(got, tc.want) {
		t.Errorf("case %s = %q, want %q", tc.id, got, tc.want)
	}
	if code, reason := 1005, ""; closed != "close" {
		fmt.Sscanf(closed, "close %d %s", &code, &reason) //nolint:errcheck // the code tells
		if !slices.Contains(codes, code) {
			t.Errorf("case %s = %q, want one of %d", tc.id, closed, codes)
		}
	} else if !slices.Contains(codes, 1005) {
		t.Errorf("case %s = %q, want one of %d", tc.id, closed, codes)
	}
}

const (
	hello = "Hello, world!"
	kosme = "\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5"
)

func autobahnCases() []autobahnCase {
	return slices.Concat(autobahnFraming(), autobahnFragmentation(), autobahnText(), autobahnClosing(), autobahnLimits())
}

// autobahnFraming is sections 1 to 4.
func autobahnFraming() []autobahnCase {
	var cases []autobahnCase
	add := func(id string, steps []step, want []string, codes ...int) {
		cases = append(cases, autobahnCase{id, steps, want, codes})
	}
	for section, op := range map[int]byte{1: text, 2: bin} {
		fill := map[byte]string{text: "*", bin: "\xfe"}[op]
		for i, size := range []int{0, 125, 126, 127, 128, 65535, 65536, 65536} {
			chop := 0
			if i == 7 {
				chop = 997
			}
			payload := strings.Repeat(fill, size)
			add(fmt.Sprintf("1.%d.%d", section, i+1), []step{chopped(chop, part{fin | op, payload})}, []string{kind(op) + short(payload)})
		}
	}

	const odd = "\x00\xff\xfe\xfd\xfc\xfb\x00\xff"
	full := strings.Repeat("\xfe", 125)
	add("2.1", []step{frames(part{fin | ping, ""})}, []string{"pong "})
	add("2.2", []step{frames(part{fin | ping, hello})}, []string{"pong " + hello})
	add("2.3", []step{frames(part{fin | ping, odd})}, []string{"pong " + odd})
	add("2.4", []step{frames(part{fin | ping, full})}, []string{"pong " + full})
	add("2.5", []step{frames(part{fin | ping, full + "\xfe"})}, nil, 1002)
	add("2.6", []step{chopped(1, part{fin | ping, full})}, []string{"pong " + full})
	add("2.7", []step{frames(part{fin | pong, ""})}, nil)
	add("2.8", []step{frames(part{fin | pong, "unsolicited pong payload"})}, nil)
	add("2.9", []step{frames(part{fin | pong, "unsolicited"}, part{fin | ping, "ping payload"})}, []string{"pong ping payload"})
	var pings []part
	var pongs []string
	for i := range 10 {
		pings = append(pings, part{fin | ping, fmt.Sprint("payload-", i)})
		pongs = append(pongs, fmt.Sprint("pong payload-", i))
	}
	add("2.10", []step{frames(pings...)}, pongs)
	add("2.11", []step{chopped(1, pings...)}, pongs)

	greeting, echoed := part{fin | text, hello}, []string{"text " + hello}
	rsv := func(n byte, f part) part { return part{f.b0 | n<<4, f.payload} }
	bye := part{fin | ping, ""}
	add("3.1", []step{frames(rsv(1, greeting))}, nil, 1002)
	add("3.2", []step{frames(greeting, rsv(2, greeting), bye)}, echoed, 1002)
	add("3.3", []step{frames(greeting), frames(rsv(3, greeting)), frames(bye)}, echoed, 1002)
	add("3.4", []step{chopped(1, greeting, rsv(4, greeting), bye)}, echoed, 1002)
	add("3.5", []step{frames(rsv(5, part{fin | bin, odd}))}, nil, 1002)
	add("3.6", []step{frames(rsv(6, part{fin | ping, hello}))}, nil, 1002)
	add("3.7", []step{frames(rsv(7, part{fin | shut, closing(1000, "")}))}, nil, 1002)

	for section, first := range map[int]byte{1: 3, 2: 11} {
		id := func(i int) string { return fmt.Sprintf("4.%d.%d", section, i) }
		add(id(1), []step{frames(part{fin | first, ""})}, nil, 1002)
		add(id(2), []step{frames(part{fin | first + 1, "reserved opcode"})}, nil, 1002)
		add(id(3), []step{frames(greeting), frames(part{fin | first + 2, ""}), frames(bye)}, echoed, 1002)
		add(id(4), []step{frames(greeting), frames(part{fin | first + 3, hello}), frames(bye)}, echoed, 1002)
		add(id(5), []step{chopped(1, greeting, part{fin | first + 4, hello}, bye)}, echoed, 1002)
	}
	return cases
}

// autobahnFragmentation is section 5.
func autobahnFragmentation() []autobahnCase {
	var cases []autobahnCase
	add := func(id string, steps []step, want []string, codes ...int) {
		cases = append(cases, autobahnCase{id, steps, want, codes})
	}
	one, two := part{text, "fragment1"}, part{fin | cont, "fragment2"}
	whole := []string{"text fragment1fragment2"}
	add("5.1", []step{frames(part{ping, "fragment1"}, two)}, nil, 1002)
	add("5.2", []step{frames(part{pong, "fragment1"}, two)}, nil, 1002)
	add("5.3", []step{frames(one, two)}, whole)
	add("5.4", []step{frames(one), frames(two)}, whole)
	add("5.5", []step{chopped(1, one, two)}, whole)
	between, ponged := part{fin | ping, "ping payload"}, append([]string{"pong ping payload"}, whole...)
	add("5.6", []step{frames(one, between, two)}, ponged)
	add("5.7", []step{frames(one), frames(between), frames(two)}, ponged)
	add("5.8", []step{chopped(1, one, between, two)}, ponged)
	stray, greeting := "non-continuation payload", part{fin | text, hello}
	for i, b0 := range []byte{fin | cont, cont} {
		add(fmt.Sprint("5.", 9+3*i), []step{frames(part{b0, stray}, greeting)}, nil, 1002)
		add(fmt.Sprint("5.", 10+3*i), []step{frames(part{b0, stray}), frames(greeting)}, nil, 1002)
		add(fmt.Sprint("5.", 11+3*i), []step{chopped(1, part{b0, stray}, greeting)}, nil, 1002)
	}
	add("5.15", []step{frames(one, two, part{cont, "fragment3"}, part{fin | text, "fragment4"})}, whole, 1002)
	twice := []part{{cont, "fragment1"}, {text, "fragment2"}, {fin | cont, "fragment3"}}
	add("5.16", []step{frames(append(twice, twice...)...)}, nil, 1002)
	twice[0].b0 |= fin
	add("5.17", []step{frames(append(twice, twice...)...)}, nil, 1002)
	add("5.18", []step{frames(one, part{fin | text, "fragment2"})}, nil, 1002)
	first := []part{{text, "fragment1"}, {cont, "fragment2"}, {fin | ping, "pongme 1!"}}
	then := []part{{cont, "fragment3"}, {cont, "fragment4"}, {fin | ping, "pongme 2!"}, {fin | cont, "fragment5"}}
	want := []string{"pong pongme 1!", "wait", "pong pongme 2!", "text fragment1fragment2fragment3fragment4fragment5"}
	add("5.19", []step{frames(first...), nil, frames(then...)}, want)
	var each []step
	for _, f := range first {
		each = append(each, frames(f))
	}
	each = append(each, nil)
	for _, f := range then {
		each = append(each, frames(f))
	}
	add("5.20", each, want)
	return cases
}

// autobahnText is section 6.
func autobahnText() []autobahnCase {
	var cases []autobahnCase
	add := func(id string, steps []step, want []string, codes ...int) {
		cases = append(cases, autobahnCase{id, steps, want, codes})
	}
	add("6.1.1", []step{frames(part{fin | text, ""})}, []string{"text "})
	add("6.1.2", []step{frames(part{text, ""}, part{cont, ""}, part{fin | cont, ""})}, []string{"text "})
	add("6.1.3", []step{frames(part{text, ""}, part{cont, "middle frame payload"}, part{fin | cont, ""})},
		[]string{"text middle frame payload"})
	const mixed = "Hello-µ@ßöäüàá-UTF-8!!"
	add("6.2.1", []step{frames(part{fin | text, mixed})}, []string{"text " + mixed})
	add("6.2.2", []step{frames(part{text, mixed[:12]}, part{fin | cont, mixed[12:]})}, []string{"text " + mixed})
	add("6.2.3", []step{frames(fragments(text, mixed, 1)...)}, []string{"text " + mixed})
	add("6.2.4", []step{frames(fragments(text, kosme, 1)...)}, []string{"text " + kosme})
	const surrogate = kosme + "\xed\xa0\x80edited"
	add("6.3.1", []step{frames(part{fin | text, surrogate})}, nil, 1007)
	add("6.3.2", []step{frames(fragments(text, surrogate, 1)...)}, nil, 1007)

	// The connection has to fail before the last step, which would wait as well.
	const beyond = kosme + "\xf4\x90\x80\x80" + "edited"
	failFast := func(id string, steps ...step) {
		add(id, []step{steps[0], nil, steps[1], nil, steps[2], nil}, []string{"wait"}, 1007)
	}
	failFast("6.4.1", frames(part{text, beyond[:11]}), frames(part{cont, beyond[11:15]}), frames(part{fin | cont, beyond[15:]}))
	failFast("6.4.2", frames(part{text, beyond[:12]}), frames(part{cont, beyond[12:13]}), frames(part{fin | cont, beyond[13:]}))
	all := part{fin | text, beyond}
	failFast("6.4.3", cut(all, 0, 11), cut(all, 11, 15), cut(all, 15, len(beyond)))
	failFast("6.4.4", cut(all, 0, 12), cut(all, 12, 13), cut(all, 13, len(beyond)))

	for i, group := range utf8Groups() {
		for j, s := range group {
			id, steps := fmt.Sprintf("6.%d.%d", 5+i, j+1), []step{frames(part{fin | text, strings.TrimPrefix(s, "!")})}
			if strings.HasPrefix(s, "!") {
				add(id, steps, nil, 1007)
			} else {
				add(id, steps, []string{"text " + s})
			}
		}
	}
	return cases
}

// utf8Groups are the sequences of cases 6.5 to 6.23; a ! stands before those that are not UTF-8. They follow the decoder
// stress test of Markus Kuhn.
func utf8Groups() [][]string {
	var prefixes, lonely, nonCharacters []string
	for i := range len(kosme) {
		s := kosme[:i+1]
		if strings.ToValidUTF8(s, "") != s {
			s = "!" + s
		}
		prefixes = append(prefixes, s)
	}
	for _, span := range [][2]byte{{0xc0, 0xdf}, {0xe0, 0xef}, {0xf0, 0xf7}, {0xf8, 0xfb}, {0xfc, 0xfd}} {
		s := "!"
		for b := span[0]; b < span[1]; b++ {
			s += string([]byte{b, ' '})
		}
		lonely = append(lonely, s)
	}
	continuations := "!"
	for b := byte(0x80); b < 0xbf; b++ {
		continuations += string([]byte{b})
	}
	nonCharacters = []string{"\xef\xbf\xbe", "\xef\xbf\xbf"}
	for r := rune(0x1ffff); r <= 0x10ffff; r += 0x10000 {
		nonCharacters = append(nonCharacters, string(r-1), string(r))
	}
	cutOff := []string{"!\xc0", "!\xe0\x80", "!\xf0\x80\x80", "!\xf8\x80\x80\x80", "!\xfc\x80\x80\x80\x80",
		"!\xdf", "!\xef\xbf", "!\xf7\xbf\xbf", "!\xfb\xbf\xbf\xbf", "!\xfd\xbf\xbf\xbf\xbf"}
	return [][]string{
		{"hello\x24world", "hello\xC2\xA2world", "hello\xE2\x82\xACworld", "hello\xF0\xA4\xAD\xA2world", kosme},
		prefixes,
		{"\x00", "\xc2\x80", "\xe0\xa0\x80", "\xf0\x90\x80\x80"},
		{"!\xf8\x88\x80\x80\x80", "!\xfc\x84\x80\x80\x80\x80"},
		{"\x7f", "\xdf\xbf", "\xef\xbf\xbf", "\xf4\x8f\xbf\xbf"},
		{"!\xf7\xbf\xbf\xbf", "!\xfb\xbf\xbf\xbf\xbf", "!\xfd\xbf\xbf\xbf\xbf\xbf"},
		{"\xed\x9f\xbf", "\xee\x80\x80", "\xef\xbf\xbd", "\xf4\x8f\xbf\xbf", "!\xf4\x90\x80\x80"},
		{"!\x80", "!\xbf", "!\x80\xbf", "!\x80\xbf\x80", "!\x80\xbf\x80\xbf", "!\x80\xbf\x80\xbf\x80", "!\x80\xbf\x80\xbf\x80\xbf", continuations},
		lonely,
		cutOff,
		{"!" + strings.ReplaceAll(strings.Join(cutOff, ""), "!", "")},
		{"!\xfe", "!\xff", "!\xfe\xfe\xff\xff"},
		{"!\xc0\xaf", "!\xe0\x80\xaf", "!\xf0\x80\x80\xaf", "!\xf8\x80\x80\x80\xaf", "!\xfc\x80\x80\x80\x80\xaf"},
		{"!\xc1\xbf", "!\xe0\x9f\xbf", "!\xf0\x8f\xbf\xbf", "!\xf8\x87\xbf\xbf\xbf", "!\xfc\x83\xbf\xbf\xbf\xbf"},
		{"!\xc0\x80", "!\xe0\x80\x80", "!\xf0\x80\x80\x80", "!\xf8\x80\x80\x80\x80", "!\xfc\x80\x80\x80\x80\x80"},
		{"!\xed\xa0\x80", "!\xed\xad\xbf", "!\xed\xae\x80", "!\xed\xaf\xbf", "!\xed\xb0\x80", "!\xed\xbe\x80", "!\xed\xbf\xbf"},
		{"!\xed\xa0\x80\xed\xb0\x80", "!\xed\xa0\x80\xed\xbf\xbf", "!\xed\xad\xbf\xed\xb0\x80", "!\xed\xad\xbf\xed\xbf\xbf",
			"!\xed\xae\x80\xed\xb0\x80", "!\xed\xae\x80\xed\xbf\xbf", "!\xed\xaf\xbf\xed\xb0\x80", "!\xed\xaf\xbf\xed\xbf\xbf"},
		nonCharacters,
		{"\xef\xbf\xb9", "\xef\xbf\xba", "\xef\xbf\xbb", "\xef\xbf\xbc", "\xef\xbf\xbd", "\xef\xbf\xbe", "\xef\xbf\xbf"},
	}
}

// autobahnClosing is section 7.
func autobahnClosing() []autobahnCase {
	var cases []autobahnCase
	add := func(id string, steps []step, want []string, codes ...int) {
		cases = append(cases, autobahnCase{id, steps, want, codes})
	}
	greeting, normal := part{fin | text, "Hello World!"}, part{fin | shut, closing(1000, "")}
	echoed := []string{"text Hello World!"}
	add("7.1.1", []step{frames(greeting), frames(normal)}, echoed, 1000)
	add("7.1.2", []step{frames(normal, normal)}, nil, 1000)
	add("7.1.3", []step{frames(normal, part{fin | ping, ""})}, nil, 1000)
	add("7.1.4", []step{frames(normal, greeting)}, nil, 1000)
	add("7.1.5", []step{frames(part{text, "fragment1"}, normal, part{fin | cont, "fragment2"})}, nil, 1000)
	long := strings.Repeat("BAsd7&jh23", 256<<10/10+1)[:256<<10]
	add("7.1.6", []step{frames(part{fin | text, long}, greeting, normal, part{fin | ping, ""})}, append([]string{"text " + short(long)}, echoed...), 1000)
	add("7.3.1", []step{frames(part{fin | shut, ""})}, nil, 1000, 1005)
	add("7.3.2", []step{frames(part{fin | shut, "a"})}, nil, 1002)
	add("7.3.3", []step{frames(normal)}, nil, 1000)
	add("7.3.4", []step{frames(part{fin | shut, closing(1000, "Hello World!")})}, nil, 1000)
	add("7.3.5", []step{frames(part{fin | shut, closing(1000, strings.Repeat("*", 123))})}, nil, 1000)
	add("7.3.6", []step{frames(part{fin | shut, closing(1000, strings.Repeat("*", 124))})}, nil, 1002)
	add("7.5.1", []step{frames(part{fin | shut, closing(1000, kosme+"\xed\xa0\x80edited")})}, nil, 1002, 1007)
	for i, code := range []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999} {
		add(fmt.Sprint("7.7.", i+1), []step{frames(part{fin | shut, closing(uint16(code), "")})}, nil, 1000, code)
	}
	for i, code := range []int{0, 999, 1004, 1005, 1006, 1016, 1100, 2000, 2999} {
		add(fmt.Sprint("7.9.", i+1), []step{frames(part{fin | shut, closing(uint16(code), "")})}, nil, 1002)
	}
	add("7.13.1", []step{frames(part{fin | shut, closing(5000, "")})}, nil, 1000, 1002, 5000)
	add("7.13.2", []step{frames(part{fin | shut, closing(65535, "")})}, nil, 1000, 1002)
	return cases
}

// autobahnLimits is sections 9 and 10. Its cases are large.
func autobahnLimits() []autobahnCase {
	var cases []autobahnCase
	const M = 1 << 20
	for i, op := range []byte{text, bin} {
		fill := map[byte]string{text: "BAsd7&jh23", bin: "\x00\xfe\x23\xfa\xf0"}[op]
		payload := func(n int) string { return strings.Repeat(fill, n/len(fill)+1)[:n] }
		add := func(section, j int, s step, want ...string) {
			cases = append(cases, autobahnCase{id: fmt.Sprintf("9.%d.%d", section+i, j+1), steps: []step{s}, want: want})
		}
		for j, n := range []int{M / 16, M / 4, M, 4 * M, 8 * M, 16 * M} {
			add(1, j, frames(part{fin | op, payload(n)}), kind(op)+short(payload(n)))
		}
		for j, n := range []int{64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, M, 4 * M} {
			add(3, j, frames(fragments(op, payload(4*M), n)...), kind(op)+short(payload(4*M)))
		}
		for j, n := range []int{64, 128, 256, 512, 1024, 2048} {
			add(5, j, chopped(n, part{fin | op, payload(M)}), kind(op)+short(payload(M)))
		}
		for j, n := range []int{0, 16, 64, 256, 1024, 4096} {
			p := strings.Repeat(map[byte]string{text: "*", bin: "\xfe"}[op], n)
			all := func(peer *peer) [][]byte { return slices.Repeat([][]byte{peer.frame(fin|op, p)}, 1000) }
			add(7, j, all, slices.Repeat([]string{kind(op) + short(p)}, 1000)...)
		}
	}
	payload := strings.Repeat("*", 65536)
	return append(cases, autobahnCase{
		id: "10.1.1", steps: []step{frames(fragments(text, payload, 1300)...)}, want: []string{"text " + short(payload)},
	})
}
