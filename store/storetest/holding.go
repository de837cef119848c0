package storetest

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
)

// Holding returns the tables of a database that hold a text, in any column.
func Holding(tb testing.TB, path, text string) (tables []string) {
	tb.Helper()
	db := open(tb, "file:"+path+"?mode=ro")
	defer db.Close()
	for _, name := range column(tb, db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name") {
		var where []string
		for _, c := range column(tb, db, "SELECT name FROM pragma_table_info('"+name+"')") {
			where = append(where, fmt.Sprintf("instr(CAST(%q AS BLOB), CAST(?1 AS BLOB))", c))
		}
		n := 0
		if err := db.QueryRow("SELECT count(*) FROM "+name+" WHERE "+strings.Join(where, " OR "), text).Scan(&n); err != nil {
			tb.Fatal(err)
		}
		if n > 0 {
			tables = append(tables, name)
		}
	}
	return tables
}

func column(tb testing.TB, db *sql.DB, query string) (all []string) {
	tb.Helper()
	rows, err := db.Query(query)
	if err != nil {
		tb.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var v string
		if err := rows.Scan(&v); err != nil {
			tb.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}
