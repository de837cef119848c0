package store

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"agentd/server/fault"
)

// A table is where rows of one type are kept. Its columns are declared once, for reading and for writing.
type table[T any] struct {
	fields func(row *T, to []any) []any // appends where the row has the value of each column; for what is not a pointer see stored
	from   string                       // SELECT columns FROM table
	into   string                       // INSERT INTO table (columns and extra) VALUES (?,...)
	many   insertion                    // the same for several rows
}

// declare declares a table. The extra columns are only written.
func declare[T any](name, columns, extra string, fields func(*T, []any) []any) table[T] {
	written := strings.TrimSuffix(columns+", "+extra, ", ")
	many := newInsertion("INSERT INTO "+name+" ("+written+") VALUES ", 1+strings.Count(written, ","))
	return table[T]{fields, "SELECT " + columns + " FROM " + name + " ", many.queries[0], many}
}

// placeholders is "?,?,?" for n values.
func placeholders(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }

// An insertion inserts rows of one width. The fewer statements, the less each row costs.
type insertion struct {
	width   int
	queries [rowsAtOnce]string // for one row, two, ...
}

// rowsAtOnce is how many rows one statement inserts at most.
const rowsAtOnce = 16

// newInsertion makes one of the beginning of its statement, up to the rows.
func newInsertion(insert string, width int) insertion {
	i := insertion{width: width}
	row := "(" + placeholders(width) + "),"
	for k := range i.queries {
		i.queries[k] = insert + strings.TrimSuffix(strings.Repeat(row, k+1), ",")
	}
	return i
}

// putMany inserts the rows that values are of, one after the other.
func (tx *Tx) putMany(i *insertion, values []any) error {
	for some := range slices.Chunk(values, rowsAtOnce*i.width) {
		n := len(some) / i.width
		if err := tx.put(int64(n), i.queries[n-1], some...); err != nil {
			return err
		}
	}
	return nil
}

// onConflict has an insert replace columns of the row that has its key already.
func onConflict(key, columns string) string {
	var set []string
	for c := range strings.SplitSeq(columns, ", ") {
		set = append(set, c+" = excluded."+c)
	}
	return " ON CONFLICT (" + key + ") DO UPDATE SET " + strings.Join(set, ", ")
}

// replacing makes every insert replace columns of the row that has its key already.
func (t table[T]) replacing(key, columns string) table[T] {
	for i := range t.many.queries {
		t.many.queries[i] += onConflict(key, columns)
	}
	t.into = t.many.queries[0]
	return t
}

// all returns the rows that the rest of a SELECT statement selects.
func (t *table[T]) all(tx *Tx, rest string, args ...any) ([]T, error) {
	return all(tx, t.fields, t.from+rest, args...)
}

// one returns the row that the rest of a SELECT statement selects, or ErrNotFound.
func (t *table[T]) one(tx *Tx, rest string, args ...any) (v T, err error) {
	return v, tx.row(t.from+rest, args...).Scan(into(tx, t.fields, &v)...)
}

// insert writes a row, and returns its integer key if it has one.
func (t *table[T]) insert(tx *Tx, v *T, extra ...any) (int64, error) {
	return tx.insert(1, t.into, t.values(tx, v, extra)...)
}

// values are the arguments of an insert.
func (t *table[T]) values(tx *Tx, v *T, extra []any) []any {
	return append(into(tx, t.fields, v), extra...)
}

// of returns the rows of run or thread n in order. Here and in add, the first column of the table is a rowKey.
func (t *table[T]) of(tx *Tx, n int64) ([]T, error) {
	return t.all(tx, "WHERE key BETWEEN ? AND ? ORDER BY key", key(n, 0), key(n, maxIndex))
}

// add writes rows of run or thread n.
func (t *table[T]) add(tx *Tx, n int64, rows []T, extra ...any) error {
	for some := range slices.Chunk(rows, rowsAtOnce) {
		values := tx.c.fields[:0]
		for i := range some {
			at := len(values)
			values = append(t.fields(&some[i], values), extra...)
			index := *values[at].(rowKey).index
			if index > maxIndex {
				return fault.New(fault.StorageFailed, "Row %d of %d is more than a run or thread can have of one kind.", index, n)
			}
			values[at] = key(n, index)
		}
		tx.c.fields = values // the connection's own slice, see into
		if err := tx.putMany(&t.many, values); err != nil {
			return err
		}
	}
	return nil
}

// into is the fields of a row in the connection's own slice, so it is valid until the next row of any table.
func into[T any](tx *Tx, fields func(*T, []any) []any, v *T) []any {
	tx.c.fields = fields(v, tx.c.fields[:0])
	return tx.c.fields
}

// all runs a query and returns its rows.
func all[T any](tx *Tx, fields func(*T, []any) []any, query string, args ...any) (list []T, err error) {
	err = tx.collect(func(s scanner) error {
		var v T
		err := s.Scan(into(tx, fields, &v)...)
		list = append(list, v)
		return err
	}, query, args...)
	return list, err
}

// column runs a query that has one column, and returns its values.
func column[T any](tx *Tx, query string, args ...any) ([]T, error) {
	return all(tx, func(v *T, to []any) []any { return append(to, v) }, query, args...)
}

// view is [DB.View] for a function with a result.
func view[T any](ctx context.Context, db *DB, fn func(*Tx) (T, error)) (v T, err error) {
	err = db.View(ctx, func(tx *Tx) error {
		v, err = fn(tx)
		return err
	})
	return v, err
}

// opt is a value that is NULL in the file when it is zero.
func opt[T ~string | ~int | ~int64](value *T) optional[T] { return optional[T]{value} }

type optional[T ~string | ~int | ~int64] struct{ value *T }

func (o optional[T]) Scan(src any) error {
	if src == nil {
		*o.value = *new(T)
		return nil
	}
	switch to := any(o.value).(type) { // as reflection does below, at a lower cost
	case *string:
		if s, ok := src.(string); ok {
			*to = s
			return nil
		}
	case *int64:
		if n, ok := src.(int64); ok {
			*to = n
			return nil
		}
	}
	v, kind := reflect.ValueOf(o.value).Elem(), reflect.TypeOf(src)
	switch {
	case v.CanInt() && kind.Kind() == reflect.Int64:
		v.SetInt(src.(int64))
	case v.Kind() == kind.Kind():
		v.SetString(src.(string))
	default:
		return fmt.Errorf("it is %s instead of %s", kind, v.Kind())
	}
	return nil
}

func (o optional[T]) stored() any { return null(*o.value) }

// null is v, or NULL for a zero value.
func null[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// optIndex is an index that is NULL in the file when it is -1.
type optIndex struct{ value *int }

func (o optIndex) Scan(src any) error {
	n, ok := src.(int64)
	if *o.value = int(n); !ok {
		*o.value = -1
	}
	return nil
}

func (o optIndex) stored() any {
	if *o.value < 0 {
		return nil
	}
	return *o.value
}

// blob is bytes that are NULL in the file when there are none.
type blob struct{ of *[]byte }

func (b blob) Scan(src any) error {
	v, ok := src.([]byte)
	if *b.of = v; !ok && src != nil {
		return fmt.Errorf("it is %T instead of bytes", src)
	}
	return nil
}

func (b blob) stored() any {
	if len(*b.of) == 0 {
		return nil
	}
	return *b.of
}

// threadOf is the thread of a run, which is NULL for the first run of one: they have the same number.
type threadOf struct{ of *Run }

func (t threadOf) Scan(src any) error {
	n, ok := src.(int64)
	switch {
	case src == nil && t.of.Kind == Workflow:
		n = t.of.N
	case !ok && src != nil:
		return fmt.Errorf("it is %T instead of a number", src)
	}
	t.of.Thread = n
	return nil
}

func (t threadOf) stored() any {
	if t.of.Thread == 0 {
		return nil
	}
	return t.of.Thread
}

// text is JSON that the file holds as text; an empty one is NULL.
type text struct{ json *json.RawMessage }

func (t text) Scan(src any) error {
	switch src := src.(type) {
	case nil:
		*t.json = nil
	case string:
		*t.json = json.RawMessage(src)
	default:
		return fmt.Errorf("it is %T instead of text", src)
	}
	return nil
}

func (t text) stored() any { return null(string(*t.json)) }

// list is texts that the file holds as a JSON array.
type list struct{ of *[]string }

func (l list) Scan(src any) error {
	var raw json.RawMessage
	if err := (text{&raw}).Scan(src); err != nil || raw == nil {
		return err
	}
	return json.Unmarshal(raw, l.of)
}

func (l list) stored() any {
	b, _ := json.Marshal(*l.of) // of texts, which always encode
	return string(b)
}

// rowKey is the key of a row of a run. Its run may be nil.
type rowKey struct {
	run   *int64
	index *int
}

func (k rowKey) Scan(src any) error {
	n, ok := src.(int64)
	if !ok {
		return fmt.Errorf("it is %T instead of a key", src)
	}
	if *k.index = int(n & maxIndex); k.run != nil {
		*k.run = n >> 24
	}
	return nil
}

// key is the integer key of a run's row.
func key(run int64, index int) int64 { return run<<24 | int64(index) }

const maxIndex = 1<<24 - 1
