package rest

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentd/server/fault"
	"agentd/server/shape"
)

// read fills in, a pointer to a struct, from path, query and body, and returns the body. Every problem is reported at
// once. What the body takes of the memory is added to the weight.
func (a *API) read(w http.ResponseWriter, r *http.Request, limit int64, in any, wt *weight) (data []byte, err error) {
	v := reflect.ValueOf(in).Elem()
	query, issues := readQuery(r, v.Type())
	for _, f := range shape.Params(v.Type(), "path") {
		f.Value(v).SetString(r.PathValue(f.Name))
	}
	for _, f := range shape.Params(v.Type(), "query") {
		if values, ok := query[f.Name]; ok {
			issues = append(issues, f.Set(v, values[0])...)
		}
	}
	body := v.FieldByName("Body")
	if body.IsValid() {
		text := body.Type() == textType
		if data, err = readBody(w, r, limit, wt); err != nil {
			return nil, err
		}
		if err := wt.work(r.Context(), int64(len(data)), text); err != nil {
			return nil, err
		}
		switch {
		case shape.Objects(data) > maxObjects:
			issues = append(issues, fault.At(fmt.Sprintf("has more than %d objects", maxObjects)))
		case text:
			body.SetBytes(data)
		default:
			issues = append(issues, shape.Decode(data, body.Addr().Interface())...)
		}
	}
	if issues != nil {
		return nil, fault.Invalid("The request is not valid.", issues...)
	}
	return data, nil
}

// maxObjects is how many objects a body may hold: a message or a part of one takes a hundred times the memory of the two
// bytes that an empty one has.
const maxObjects = 100_000

// A body whose sender takes part of the memory that bodies share must keep coming.
const (
	bodyPiece     = 64 << 10
	pieceTimeout  = 5 * time.Second
	sharedTimeout = 30 * time.Second
)

// readBody reads a body of at most limit bytes, once there is room for it.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, wt *weight) ([]byte, error) {
	tooLarge := fault.New(fault.BodyTooLarge, "The body is larger than %d bytes.", limit)
	if r.ContentLength > limit {
		return nil, tooLarge
	}
	in := http.MaxBytesReader(w, r.Body, limit)
	first := int64(freeBody)
	if r.ContentLength >= 0 {
		first = min(first, r.ContentLength+1) // one more finds the end
	}
	data, err := readPiece(nil, in, int(first))
	if err == nil { // there may be more
		size, known := r.ContentLength, r.ContentLength >= 0
		if !known {
			size = smallBody // until it is found to be longer
		}
		if err := wt.read(r.Context(), size); err != nil {
			return nil, err
		}
		if known { // and it has its room now
			data = slices.Grow(data, int(size)+bodyPiece)
		}
		end, rc := time.Now().Add(sharedTimeout), http.NewResponseController(w)
		for err == nil {
			if !known && len(data) > smallBody {
				wt.reading.back()
				if err := wt.read(r.Context(), limit); err != nil {
					return nil, err
				}
				known = true
			}
			soon := time.Now().Add(pieceTimeout)
			if soon.After(end) {
				soon = end
			}
			rc.SetReadDeadline(soon) //nolint:errcheck // a recorder in a test has none
			data, err = readPiece(data, in, bodyPiece)
		}
	}
	switch _, isTooLarge := errors.AsType[*http.MaxBytesError](err); {
	case isTooLarge:
		return nil, tooLarge
	case err != io.EOF:
		return nil, fault.Invalid("The body could not be read.", fault.At("ended too early or arrived too slowly")).Because(err)
	}
	return data, nil
}

// readPiece appends up to n bytes of a reader. The error is io.EOF at its end.
func readPiece(data []byte, from io.Reader, n int) ([]byte, error) {
	data = slices.Grow(data, n)
	have := len(data)
	got, err := io.ReadFull(from, data[have:have+n])
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return data[:have+got], err
}

// maxStrayParameters is how many query parameters that a route does not have are reported.
const maxStrayParameters = 20

// readQuery reads the query of a request to a route with this input. Each parameter may be there once.
func readQuery(r *http.Request, in reflect.Type) (url.Values, []fault.Issue) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, []fault.Issue{fault.At("the query is not well-formed")}
	}
	var issues []fault.Issue
	known := queryNames(in)
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case slices.Contains(known, name) && len(query[name]) == 1:
			continue
		case slices.Contains(known, name):
			issues = append(issues, fault.At("is there twice", name))
		case len(known) == 0:
			issues = append(issues, fault.At("is unknown: the route accepts no query parameters", clip(name)))
		default:
			issues = append(issues, fault.At("is not a query parameter of this route"+shape.DidYouMean(fault.Nearest(name, known)), clip(name)))
		}
		if len(issues) == maxStrayParameters {
			break
		}
	}
	return query, issues
}

// clip shortens the name of an unknown parameter.
func clip(name string) string {
	if len(name) > 64 {
		name = strings.ToValidUTF8(name[:64], "") + "…"
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

// queryNames are the query parameters of an input.
func queryNames(in reflect.Type) (names []string) {
	for _, f := range shape.Params(in, "query") {
		names = append(names, f.Name)
	}
	return names
}

// cursorOf is a place in a list for a client to send back. Its check sum distinguishes it from other text.
func cursorOf(n int64) string {
	text := strconv.FormatInt(n, 36)
	return text + "-" + strconv.FormatUint(uint64(crc32.ChecksumIEEE([]byte("runs:"+text))), 36)
}

// placeOf reads what cursorOf writes.
func placeOf(cursor string) (int64, bool) {
	text, _, _ := strings.Cut(cursor, "-")
	n, ok := place(text, 36)
	return n, ok && cursorOf(n) == cursor
}

// nextCursor is the cursor of the page that ends before a place; empty for 0.
func nextCursor(n int64) string {
	if n == 0 {
		return ""
	}
	return cursorOf(n)
}

// before is the place that the cursor of a list names; 0 without one.
func before(cursor string) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	n, ok := placeOf(cursor)
	if !ok {
		return 0, fault.Invalid("The request is not valid.", fault.At("is not a cursor of this route", "cursor"))
	}
	return n, nil
}

// place reads a cursor: a number above zero as [strconv.FormatInt] writes it.
func place(cursor string, base int) (int64, bool) {
	n, err := strconv.ParseInt(cursor, base, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, base) == cursor
}

// textType is of a body that the endpoint reads itself.
var textType = reflect.TypeFor[[]byte]()
