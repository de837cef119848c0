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
	"math"
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

// Verify reports whether the holder of a key has signed the checkpoint.
func (c *Checkpoint) Verify(key ed25519.PublicKey) bool {
	return c.V == checkpointLabel && c.Head.Size == c.Head.LastSeq && signed(key, c.Signature, c, "signature", "publicKeyPem")
}

// sign makes a checkpoint. accepted may be nil.
func sign(key ed25519.PrivateKey, head Head, at time.Time, accepted *Acceptance) *Checkpoint {
	public := key.Public().(ed25519.PublicKey)
	c := &Checkpoint{V: checkpointLabel, Head: head, WriterID: writerID(public), SignedAt: at.UnixMilli(), PublicKeyPEM: string(PEM(public)), Accepted: accepted}
	c.Signature = signature(key, c, "signature", "publicKeyPem")
	return c
}

// line is the checkpoint as a line of the file.
func (c *Checkpoint) line() []byte { return append(signedForm(c), '\n') }

// signedForm is the canonical form of a document without some of its members. A struct of texts and whole numbers always
// has one, also one that was decoded from what somebody wrote.
func signedForm(doc any, without ...string) []byte {
	var members map[string]json.RawMessage
	text, err := json.Marshal(doc)
	if err == nil {
		err = json.Unmarshal(text, &members)
	}
	for _, name := range without {
		delete(members, name)
	}
	if err == nil {
		text, err = form.AppendValue(nil, members)
	}
	if err != nil {
		panic(err)
	}
	return text
}

// signature signs a document without some of its members. It is base64url.
func signature(key ed25519.PrivateKey, doc any, without ...string) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(key, signedForm(doc, without...)))
}

// signed reports whether the holder of a key has signed a document.
func signed(key ed25519.PublicKey, signature string, doc any, without ...string) bool {
	sig, err := base64.RawURLEncoding.DecodeString(signature)
	return err == nil && len(key) == ed25519.PublicKeySize && ed25519.Verify(key, signedForm(doc, without...), sig)
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

// Key describes a public key so that a person can recognise it later.
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
	latest  atomic.Pointer[Checkpoint] // nil: none that the chain's key has signed
	damaged bool                       // when it was opened, the last line was not signed by the chain's key
}

// openHeads opens the file and removes a last line that a crash has cut. A line counts only if the chain's key has signed
// it.
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
	if err := errors.Join(h.load(key), store.Sync(folder)); err != nil {
		return nil, errors.Join(unusable("its checkpoints: %v", err), f.Close())
	}
	return h, nil
}

func (h *heads) load(key ed25519.PublicKey) error {
	whole := int64(0)
	var last []byte
	err := h.each(func(line []byte) {
		whole += int64(len(line))
		last = append(last[:0], line...)
	})
	if err == nil {
		err = h.file.Truncate(whole)
	}
	if err != nil || whole == 0 || h.take(last, key) { // one signature instead of one for each line, nearly always
		return err
	}
	h.damaged = true
	return h.each(func(line []byte) { h.take(line, key) })
}

// each calls fn for each line that has its end.
func (h *heads) each(fn func([]byte)) error {
	r := headsOf(h.file, 0, math.MaxInt64)
	for {
		line, err := r.line()
		if line == nil || err != nil {
			return err
		}
		fn(line)
	}
}

// take makes the checkpoint in a line the latest if the key has signed it.
func (h *heads) take(line []byte, key ed25519.PublicKey) bool {
	c, err := ParseCheckpoint(line)
	if err != nil || !c.Verify(key) {
		return false
	}
	h.latest.Store(&c)
	return true
}

// size is that of the latest head.
func (h *heads) size() int64 {
	if c := h.latest.Load(); c != nil {
		return c.Head.Size
	}
	return 0
}

func (h *heads) write(c *Checkpoint) error {
	at, err := h.file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = h.file.Write(c.line())
	}
	if err == nil {
		err = h.file.Sync()
	}
	if err != nil {
		h.file.Truncate(at) //nolint:errcheck // the next start cuts a torn line off
		return err
	}
	h.latest.Store(c)
	return nil
}

// checkpoint signs the head of the chain, unless the latest checkpoint has it or the chain is broken. It makes the entries
// durable first, then writes the file, then the chain's own copy. So a power cut leaves neither a head without its entries
// nor a file that lacks the chain's latest.
func (l *Log) checkpoint(ctx context.Context) error {
	tree := l.tree()
	if l.heads == nil || l.Broken() != nil || tree.size <= l.heads.size() {
		return nil
	}
	return l.cover(ctx, tree, nil)
}

// cover signs the head of a tree. With an acceptance, the chain counts as whole from then on.
func (l *Log) cover(ctx context.Context, tree edge, accepted *Acceptance) error {
	if err := l.sync(); err != nil {
		return err
	}
	now := time.Now()
	c := sign(l.keys.private, tree.head(), now, accepted)
	if err := l.heads.write(c); err != nil {
		return err
	}
	l.uncovered.Store(now.UnixMilli()) // what comes from now on
	return l.file.Update(ctx, func(tx *store.Tx) error {
		values := map[string][]byte{valueEdge: tree.bytes(), valueHead: c.line()}
		if accepted != nil {
			s, err := l.file.StateIn(tx)
			if err != nil {
				return err
			}
			values[valueAccepts], values[valueBroken] = append(s.Values[valueAccepts], c.line()...), []byte{}
		}
		return l.file.Set(tx, values)
	})
}

// mend writes the chain's latest checkpoint to a new checkpoint file.
func (l *Log) mend(line []byte) error {
	if l.heads.latest.Load() != nil || l.heads.damaged || !l.heads.take(line, l.public) {
		return nil
	}
	return l.heads.write(l.heads.latest.Load())
}

// Covering returns the first checkpoint in the chain's checkpoint file that covers an entry and is signed by the chain's key;
// ok is false if there is none.
func (l *Log) Covering(seq int64) (c Checkpoint, ok bool, err error) {
	k, err := l.read(context.Background(), l.public)
	if err != nil {
		return c, false, err
	}
	h, err := readHeads(l.opts.Checkpoints.Path, k.accepted)
	if err != nil {
		return c, false, err
	}
	defer h.file.Close()
	for {
		c, ok, err := h.next()
		switch {
		case !ok:
			return Checkpoint{}, false, err
		case err == nil && c.Head.Size >= seq && c.Verify(l.public):
			return c, true, nil
		}
	}
}

// headReader reads a checkpoint file as it was when it was opened.
type headReader struct {
	file *os.File // nil: there is none
	r    *bufio.Reader
}

func headsOf(f *os.File, from, to int64) *headReader {
	return &headReader{f, bufio.NewReaderSize(io.NewSectionReader(f, from, to-from), maxLine)}
}

// readHeads opens a checkpoint file; a missing one has no lines. It skips the lines before the latest acceptance if they are
// unchanged since: the entries that they were signed for may be gone.
func readHeads(path string, accepted []Acceptance) (*headReader, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) || path == "" {
		return headsOf(nil, 0, 0), nil
	}
	var from, size int64
	if err == nil {
		size, err = f.Seek(0, io.SeekEnd)
	}
	if n := len(accepted); err == nil && n > 0 && accepted[n-1].HeadBytes <= size {
		a, sum := &accepted[n-1], ""
		if sum, err = digest(f, a.HeadBytes); sum == a.HeadSHA256 {
			from = a.HeadBytes
		}
	}
	if err != nil {
		f.Close()
		return nil, unusable("its checkpoints: %v", err)
	}
	return headsOf(f, from, size), nil
}

// digest is the SHA-256 of the beginning of a file.
func digest(f *os.File, n int64) (string, error) {
	sum := sha256.New()
	_, err := io.Copy(sum, io.NewSectionReader(f, 0, n))
	return hex.EncodeToString(sum.Sum(nil)), err
}

// line returns the next line, which is valid until the next call, and nil at the end. A line without its end does not count:
// it was being written.
func (h *headReader) line() ([]byte, error) {
	line, err := h.r.ReadSlice('\n')
	if err == io.EOF {
		return nil, nil
	}
	return line, err
}

// next returns the next checkpoint; ok is false at the end, and if the file cannot be read.
func (h *headReader) next() (c Checkpoint, ok bool, err error) {
	line, err := h.line()
	if line == nil || err != nil {
		return c, false, err
	}
	c, err = ParseCheckpoint(line)
	return c, true, err
}
