// Package outboundtest is a name server for tests of outgoing connections.
package outboundtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
)

// Names knows the addresses of names by their first label; other names do not exist.
type Names struct {
	Known map[string][]string
	Asked atomic.Int32 // questions so far
}

// Resolver asks n and nobody else. A name in /etc/hosts is not asked for.
func (n *Names) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go n.serve(theirs) // until the resolver hangs up
		return ours, nil
	}}
}

// serve answers questions about addresses (RFC 1035), each with its length before it, as over TCP.
func (n *Names) serve(c net.Conn) {
	defer c.Close()
	for {
		var size uint16
		if binary.Read(c, binary.BigEndian, &size) != nil {
			return
		}
		q := make([]byte, size)
		if _, err := io.ReadFull(c, q); err != nil {
			return
		}
		n.Asked.Add(1)
		label := string(q[13 : 13+q[12]])
		end := 12 + bytes.IndexByte(q[12:], 0) + 5 // of the question: name, type, class
		four := binary.BigEndian.Uint16(q[end-4:]) == 1
		var answers []byte
		count := 0
		for _, text := range n.Known[label] {
			a := netip.MustParseAddr(text)
			if a.Is4() != four {
				continue
			}
			count++
			answers = append(answers, 0xC0, 12) // the name of the question
			answers = append(answers, q[end-4:end]...)
			answers = append(answers, 0, 0, 0, 60, 0, byte(len(a.AsSlice())))
			answers = append(answers, a.AsSlice()...)
		}
		m := append(slices.Clone(q[:2]), 0x81, 0x80, 0, 1, 0, byte(count), 0, 0, 0, 0)
		m = append(append(m, q[12:end]...), answers...)
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...)); err != nil {
			return
		}
	}
}
