package ws_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"agentd/server/fuzztest"
	"agentd/ws"
)

// fuzzMax is the longest message in these tests.
const fuzzMax = 1 << 12

// oracle tells what a receiver has to make of bytes: the messages, and the code that it all ends with. It has all of the
// bytes at once, so it is a plain account of RFC 6455 that does without the states of the real thing.
func oracle(b []byte) (messages []string, end ws.Code) {
	var open byte // type of the message that is being read
	var text []byte
	for {
		if len(b) < 2 {
			return messages, ws.CodeAbnormal
		}
		last, op, masked, n := b[0]&0x80 != 0, b[0]&15, b[1]&0x80 != 0, uint64(b[1]&0x7F)
		control := op >= 8
		if b[0]&0x70 != 0 || op > 2 && op < 8 || op > 10 || control && (!last || n > 125) || !masked {
			return messages, ws.CodeProtocol
		}
		head := 2
		if n >= 126 {
			head += map[uint64]int{126: 2, 127: 8}[n]
		}
		keyAt := head
		if masked {
			head += 4
		}
		if len(b) < head {
			return messages, ws.CodeAbnormal
		}
		switch n {
		case 126:
			if n = uint64(binary.BigEndian.Uint16(b[2:])); n < 126 {
				return messages, ws.CodeProtocol
			}
		case 127:
			if n = binary.BigEndian.Uint64(b[2:]); n < 65536 || n >= 1<<63 {
				return messages, ws.CodeProtocol
			}
		}
		if !control {
			switch {
			case (op == 0) == (open == 0):
				return messages, ws.CodeProtocol
			case n > fuzzMax || uint64(len(text))+n > fuzzMax:
				return messages, ws.CodeTooBig
			case op != 0:
				open = op
			}
		}
		payload := bytes.Clone(b[head:min(head+int(n), len(b))])
		if masked {
			for i := range payload {
				payload[i] ^= b[keyAt+i%4]
			}
		}
		whole := uint64(len(payload)) == n
		if !control {
			text = append(text, payload...)
			if open == 1 && !prefix(text) || whole && last && open == 1 && !utf8.Valid(text) {
				return messages, ws.CodeInvalidPayload
			}
		}
		if !whole {
			return messages, ws.CodeAbnormal
		}
		b = b[head+int(n):]
		switch {
		case !control && last:
			messages = append(messages, string(rune('0'+open))+string(text))
			open, text = 0, nil
		case op == 8:
			return messages, oracleClose(payload)
		}
	}
}

// prefix reports whether b is UTF-8 but for a code point that is not complete.
func prefix(b []byte) bool {
	for len(b) > 0 {
		if _, n := utf8.DecodeRune(b); n > 1 || b[0] < 0x80 {
			b = b[n:]
			continue
		}
		for _, end := range []string{"\x80", "\xBF", "\x80\x80", "\xBF\xBF", "\x80\x80\x80", "\xBF\xBF\xBF"} {
			if len(b) < 4 && utf8.Valid(append(bytes.Clone(b), end...)) {
				return true
			}
		}
		return false
	}
	return true
}

func oracleClose(p []byte) ws.Code {
	if len(p) == 0 {
		return ws.CodeNone
	}
	if len(p) == 1 {
		return ws.CodeProtocol
	}
	switch code := binary.BigEndian.Uint16(p); {
	case code < 1000 || code >= 1004 && code <= 1006 || code >= 1015 && code < 3000 || code >= 5000:
		return ws.CodeProtocol
	case !utf8.Valid(p[2:]):
		return ws.CodeInvalidPayload
	default:
		return ws.Code(code)
	}
}

// FuzzRead compares Read with the oracle, for bytes that come in pieces of any size.
func FuzzRead(f *testing.F) {
	p := &peer{}
	all := slices.Concat(p.frame(fin|text, "hello €"), p.frame(text, "\xe2\x82"), p.frame(fin|ping, "x"), p.frame(fin|cont, "\xac"),
		p.frame(fin|bin, strings.Repeat("\xff", 130)), p.frame(fin|pong, ""), p.frame(bin, ""), p.frame(fin|cont, "end"))
	f.Add(all, 1)
	f.Add(all, 600)
	f.Add(append(all, p.frame(fin|shut, closing(1000, "bye"))...), 3)
	f.Add(append(all, p.frame(fin|shut, "x")...), 512)
	f.Add(append(all, p.frame(fin|text, "\xf4\x90")[:5]...), 7)
	f.Add(p.frame(fin|bin, strings.Repeat("x", fuzzMax+1)), 5000)
	f.Add(p.frame(fin|bin, strings.Repeat("x", fuzzMax)), 1000)
	f.Add(p.header(fin|bin, 1<<40), 1)
	f.Fuzz(func(t *testing.T, in []byte, piece int) {
		want, code := oracle(in)
		c, s := scriptedBoth(t, ws.Options{MaxMessage: fuzzMax}, slices.Collect(slices.Chunk(in, max(piece, 1)))...)
		var got []string
		var err error
		for err == nil {
			var typ ws.Type
			var p []byte
			if typ, p, err = c.Read(); err == nil {
				got = append(got, string(rune('0'+typ))+string(p))
			}
		}
		if !slices.Equal(got, want) || ws.CodeOf(err) != code {
			t.Errorf("Read() = %q, %v, want %q, code %d", got, err, want, code)
		}
		if code == ws.CodeAbnormal && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("Read() = %v, want io.ErrUnexpectedEOF", err)
		}
		p := &peer{br: newReader(s.out.Bytes())}
		last := ""
		for {
			frame, err := p.next()
			if err == io.EOF {
				break
			}
			if err != nil || !strings.HasPrefix(frame, "pong ") && !strings.HasPrefix(frame, "close") || strings.HasPrefix(last, "close") {
				t.Fatalf("answer = %q, %v after %q", frame, err, last)
			}
			last = frame
		}
		if strings.HasPrefix(last, "close") != (code != ws.CodeAbnormal) {
			t.Errorf("last answer = %q, with code %d", last, code)
		}
	})
}

// FuzzRoundTrip sends a message in any fragments with pings between them, and has it written back.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("hello"), []byte{1, 0, 3}, 5)
	f.Add([]byte(strings.Repeat("long", 5000)), []byte{255, 0, 0, 200, 7}, 700)
	f.Add([]byte(nil), []byte(nil), 1)
	f.Fuzz(func(t *testing.T, message, cuts []byte, piece int) {
		op := byte(bin)
		if utf8.Valid(message) {
			op = text
		}
		p := &peer{}
		var in []byte
		rest, b0, pings := string(message), op, 0
		for _, n := range cuts {
			n := min(int(n), len(rest))
			in = append(in, p.frame(b0, rest[:n])...)
			in = append(in, p.frame(fin|ping, "?")...)
			rest, b0 = rest[n:], cont
			pings++
		}
		in = append(in, p.frame(fin|b0, rest)...)
		o := ws.Options{MaxMessage: max(len(message), 1)}
		c, s := scriptedBoth(t, o, slices.Collect(slices.Chunk(in, max(piece, 1)))...)
		typ, got, err := c.Read()
		if err != nil || byte(typ) != op || !bytes.Equal(got, message) {
			t.Fatalf("Read() = %v %q, %v, want %q", typ, got, err, message)
		}
		s.out.Reset() // of pongs
		if err := c.Write(typ, got); err != nil {
			t.Fatalf("Write() = %v", err)
		}
		p.br = newReader(s.out.Bytes())
		p.want(t, kind(op)+short(message))
	})
}

// FuzzHandshake checks that whatever passes CheckHandshake is accepted, and that the protocols that it returns pass again.
func FuzzHandshake(f *testing.F) {
	f.Add("websocket", "Upgrade", "13", "dGhlIHNhbXBsZSBub25jZQ==", "svc.protocol.v1, ticket.x", "permessage-deflate; a=\"b\"")
	f.Add("websocket, TLS/1.0, /", "Upgrade", "13", "dGhlIHNhbXBsZSBub25jZQ==", "a", "")
	f.Add("h2c,WebSocket", "keep-alive, upgrade", "13", "AAAAAAAAAAAAAAAAAAAAAA==", "a", "")
	f.Add("", "", "", "", ",,", ";")
	f.Fuzz(func(t *testing.T, upgrade, connection, version, key, protocols, extensions string) {
		r := handshake()
		r.Header = http.Header{"Upgrade": {upgrade}, "Connection": {connection}, "Sec-Websocket-Version": {version},
			"Sec-Websocket-Key": {key}, "Sec-Websocket-Protocol": {protocols}, "Sec-Websocket-Extensions": {extensions}}
		fuzztest.Cost{PerByte: 64}.Check(t, len(protocols)+len(extensions), func() {
			ws.CheckHandshake(r) //nolint:errcheck // it is looked at below
		})
		offered, err := ws.CheckHandshake(r)
		if err == nil {
			r := r.Clone(r.Context())
			r.Header.Set("Sec-WebSocket-Protocol", strings.Join(offered, ","))
			if again, err := ws.CheckHandshake(r); err != nil || !slices.Equal(again, offered) || len(offered) == 0 {
				t.Errorf("CheckHandshake() = %q, and of these %q, %v", offered, again, err)
			}
		}
		o := ws.Options{}
		if len(offered) > 0 {
			o.Protocol = offered[len(offered)-1]
		}
		if bad, ok := errors.AsType[*ws.HandshakeError](err); err != nil && (!ok || bad.Status < 400 || bad.Message == "") {
			t.Errorf("CheckHandshake() = %#v", err)
		}
		_, acceptErr := ws.Accept(hijacked{nc: &script{}}, r, o)
		if (err == nil) != (acceptErr == nil) {
			t.Errorf("CheckHandshake() = %v, but Accept() = %v", err, acceptErr)
		}
	})
}

// FuzzClose compares the payload of a close frame with the oracle.
func FuzzClose(f *testing.F) {
	for _, s := range []string{"", "x", closing(1000, ""), closing(1005, ""), closing(4999, "reason"), closing(1000, "\xff"), closing(1000, strings.Repeat("x", 123))} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		if len(payload) > 125 {
			return
		}
		c := scripted(t, ws.Options{}, (&peer{}).frame(fin|shut, payload))
		_, _, err := c.Read()
		if want := oracleClose([]byte(payload)); ws.CodeOf(err) != want {
			t.Errorf("Read() = %v, want code %d", err, want)
		}
		if e, ok := errors.AsType[*ws.CloseError](err); ok && !e.Refused && len(payload) > 2 && e.Reason != payload[2:] {
			t.Errorf("Read() = %#v, want reason %q", e, payload[2:])
		}
	})
}

// A header has room for thousands of elements.
func TestHandshakeCost(t *testing.T) {
	for name, value := range map[string][]byte{
		"elements":   fuzztest.Fill("", func(i int) string { return strconv.Itoa(i) + "," }, "x"),
		"commas":     fuzztest.Fill("", func(int) string { return ", " }, "x"),
		"parameters": fuzztest.Fill("x", func(int) string { return `;a="b"` }, ""),
	} {
		r := handshake()
		r.Header["Sec-Websocket-Protocol"], r.Header["Sec-Websocket-Extensions"], r.Header["Upgrade"] = []string{string(value)}, []string{string(value)}, []string{string(value)}
		fuzztest.Cost{PerByte: 32}.Check(t, 3*len(value), func() {
			ws.CheckHandshake(r) //nolint:errcheck // only what it costs counts
		})
		if t.Failed() {
			t.Fatal(name)
		}
	}
}
