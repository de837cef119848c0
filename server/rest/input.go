package rest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"agentd/server/fault"
	"agentd/server/strict"
)

// read fills in, a pointer to a struct, from path, query and body, and returns the body. Every problem is reported at
// once.
func read(r *http.Request, in any) (data []byte, err error) {
	v := reflect.ValueOf(in).Elem()
	var issues []fault.Issue
	var query url.Values
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch {
		case f.Tag.Get("path") != "":
			v.Field(i).SetString(r.PathValue(f.Tag.Get("path")))
		case f.Tag.Get("query") != "":
			if query == nil {
				query = r.URL.Query()
			}
			name := f.Tag.Get("query")
			if values, ok := query[name]; ok {
				if problem := scalar(v.Field(i), f.Tag, values[0]); problem != "" {
					issues = append(issues, fault.At(problem, name))
				}
			}
		}
	}
	body := v.FieldByName("Body")
	if body.IsValid() {
		data, err = io.ReadAll(r.Body)
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, fault.New(fault.BodyTooLarge, "The body is larger than %d bytes.", tooLarge.Limit)
		}
		if err != nil {
			return nil, fault.Invalid("The body could not be read.", fault.At("ends too early")).Because(err)
		}
		if body.Type() == textType {
			body.SetBytes(data)
		} else {
			issues = append(issues, strict.Decode(data, body.Addr().Interface())...)
		}
	}
	if issues != nil {
		return nil, fault.Invalid("The request is not valid.", issues...)
	}
	return data, nil
}

// scalar sets a query field: a string or an integer, whose length or value is within the bounds of its tags min and max.
func scalar(v reflect.Value, tag reflect.StructTag, text string) string {
	low, high := strict.Bound(tag, "min"), strict.Bound(tag, "max")
	outside := func(n int64) bool { return low != nil && n < *low || high != nil && n > *high }
	switch v.Kind() {
	case reflect.String:
		if outside(int64(len(text))) {
			return "has a length" + span(low, high)
		}
		if allowed := tag.Get("enum"); allowed != "" && text != "" && !slices.Contains(strings.Split(allowed, "|"), text) {
			return "is one of " + strings.ReplaceAll(allowed, "|", ", ")
		}
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || outside(n) {
			return "is a whole number" + span(low, high)
		}
		v.SetInt(n)
	default:
		panic("rest: query field of type " + v.Type().String())
	}
	return ""
}

// place reads a cursor: a number above zero as [strconv.FormatInt] writes it.
func place(cursor string, base int) (int64, bool) {
	n, err := strconv.ParseInt(cursor, base, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, base) == cursor
}

func span(low, high *int64) string {
	switch {
	case low != nil && high != nil:
		return fmt.Sprintf(" from %d to %d", *low, *high)
	case low != nil:
		return fmt.Sprintf(" of at least %d", *low)
	}
	return ""
}

// textType is of a body that the endpoint reads itself.
var textType = reflect.TypeFor[[]byte]()
