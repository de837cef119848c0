package audit

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"agentd/store"
)

// Checkpoints say where the signed heads of the tree go, and how often.
type Checkpoints struct {
	Path     string        // empty: none are written
	Interval time.Duration // at most so long after an entry
	Entries  int64         // at most after so many entries, about; 0: by time only
}

// A Checkpoint is a signed head of the tree: one line of the checkpoint file.
type Checkpoint struct {
	V            string `json:"v"`
	Head         Head   `json:"head"`
	WriterID     string `json:"writerId"`
	SignedAt     int64  `json:"signedAt"`
	Signature    string `json:"signature"`    // base64url, of the canonical form of all but itself and publicKeyPem
	PublicKeyPEM string `json:"publicKeyPem"` // of the writer, for people; who verifies brings a key

	Accepted *Acceptance `json:"accepted,omitempty"` // the breaks that were accepted; the chain continues from here
}

const (
	checkpointLabel = "svc-audit-checkpoint/1"
	maxLine         = 16 << 10
)

// signed is what the signature is made over. A line that somebody wrote may have no canonical form.
func (c *Checkpoint) signed() ([]byte, error) {
	members := map[string]any{"v": c.V, "writerId": c.WriterID, "signedAt": c.SignedAt,
		"head": map[string]any{"size": c.Head.Size, "rootHash": c.Head.RootHash, "lastSeq": c.Head.LastSeq}}
	if c.Accepted != nil {
		text, err := json.Marshal(c.Accepted)
		if err != nil {
			return nil, err
		}
		members["accepted"] = json.RawMessage(text)
	}
	return form.AppendValue(nil, members)
}

// Verify reports whether the holder of a key has signed the checkpoint.
func (c *Checkpoint) Verify(key ed25519.PublicKey) bool {
	sig, err := base64.RawURLEncoding.DecodeString(c.Signature)
	if err != nil || c.V != checkpointLabel || c.Head.Size != c.Head.LastSeq || len(key) != ed25519.PublicKeySize {
		return false
	}
	text, err := c.signed()
	return err == nil && ed25519.Verify(key, text, sig)
}

// sign makes the line of a checkpoint, with its end. Nothing need be accepted with it.
func sign(key ed25519.PrivateKey, head Head, at time.Time, accepted *Acceptance) []byte {
	public := key.Public().(ed25519.PublicKey)
	c := Checkpoint{V: checkpointLabel, Head: head, WriterID: writerID(public), SignedAt: at.UnixMilli(), PublicKeyPEM: string(PEM(public)), Accepted: accepted}
	text, err := c.signed()
	if err != nil {
		panic(err) // nothing in ours can fail
	}
	c.Signature = base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, text))
	line, err := json.Marshal(c)
	if err == nil {
		line, err = form.Append(nil, line)
	}
	if err != nil {
		panic(err)
	}
	return append(line, '\n')
}

func writerID(public ed25519.PublicKey) string {
	sum := sha256.Sum256(public)
	return "agentd-" + hex.EncodeToString(sum[:8])
}

// PEM is a public key in the form that other tools read.
func PEM(key ed25519.PublicKey) []byte {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// Key is a public key as somebody needs it who wants to recognise it later.
type Key struct {
	Algorithm    string `json:"algorithm" doc:"Ed25519 (RFC 8032)."`
	Fingerprint  string `json:"fingerprint" doc:"sha256: and, hex, the SHA-256 of the key's DER: openssl pkey -pubin -in FILE -outform DER | sha256sum."`
	WriterID     string `json:"writerId" doc:"How checkpoints name it."`
	PublicKeyPEM string `json:"publicKeyPem"`
}

// KeyOf describes a public key.
func KeyOf(public ed25519.PublicKey) Key {
	text := PEM(public)
	block, _ := pem.Decode(text)
	sum := sha256.Sum256(block.Bytes)
	return Key{Algorithm: "Ed25519", Fingerprint: "sha256:" + hex.EncodeToString(sum[:]), WriterID: writerID(public), PublicKeyPEM: string(text)}
}

// ParseKey reads what [PEM] wrote.
func ParseKey(text []byte) (ed25519.PublicKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is not PEM")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if public, ok := key.(ed25519.PublicKey); err == nil && ok {
		return public, nil
	}
	return nil, errors.New("it does not hold an Ed25519 public key")
}

// ParseCheckpoint reads one line, with or without its end, which has at most 16 KiB in a file. The signature is not
// checked.
func ParseCheckpoint(line []byte) (c Checkpoint, err error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return c, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return c, errors.New("text follows the checkpoint")
	}
	if c.Head.Size < 0 || c.V != checkpointLabel {
		return c, fmt.Errorf("it is not %s", checkpointLabel)
	}
	return c, nil
}

// heads is the checkpoint file of the process that writes it.
type heads struct {
	file    *os.File
	entries int64
	latest  *Checkpoint  // when it was opened; nil: none that the chain's key has signed
	damaged bool         // the last line was not signed by the chain's key
	last    atomic.Int64 // size of the latest head
	signed  atomic.Int64 // when it was signed; 0: there is none
}

// openHeads opens the file, and takes away a last line that a crash has cut. What a line says counts only when the chain's
// key has signed it.
func openHeads(o Checkpoints, key ed25519.PublicKey) (*heads, error) {
	folder := filepath.Dir(o.Path)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, unusable("the folder of its checkpoints: %v", err)
	}
	f, err := os.OpenFile(o.Path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, unusable("its checkpoints: %v", err)
	}
	h := &heads{file: f, entries: o.Entries}
	if err := errors.Join(h.load(key), syncFolder(folder)); err != nil {
		return nil, errors.Join(unusable("its checkpoints: %v", err), f.Close())
	}
	return h, nil
}

func (h *heads) load(key ed25519.PublicKey) error {
	whole := int64(0)
	var last []byte
	err := eachLine(h.file, func(line []byte) {
		whole += int64(len(line))
		last = append(last[:0], line...)
	})
	if err == nil {
		err = h.file.Truncate(whole)
	}
	if err != nil || whole == 0 {
		return err
	}
	if h.take(last, key) { // so nearly always one signature is checked, and not that of each line
		return nil
	}
	h.damaged = true
	if _, err := h.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return eachLine(h.file, func(line []byte) { h.take(line, key) })
}

// eachLine calls fn for each line that has its end.
func eachLine(r io.Reader, fn func([]byte)) error {
	for b := bufio.NewReaderSize(r, maxLine); ; {
		line, err := b.ReadSlice('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		fn(line)
	}
}

// take makes the checkpoint of a line the latest, if the key has signed it.
func (h *heads) take(line []byte, key ed25519.PublicKey) bool {
	c, err := ParseCheckpoint(line)
	if err != nil || !c.Verify(key) {
		return false
	}
	h.latest = &c
	h.last.Store(c.Head.Size)
	h.signed.Store(c.SignedAt)
	return true
}

// syncFolder makes durable which files a folder has.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// due reports whether enough entries have come since the latest head.
func (h *heads) due(size int64) bool {
	return h != nil && h.entries > 0 && size-h.last.Load() >= h.entries
}

func (h *heads) write(line []byte, size int64, signed time.Time) error {
	at, err := h.file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = h.file.Write(line)
	}
	if err == nil {
		err = h.file.Sync()
	}
	if err != nil {
		h.file.Truncate(at) //nolint:errcheck // the next start cuts a torn line off
		return err
	}
	h.last.Store(size)
	h.signed.Store(signed.UnixMilli())
	return nil
}

func (h *heads) close() error { return h.file.Close() }

// checkpoint signs the head of the chain, unless the latest checkpoint has it or the chain is broken. The entries are
// made durable before the file has it, and the file has it before the chain: so after a power cut neither a head without
// its entries is left, nor a file that lacks the chain's latest.
func (l *Log) checkpoint(ctx context.Context) error {
	tree := l.tree()
	if l.heads == nil || l.Broken() != nil || tree.size <= l.heads.last.Load() {
		return nil
	}
	return l.cover(ctx, tree, nil)
}

// cover signs the head of a tree. With an acceptance, the chain counts as whole from then on.
func (l *Log) cover(ctx context.Context, tree edge, accepted *Acceptance) error {
	if err := l.file.Sync(); err != nil {
		return err
	}
	now := time.Now()
	line := sign(l.keys.private, tree.head(), now, accepted)
	if err := l.heads.write(line, tree.size, now); err != nil {
		return err
	}
	l.meter.uncovered.Store(now.UnixMilli()) // what comes from now on
	return l.file.Update(ctx, func(tx *store.Tx) error {
		err := l.file.SetValue(tx, valueEdge, tree.bytes())
		if err == nil {
			err = l.file.SetValue(tx, valueHead, line)
		}
		if err != nil || accepted == nil {
			return err
		}
		s, err := l.file.StateIn(tx)
		if err == nil {
			err = l.file.SetValue(tx, valueAccepts, append(s.Values[valueAccepts], line...))
		}
		if err == nil {
			err = l.file.SetValue(tx, valueBroken, []byte{})
		}
		return err
	})
}

// mend gives a checkpoint file that is new the chain's latest checkpoint.
func (l *Log) mend(line []byte) error {
	if l.heads.latest != nil || l.heads.damaged || !l.heads.take(line, l.public) {
		return nil
	}
	c := l.heads.latest
	return l.heads.write(line, c.Head.Size, time.UnixMilli(c.SignedAt))
}

// Covering is the first checkpoint of the chain's checkpoint file whose tree has an entry; ok is false when none has.
// Only those that the chain's key has signed count.
func (l *Log) Covering(seq int64) (c Checkpoint, ok bool, err error) {
	h, err := readHeads(l.opts.Checkpoints.Path)
	if err != nil {
		return c, false, err
	}
	defer h.close()
	k, err := l.read(context.Background(), l.public)
	if err != nil {
		return c, false, err
	}
	if err := h.skip(k.accepted); err != nil {
		return c, false, err
	}
	for {
		c, some, err := h.next()
		switch {
		case !some:
			return Checkpoint{}, false, err
		case err == nil && c.Head.Size >= seq && c.Verify(l.public):
			return c, true, nil
		}
	}
}

// headReader reads a checkpoint file as it was when it was opened.
type headReader struct {
	file *os.File
	size int64
	r    *bufio.Reader
}

// readHeads opens a checkpoint file; one that does not exist has no lines.
func readHeads(path string) (*headReader, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) || path == "" {
		return &headReader{r: bufio.NewReader(bytes.NewReader(nil))}, nil
	}
	if err != nil {
		return nil, unusable("its checkpoints: %v", err)
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, errors.Join(unusable("its checkpoints: %v", err), f.Close())
	}
	return &headReader{f, fi.Size(), bufio.NewReaderSize(io.LimitReader(f, fi.Size()), maxLine)}, nil
}

// skip passes over the lines before the latest acceptance, if they are those that stood there then: the entries that they
// were signed for may be gone.
func (h *headReader) skip(accepted []Acceptance) error {
	if len(accepted) == 0 || h.file == nil {
		return nil
	}
	a, sum := &accepted[len(accepted)-1], sha256.New()
	if n, err := io.CopyN(sum, h.r, a.HeadBytes); n == a.HeadBytes && hex.EncodeToString(sum.Sum(nil)) == a.HeadSHA256 {
		return nil
	} else if err != nil && err != io.EOF {
		return err
	}
	_, err := h.file.Seek(0, io.SeekStart)
	h.r.Reset(io.LimitReader(h.file, h.size))
	return err
}

// next is the next checkpoint; ok is false at the end. A line without its end is one that was being written.
func (h *headReader) next() (c Checkpoint, ok bool, err error) {
	line, err := h.r.ReadSlice('\n')
	if err == io.EOF {
		return c, false, nil
	}
	if err != nil {
		return c, false, err
	}
	c, err = ParseCheckpoint(line)
	return c, true, err
}

func (h *headReader) close() {
	if h.file != nil {
		h.file.Close()
	}
}
