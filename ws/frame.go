package ws

import "encoding/binary"

// opcode tells what a frame is (section 5.2).
type opcode byte

const (
	opContinuation opcode = 0
	opText         opcode = opcode(Text)
	opBinary       opcode = opcode(Binary)
	opClose        opcode = 8
	opPing         opcode = 9
	opPong         opcode = 10
)

func (o opcode) control() bool { return o&8 != 0 }

const (
	bitFin  = 0x80 // of the first byte
	bitsRSV = 0x70
	bitMask = 0x80 // of the second byte

	maxControl = 125     // bytes of payload of a control frame (section 5.5)
	maxHeader  = 14      // bytes of a header
	length16   = 126     // marks a length of 16 bits (section 5.2)
	length64   = 127     // marks one of 64
	limit16    = 1 << 16 // the first length that needs 64
)

// header is what stands before the payload of a frame (section 5.2).
type header struct {
	length uint64
	key    uint32 // the masking key, its first byte lowest; 0 of a frame that is not masked
	op     opcode
	fin    bool
}

// headerSize tells from its first two bytes how long a header is, or which rule they break. The receiver is the client
// or the server.
func headerSize(b0, b1 byte, client bool) (size int, broken string) {
	op, length, masked := opcode(b0&0xF), b1&^bitMask, b1&bitMask != 0
	switch {
	case b0&bitsRSV != 0: // section 5.2: no extension that gives them a meaning is ever negotiated here
		return 0, "reserved bits set"
	case op > opBinary && op < opClose || op > opPong: // section 5.2
		return 0, "reserved opcode"
	case op.control() && b0&bitFin == 0: // section 5.5
		return 0, "control frame in fragments"
	case op.control() && length > maxControl: // section 5.5
		return 0, "control frame longer than 125 bytes"
	case masked && client: // section 5.1
		return 0, "masked frame from a server"
	case !masked && !client: // section 5.1
		return 0, "frame from a client that is not masked"
	}
	size = 2
	switch length {
	case length16:
		size += 2
	case length64:
		size += 8
	}
	if masked {
		size += 4
	}
	return size, ""
}

// parseHeader reads a header of the size that headerSize told, or tells which rule it breaks.
func parseHeader(b []byte) (h header, broken string) {
	h.fin, h.op = b[0]&bitFin != 0, opcode(b[0]&0xF)
	h.length = uint64(b[1] &^ bitMask)
	switch h.length {
	case length16:
		h.length = uint64(binary.BigEndian.Uint16(b[2:]))
		if h.length < length16 { // section 5.2: "the minimal number of bytes MUST be used"
			return h, "length not in its shortest form"
		}
	case length64:
		h.length = binary.BigEndian.Uint64(b[2:])
		switch {
		case h.length>>63 != 0: // section 5.2: "the most significant bit MUST be 0"
			return h, "length of more than 63 bits"
		case h.length < limit16:
			return h, "length not in its shortest form"
		}
	}
	if b[1]&bitMask != 0 {
		h.key = binary.LittleEndian.Uint32(b[len(b)-4:])
	}
	return h, ""
}

// appendHeader adds the header of a whole message or control frame, of which a client still has to append the key.
func appendHeader(b []byte, op opcode, length int, client bool) []byte {
	var mask byte
	if client {
		mask = bitMask
	}
	b = append(b, bitFin|byte(op))
	switch {
	case length < length16:
		return append(b, mask|byte(length))
	case length < limit16:
		return binary.BigEndian.AppendUint16(append(b, mask|length16), uint16(length))
	default:
		return binary.BigEndian.AppendUint64(append(b, mask|length64), uint64(length))
	}
}
