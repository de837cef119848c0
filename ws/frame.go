package ws

import "encoding/binary"

// opcode is the kind of a frame (section 5.2).
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
	maxHeader  = 10      // bytes of a header that this side sends
	length16   = 126     // marks a length of 16 bits (section 5.2)
	length64   = 127     // marks one of 64
	limit16    = 1 << 16 // the first length that needs 64
)

// header is what precedes the payload of a frame (section 5.2).
type header struct {
	length uint64
	key    uint32 // the masking key, its first byte lowest
	op     opcode
	fin    bool
}

// parseHeader reads a header from its first bytes, at least two. It returns the size of the header: if that is more than
// b has, it read only the size. Broken is the rule that the header breaks, or empty.
func parseHeader(b []byte) (h header, size int, broken string) {
	h.fin, h.op, h.length = b[0]&bitFin != 0, opcode(b[0]&0xF), uint64(b[1]&^bitMask)
	switch {
	case b[0]&bitsRSV != 0: // section 5.2: no extension that gives them a meaning is ever negotiated here
		return h, 0, "reserved bits set"
	case h.op > opBinary && h.op < opClose || h.op > opPong: // section 5.2
		return h, 0, "reserved opcode"
	case h.op.control() && !h.fin: // section 5.5
		return h, 0, "control frame in fragments"
	case h.op.control() && h.length > maxControl: // section 5.5
		return h, 0, "control frame longer than 125 bytes"
	case b[1]&bitMask == 0: // section 5.1
		return h, 0, "frame from a client that is not masked"
	}
	size = 2 + 4
	switch h.length {
	case length16:
		size += 2
	case length64:
		size += 8
	}
	switch {
	case len(b) < size:
		return h, size, ""
	case h.length == length16:
		if h.length = uint64(binary.BigEndian.Uint16(b[2:])); h.length < length16 { // section 5.2: "the minimal number of bytes MUST be used"
			return h, 0, "length not in its shortest form"
		}
	case h.length == length64:
		switch h.length = binary.BigEndian.Uint64(b[2:]); {
		case h.length>>63 != 0: // section 5.2: "the most significant bit MUST be 0"
			return h, 0, "length of more than 63 bits"
		case h.length < limit16:
			return h, 0, "length not in its shortest form"
		}
	}
	h.key = binary.LittleEndian.Uint32(b[size-4:])
	return h, size, ""
}

// appendHeader adds the header of a whole message or control frame. A server's has no mask.
func appendHeader(b []byte, op opcode, length int) []byte {
	b = append(b, bitFin|byte(op))
	switch {
	case length < length16:
		return append(b, byte(length))
	case length < limit16:
		return binary.BigEndian.AppendUint16(append(b, length16), uint16(length))
	default:
		return binary.BigEndian.AppendUint64(append(b, length64), uint64(length))
	}
}
