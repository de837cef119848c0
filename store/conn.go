package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"time"
)

// conn is one connection of the driver and its prepared statements; one goroutine uses it at a time. Package database/sql is
// not between the two: its pool, locks and conversions serve callers that share connections.
type conn struct {
	c     driver.Conn
	stmts map[string]*stmt

	fields []any               // see into
	args   []driver.NamedValue // of the statement that is about to run
}

// stmt is a prepared statement.
type stmt struct {
	driver.Stmt
	exec  driver.StmtExecContext
	query driver.StmtQueryContext
	row   []driver.Value // the latest row that was read
}

func newConn(ctx context.Context, from driver.Connector) (*conn, error) {
	c, err := from.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{c: c, stmts: map[string]*stmt{}}, nil
}

func (c *conn) prepare(query string) (*stmt, error) {
	if st := c.stmts[query]; st != nil {
		return st, nil
	}
	made, err := c.c.Prepare(query)
	if err != nil {
		return nil, err
	}
	st := &stmt{Stmt: made}
	st.exec, _ = made.(driver.StmtExecContext)
	st.query, _ = made.(driver.StmtQueryContext)
	c.stmts[query] = st
	return st, nil
}

// run runs a statement without arguments that returns no rows.
func (c *conn) run(query string) error {
	st, err := c.prepare(query)
	if err == nil {
		_, err = st.exec.ExecContext(context.Background(), nil)
	}
	return err
}

// script runs statements that are not kept, one after the other.
func (c *conn) script(text string, args ...any) error {
	bound, err := c.bind(args)
	if err == nil {
		_, err = c.c.(driver.ExecerContext).ExecContext(context.Background(), text, bound)
	}
	return err
}

// close ends the connection. One that must not be used again is closed as any other.
func (c *conn) close() error {
	var errs []error
	for _, st := range c.stmts {
		errs = append(errs, st.Close())
	}
	c.stmts = nil
	return errors.Join(append(errs, c.c.Close())...)
}

// bind gives arguments the types that the driver takes. The result is valid until the next statement.
func (c *conn) bind(args []any) ([]driver.NamedValue, error) {
	c.args = c.args[:0]
	for i, arg := range args {
		v, err := value(arg)
		if err != nil {
			return nil, err
		}
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return c.args, nil
}

// value is what the driver gets for an argument, or for a pointer to one.
func value(arg any) (driver.Value, error) {
	switch v := arg.(type) {
	case nil, string, int64, bool, []byte:
		return v, nil
	case int:
		return int64(v), nil
	case *string:
		return *v, nil
	case *int64:
		return *v, nil
	case *int:
		return int64(*v), nil
	case *bool:
		return *v, nil
	case *[]byte:
		return *v, nil
	case *Status:
		return string(*v), nil
	case *Phase:
		return string(*v), nil
	case interface{ stored() any }:
		return value(v.stored())
	}
	return driver.DefaultParameterConverter.ConvertValue(arg)
}

// assign gives a value of a row to where it belongs. It must be of the type that the program writes there.
func assign(to any, v driver.Value) (err error) {
	ok := false
	switch to := to.(type) {
	case interface{ Scan(any) error }:
		return to.Scan(v)
	case *string:
		*to, ok = v.(string)
	case *int64:
		*to, ok = v.(int64)
	case *int:
		var n int64
		n, ok = v.(int64)
		*to = int(n)
	case *bool:
		var n int64
		n, ok = v.(int64)
		*to, ok = n == 1, ok && n>>1 == 0
	case *[]byte:
		if text, is := v.(string); is { // whoever reads it judges what it says
			v = []byte(text)
		}
		*to, ok = v.([]byte)
		ok = ok || v == nil
	case *Status:
		var s string
		s, ok = v.(string)
		*to = Status(s)
	case *Phase:
		var s string
		s, ok = v.(string)
		*to = Phase(s)
	}
	if !ok {
		return fmt.Errorf("it is %T instead of what %T holds", v, to)
	}
	return nil
}

// Tx is what a closure reads and writes through. It is valid only inside that closure.
type Tx struct {
	c     *conn
	now   time.Time
	wrote bool
	left  []any
}

// Leave leaves something with the [Batch] of the writer, which writes it at the end of the transaction if the closure
// succeeds.
func (tx *Tx) Leave(v any) { tx.left = append(tx.left, v) }

// Now is the transaction's time, in whole milliseconds since 1970.
func (tx *Tx) Now() int64 { return tx.now.UnixMilli() }

// exec runs a statement and returns how many rows it changed.
func (tx *Tx) exec(query string, args ...any) (int64, error) {
	res, err := tx.change(query, args)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// put runs a statement that must write so many rows. One that writes fewer without an error is kept from it by something
// in the file that the program did not make.
func (tx *Tx) put(rows int64, query string, args ...any) error {
	_, err := tx.insert(rows, query, args...)
	return err
}

// insert is put that returns the new row's integer key.
func (tx *Tx) insert(rows int64, query string, args ...any) (int64, error) {
	res, err := tx.change(query, args)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	if err == nil && n != rows {
		err = Damaged(fmt.Errorf("%d row(s) were to be written and %d were, by %.40s", rows, n, query))
	}
	if err != nil {
		return 0, err
	}
	return res.LastInsertId()
}

func (tx *Tx) change(query string, args []any) (driver.Result, error) {
	tx.wrote = true
	st, bound, err := tx.ready(query, args)
	if err != nil {
		return nil, err
	}
	res, err := st.exec.ExecContext(context.Background(), bound)
	return res, translate(err)
}

// ready prepares a statement and its arguments.
func (tx *Tx) ready(query string, args []any) (*stmt, []driver.NamedValue, error) {
	st, err := tx.c.prepare(query)
	if err != nil {
		return nil, nil, translate(err)
	}
	bound, err := tx.c.bind(args)
	return st, bound, err
}

// scanner is a row whose values must be of the types that they are read as, or the error that kept it from being read.
type scanner struct {
	row []driver.Value
	err error
}

func (s scanner) Scan(to ...any) error {
	if s.err != nil {
		return s.err
	}
	if len(to) != len(s.row) {
		return fmt.Errorf("store: a row of %d values is read as %d", len(s.row), len(to))
	}
	for i, v := range s.row {
		if err := assign(to[i], v); err != nil {
			return Damaged(err)
		}
	}
	return nil
}

// row returns the first row of a query; its error is ErrNotFound when there is none.
func (tx *Tx) row(query string, args ...any) scanner {
	first := scanner{err: ErrNotFound}
	err := tx.collect(func(s scanner) error {
		first = s
		return errEnough
	}, query, args...)
	if err != nil {
		first.err = err
	}
	return first
}

// errEnough ends [Tx.collect] without an error.
var errEnough = errors.New("no more rows are needed")

// collect runs a query and calls scan for each row, which is valid until scan returns or, of the last one, until the query
// runs again.
func (tx *Tx) collect(scan func(scanner) error, query string, args ...any) (err error) {
	st, bound, err := tx.ready(query, args)
	if err != nil {
		return err
	}
	rows, err := st.query.QueryContext(context.Background(), bound)
	if err != nil {
		return translate(err)
	}
	defer func() {
		if closed := translate(rows.Close()); err == nil {
			err = closed
		}
	}()
	if n := len(rows.Columns()); len(st.row) != n {
		st.row = make([]driver.Value, n)
	}
	for {
		switch err := rows.Next(st.row); {
		case err == io.EOF:
			return nil
		case err != nil:
			return translate(err)
		}
		if err := scan(scanner{row: st.row}); err == errEnough {
			return nil
		} else if err != nil {
			return err
		}
	}
}
