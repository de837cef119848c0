package ws_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"agentd/ws"
)

// TestBrokenRules sends first bytes of frames that no peer may send. The rest never comes, and is not waited for.
func TestBrokenRules(t *testing.T) {
	tests := []struct {
		name string
		in   string
		code ws.Code
	}{
		{"rsv1", "\xC1\x80", ws.CodeProtocol},
		{"rsv2", "\xA1\x80", ws.CodeProtocol},
		{"rsv3", "\x91\x80", ws.CodeProtocol},
		{"rsv1", "\xC1\x80", ws.CodeProtocol},
		{"rsv2", "\xA1\x80", ws.CodeProtocol},
		{"rsv3", "\x91\x80", ws.CodeProtocol},
		{"opcode 3", "\x83\x80", ws.CodeProtocol},
		{"opcode 7", "\x87\x80", ws.CodeProtocol},
		{"opcode 11", "\x8B\x80", ws.CodeProtocol},
		{"opcode 15", "\x8F\x80", ws.CodeProtocol},
		{"client without mask", "\x81\x05", ws.CodeProtocol},
		{"client's empty frame without mask", "\x81\x00", ws.CodeProtocol},
		{"client's ping without mask", "\x89\x00", ws.CodeProtocol},
		{"ping of 126", "\x89\xFE", ws.CodeProtocol},
		{"pong of 127", "\x8A\xFF", ws.CodeProtocol},
		{"close of 126", "\x88\xFE", ws.CodeProtocol},
		{"ping in fragments", "\x09\x80", ws.CodeProtocol},
		{"pong in fragments", "\x0A\x80", ws.CodeProtocol},
		{"close in fragments", "\x08\x80", ws.CodeProtocol},
		{"125 in 16 bits", "\x82\xFE\x00\x7DKEYS", ws.CodeProtocol},
		{"0 in 16 bits", "\x82\xFE\x00\x00KEYS", ws.CodeProtocol},
		{"65535 in 64 bits", "\x82\xFF\x00\x00\x00\x00\x00\x00\xFF\xFFKEYS", ws.CodeProtocol},
		{"0 in 64 bits", "\x82\xFF\x00\x00\x00\x00\x00\x00\x00\x00KEYS", ws.CodeProtocol},
		{"2^63", "\x82\xFF\x80\x00\x00\x00\x00\x00\x00\x00KEYS", ws.CodeProtocol},
		{"2^64-1", "\x82\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFFKEYS", ws.CodeProtocol},
		{"2^63-1", "\x82\xFF\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFFKEYS", ws.CodeTooBig},
		{"continuation of nothing", "\x80\x80KEYS", ws.CodeProtocol},
		{"first of nothing", "\x00\x80KEYS", ws.CodeProtocol},
		{"text inside text", "\x01\x80KEYS\x81\x80KEYS", ws.CodeProtocol},
		{"binary inside text", "\x01\x80KEYS\x02\x80KEYS", ws.CodeProtocol},
		{"continuation after the end", "\x01\x80KEYS\x80\x80KEYS\x80\x80KEYS", ws.CodeProtocol},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := opened(t, ws.Options{})
				failed := make(chan error)
				go func() {
					var err error
					for err == nil {
						_, _, err = c.Read()
					}
					failed <- err
				}()
				go p.send([]byte(tc.in))
				got, err := p.next()
				if code := fmt.Sprint("close ", tc.code); err != nil || !strings.HasPrefix(got, code+" ") {
					t.Errorf("answer to % x = %q, %v, want %s", tc.in, got, err, code)
				}
				err = <-failed
				broken, ok := errors.AsType[*ws.CloseError](err)
				if !ok || !broken.Refused || broken.Code != tc.code || ws.CodeOf(err) != tc.code {
					t.Errorf("Read() = %v, want a refusal with code %d", err, tc.code)
				}
				if _, _, again := c.Read(); again != err {
					t.Errorf("Read() = %v, want %v again", again, err)
				}
				if again := c.Write(ws.Text, nil); again != err {
					t.Errorf("Write() = %v, want %v", again, err)
				}
				if again := c.Close(ws.CodeNormal, ""); again != err {
					t.Errorf("Close() = %v, want %v", again, err)
				}
			})
		})
	}
}

// TestLengths reads and writes messages at the boundaries of what a header can say.
func TestLengths(t *testing.T) {
	headers := map[int]string{
		0: "\x82\x00", 1: "\x82\x01", 125: "\x82\x7D", 126: "\x82\x7E\x00\x7E", 127: "\x82\x7E\x00\x7F",
		65535: "\x82\x7E\xFF\xFF", 65536: "\x82\x7F\x00\x00\x00\x00\x00\x01\x00\x00",
	}
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, ws.Options{MaxMessage: 65536})
		go echo(c) //nolint:errcheck // what comes back tells
		for n, header := range headers {
			payload := strings.Repeat("\xA5", n)
			go p.send(p.frame(fin|bin, payload))
			got := make([]byte, len(header))
			if _, err := io.ReadFull(p.br, got); err != nil {
				t.Fatal(err)
			}
			if string(got) != header {
				t.Errorf("header of %d bytes = % x, want % x", n, got, header)
			}
			p.br = newReader(got, p.br)
			p.want(t, "binary "+short(payload))
		}
		go p.send(p.frame(fin|bin, strings.Repeat("x", 65537)))
		p.want(t, "close 1009 message longer than 65536 bytes")
	})
}

// TestLimits exceeds what a message may be, at once and in parts.
func TestLimits(t *testing.T) {
	tests := []struct {
		name   string
		frames []part
		want   []string
	}{
		{"the longest", []part{{fin | text, "12345678"}}, []string{"text 12345678"}},
		{"the longest, in parts", []part{{text, "1234"}, {cont, "5678"}, {fin | cont, ""}}, []string{"text 12345678"}},
		{"longer", []part{{fin | text, "123456789"}}, []string{"close 1009 message longer than 8 bytes"}},
		{"longer, in parts", []part{{text, "1234"}, {fin | cont, "56789"}}, []string{"close 1009 message longer than 8 bytes"}},
		{"after another", []part{{fin | bin, "1234"}, {bin, "12345678"}, {cont, "9"}}, []string{"binary 1234", "close 1009 message longer than 8 bytes"}},
		{"empty frames", append([]part{{text, ""}}, slices.Repeat([]part{{cont, ""}}, 1<<17)...), []string{"close 1008 message of more than 131072 frames"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := opened(t, ws.Options{MaxMessage: 8})
				go echo(c) //nolint:errcheck // what comes back tells
				go p.send(frames(tc.frames...)(p)...)
				p.want(t, tc.want...)
			})
		})
	}
}

// TestInterleaved sends control frames between the fragments of a message.
func TestInterleaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, ws.Options{})
		go echo(c) //nolint:errcheck // what comes back tells
		go p.send(chopped(5, part{text, "one "}, part{fin | ping, "1"}, part{cont, "two "}, part{fin | pong, "?"},
			part{fin | ping, "2"}, part{cont, ""}, part{fin | ping, strings.Repeat("3", 125)}, part{fin | cont, "three"},
			part{fin | bin, "next"})(p)...)
		p.want(t, "pong 1", "pong 2", "pong "+strings.Repeat("3", 125), "text one two three", "binary next")
	})
}

// TestByteByByte delivers all kinds of frames one byte at a time.
func TestByteByByte(t *testing.T) {
	long := strings.Repeat("µ", 1000)
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, ws.Options{})
		go echo(c) //nolint:errcheck // what comes back tells
		go p.send(chopped(1, part{fin | text, "first"}, part{fin | ping, "x"}, part{text, long[:777]},
			part{fin | cont, long[777:]}, part{fin | bin, ""}, part{fin | shut, closing(4321, "bye")})(p)...)
		p.want(t, "text first", "pong x", "text "+short(long), "binary ", "close 4321")
	})
}

// TestInvalidText puts a wrong byte at every place of a text, cut in two at every place.
func TestInvalidText(t *testing.T) {
	const sample = "a$¢€𤭢z"
	for i := range len(sample) {
		for j := range len(sample) + 1 {
			for _, wrong := range []byte{0x80, 0xC0, 0xED, 0xF5, 0xFF, 'x'} {
				s := sample[:i] + string([]byte{wrong}) + sample[i+1:]
				for _, b := range [][]byte{
					slices.Concat((&peer{}).frame(text, s[:j]), (&peer{}).frame(fin|cont, s[j:])),
					(&peer{}).frame(fin|text, s),
				} {
					c := scripted(t, ws.Options{}, b)
					_, p, err := c.Read()
					switch {
					case utf8.ValidString(s) && (err != nil || string(p) != s):
						t.Fatalf("Read() of %q = %q, %v, want it", s, p, err)
					case !utf8.ValidString(s) && ws.CodeOf(err) != ws.CodeInvalidPayload:
						t.Fatalf("Read() of %q = %q, %v, want code 1007", s, p, err)
					}
				}
			}
		}
	}
}

// TestInvalidTextEarly stops at the first byte that cannot be right, of frames that announce more.
func TestInvalidTextEarly(t *testing.T) {
	for _, s := range []string{"ok\x80", "\xC1", "\xE0\x9F", "\xED\xA0", "\xF0\x8F", "\xF4\x90", "\xF5", "\xE2\x82x", "\xF0\xA4\xADx", "\xC2\xC2"} {
		for _, cut := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				c, p := opened(t, ws.Options{})
				go echo(c) //nolint:errcheck // what comes back tells
				b := p.frame(text, s+"the rest")
				b = b[:len(b)-len("the rest")]
				size := len(b)
				if cut {
					size = 1
				}
				go p.send(slices.Collect(slices.Chunk(b, size))...)
				p.want(t, "close 1007 text that is not UTF-8")
			})
		}
	}
}

// TestPayloadLives reads messages that share a buffer, and keeps each until the next.
func TestPayloadLives(t *testing.T) {
	var in []byte
	var want []string
	p := &peer{}
	for n := range 2000 {
		want = append(want, strings.Repeat(string(rune('a'+n%26)), n%700))
		in = append(in, p.frame(fin|bin, want[n])...)
	}
	for _, size := range []int{1, 7, 100, 511, 512, 513, 5000, len(in)} {
		c := scripted(t, ws.Options{}, slices.Collect(slices.Chunk(in, size))...)
		for i := range want {
			if _, p, err := c.Read(); err != nil || string(p) != want[i] {
				t.Fatalf("Read() of message %d in pieces of %d = %q, %v, want %q", i, size, p, err, want[i])
			}
		}
		if _, _, err := c.Read(); !errors.Is(err, io.ErrUnexpectedEOF) || ws.CodeOf(err) != ws.CodeAbnormal {
			t.Errorf("Read() at the end = %v, want io.ErrUnexpectedEOF, code 1006", err)
		}
	}
}

// TestCallersBytes writes, which must not change the caller's bytes.
func TestCallersBytes(t *testing.T) {
	c := scripted(t, ws.Options{})
	p := bytes.Repeat([]byte("keep"), 30_000)
	kept := bytes.Clone(p)
	if err := c.Write(ws.Binary, p); err != nil || !bytes.Equal(p, kept) {
		t.Errorf("Write() = %v, and changed the bytes: %v", err, !bytes.Equal(p, kept))
	}
}
