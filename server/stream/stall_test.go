package stream_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentd/server/hub"
)

// nextFrame reads a server's frame and returns its first byte and its payload, which is valid until the next read.
func nextFrame(r *bufio.Reader) (first byte, payload []byte, err error) {
	head, err := r.Peek(2)
	if err != nil {
		return 0, nil, err
	}
	first, size, length := head[0], 2, int(head[1])
	if length == 126 {
		if head, err = r.Peek(4); err != nil {
			return 0, nil, err
		}
		size, length = 4, int(binary.BigEndian.Uint16(head[2:]))
	}
	frame, err := r.Peek(size + length)
	if err != nil {
		return 0, nil, err
	}
	r.Discard(len(frame)) //nolint:errcheck // it has been peeked
	return first, frame[size:], nil
}

// number is that of the event in a frame; 0 when it has none.
func number(frame []byte) int {
	at := bytes.IndexByte(frame, mark)
	if at < 0 || len(frame) < at+7 {
		return 0
	}
	n, _ := strconv.Atoi(string(frame[at+1 : at+7]))
	return n
}

// load is what the process holds when what has ended is gone.
func load() (goroutines int, heap uint64) {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), m.HeapAlloc
}

// A client that stops reading is cut off, and nobody else notices.
func TestOneOfThousandStalls(t *testing.T) {
	const (
		clients = 1000
		queue   = 160 // and KiB: 36 events
		round   = 16
		rounds  = 8
		slack   = 4 << 20 // bytes; what the runtime keeps of goroutines that have ended is 2 MiB
	)
	a := newArena(t, queue, func(c *net.TCPConn) { c.SetWriteBuffer(16 << 10) }) //nolint:errcheck // then it stalls later
	a.text = strings.Repeat("x", 4000)
	goroutines, heap := load()

	stalled := a.watch(t, "/ws")
	defer stalled.Close()
	var others []net.Conn
	for range clients - 1 {
		others = append(others, a.watch(t, "/ws"))
	}
	var wrong atomic.Pointer[string]
	good := newAudience(t, others, round, func(client int, conn net.Conn) func() (int, error) {
		r, last := bufio.NewReaderSize(conn, 8<<10), 0
		return func() (int, error) {
			first, frame, err := nextFrame(r)
			if err != nil {
				return 0, err
			}
			if n := number(frame); first != 0x81 || n != last+1 {
				wrong.CompareAndSwap(nil, new(fmt.Sprintf("client %d gets %x %q after event %d", client, first, frame, last)))
			}
			last++
			return 1, nil
		}
	})
	begun := time.Now()
	good.rounds(t, rounds, a.publish)
	if w := wrong.Load(); w != nil {
		t.Fatal(*w)
	}

	// It reads again: what was on its way, in order, and why that is all.
	r, last := bufio.NewReaderSize(stalled, 8<<10), 0
	stalled.SetReadDeadline(time.Now().Add(20 * time.Second)) //nolint:errcheck // the read tells
	for {
		first, frame, err := nextFrame(r)
		if err != nil && time.Since(begun) > 5*time.Second {
			stalled.Close() // on a slow machine, the server has given it up before it read again, perhaps within a frame
			r.Reset(stalled)
			break
		}
		if err != nil {
			t.Fatalf("the stalled client reads %v after event %d, want a close frame", err, last)
		}
		if n := number(frame); first == 0x81 && n == last+1 {
			last++
			continue
		}
		if want := "\x0f\xa6flow.throttled"; first != 0x88 || string(frame) != want {
			t.Fatalf("after event %d, the stalled client gets %x %q, want a close frame %q", last, first, frame, want)
		}
		break
	}
	if last == round*rounds {
		t.Error("the stalled client got everything, want it cut off before")
	}
	io.WriteString(stalled, "\x88\x80\x00\x00\x00\x00") //nolint:errcheck // the end tells
	if _, err := r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the close frames, the stalled client reads %v, want the end", err)
	}
	stalled.Close()

	good.leave(others)
	good, others = nil, nil
	a.hub.Drop(arenaSubject)
	deadline := time.Now().Add(20 * time.Second)
	for a.service.Clients() > 0 || runtime.NumGoroutine() > goroutines {
		if time.Now().After(deadline) {
			t.Fatalf("%d clients and %d goroutines are left, want 0 and %d", a.service.Clients(), runtime.NumGoroutine(), goroutines)
		}
		runtime.Gosched()
	}
	if st := a.hub.Stats(); st != (hub.Stats{}) {
		t.Errorf("Stats() = %+v, want nothing left", st)
	}
	if _, now := load(); now > heap+slack {
		t.Errorf("the heap has %d bytes more than before, want at most %d", now-heap, slack)
	}
}
