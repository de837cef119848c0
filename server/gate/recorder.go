package gate

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"slices"
	"time"

	"agentd/auth"
)

// heldAnswer is how much of an answer waits in memory for its entries in the audit chain.
const heldAnswer = 64 << 10

// recorder is the writer of an answer. It notes the status for log and metrics, and holds the answer back until its
// entries are durable, and as long as [Claim.Hold] asks for.
type recorder struct {
	http.ResponseWriter
	g     *Gate
	r     *http.Request
	q     *Request
	row   *Row // nil: no stage needed one
	start time.Time

	status    int
	room      int    // how much of the answer may be held; 0: what is written leaves at once
	body      []byte // what is held
	audited   bool   // the entries must be made before the first byte leaves
	refused   error  // the entries could not be made, or the answer was cut: what comes yet is dropped
	scope     error  // the scope that the principal lacks
	uncounted bool   // the rate limit has not counted the request
}

var errRefused = errors.New("gate: the answer was refused, because it could not be recorded")

// record begins to hold the answer back for its entries.
func (w *recorder) record() {
	if w.g.opts.Audit.Log != nil {
		w.audited, w.room, w.q.entry.writer = true, heldAnswer, w
	}
}

// release makes the entries and sends what is held. It does nothing the second time, and when nothing is held.
func (w *recorder) release() error {
	if w.room == 0 {
		return w.refused
	}
	w.room = 0
	if err := w.settle(); err != nil {
		return err
	}
	if w.status == 0 {
		return nil
	}
	w.ResponseWriter.WriteHeader(w.status)
	return w.send(w.body)
}

// settle makes the entries, if there are to be any. When they cannot be made, the error is the answer.
func (w *recorder) settle() error {
	if !w.audited {
		return nil
	}
	w.audited, w.room = false, 0
	err := w.append()
	if err != nil {
		w.discard()
		w.g.Fail(w, w.r, err)
		w.refused = err
	}
	return err
}

// discard drops an answer of which nothing has left.
func (w *recorder) discard() {
	w.status, w.body = 0, nil
	for _, name := range []string{"Content-Length", "Content-Type", "Content-Encoding", "Content-Disposition", "Retry-After", "Www-Authenticate"} {
		w.Header().Del(name)
	}
}

// abandon makes the entries of an answer that is cut off, if nothing of it has left.
func (w *recorder) abandon() {
	if !w.audited {
		return
	}
	if w.status < 400 {
		w.status = http.StatusInternalServerError
	}
	w.audited, w.room, w.refused = false, 0, errRefused
	if err := w.append(); err != nil {
		w.g.opts.Logger.Error("request could not be recorded", "request", w.q.ID, "error", err)
	}
}

func (w *recorder) WriteHeader(status int) {
	if w.refused != nil {
		return
	}
	w.begin(status)
	if w.room == 0 {
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.refused != nil {
		return 0, errRefused
	}
	w.begin(http.StatusOK)
	if w.room > 0 && len(w.body)+len(b) <= w.room {
		w.body = append(w.body, b...)
		return len(b), nil
	}
	if err := w.release(); err != nil {
		return 0, err
	}
	if len(b) > answerPiece {
		return len(b), w.send(b)
	}
	return w.ResponseWriter.Write(b)
}

// begin notes the status of an answer that begins, and how long the client may take to read it.
func (w *recorder) begin(status int) {
	if w.status == 0 {
		w.status = status
		w.extend()
	}
}

// extend lets the client take its time for the next piece of the answer.
func (w *recorder) extend() {
	http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTimeout)) //nolint:errcheck // a recorder in a test has none
}

// send sends part of an answer in pieces. The last deadline stays, for what net/http still holds back; the next request on
// the connection removes it.
func (w *recorder) send(body []byte) error {
	for piece := range slices.Chunk(body, answerPiece) {
		w.extend()
		if _, err := w.ResponseWriter.Write(piece); err != nil {
			return err // the client has left
		}
	}
	return nil
}

// FlushError is for http.ResponseController.
func (w *recorder) FlushError() error {
	if w.room > 0 {
		w.begin(http.StatusOK)
	}
	if err := w.release(); err != nil {
		return err
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack is for http.ResponseController. Who takes the connection over says what it is going to answer by SetStatus before.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if err := w.settle(); err != nil {
		return nil, nil, err
	}
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		w.status = 0
	}
	return conn, rw, err
}

// SetStatus notes what an endpoint is going to answer that takes the connection over; 0 when it does not after all.
func (w *recorder) SetStatus(status int) { w.status = status }

// Unwrap gives http.ResponseController the writer below.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Recognised is called by an endpoint that authenticates itself, with the principal and its proof (bearer or ticket), or
// with the error. If it returns an error, that of the rate limit, the endpoint refuses the request with it.
func (w *recorder) Recognised(p auth.Principal, by string, err error) error {
	w.q.Principal = p
	if refused := w.count(); refused != nil {
		w.q.Principal = auth.Principal{}
		return refused
	}
	if err != nil {
		w.g.denied(w.r, w.q, err)
	} else {
		w.g.granted(w.r, w.q, by)
	}
	return nil
}
