package store

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"
)

// Every table of the schema belongs to something, and a new one must say to what.
func TestOwnedTables(t *testing.T) {
	db, err := Open(t.Context(), Options{Path: filepath.Join(t.TempDir(), "data.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	declared, columns := map[string]bool{}, map[string]string{}
	for _, o := range ownedTables {
		declared[o.table], columns[o.table] = true, o.by
	}
	var tables []string
	err = db.View(t.Context(), func(tx *Tx) error {
		return tx.collect(func(s scanner) error {
			var name string
			err := s.Scan(&name)
			tables = append(tables, name)
			return err
		}, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name")
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(declared)); !slices.Equal(got, tables) {
		t.Errorf("ownedTables declares %q, want the tables of the schema: %q", got, tables)
	}
	for table, column := range columns {
		if column == "" {
			continue
		}
		err := db.View(t.Context(), func(tx *Tx) error {
			return tx.collect(func(s scanner) error { return nil }, "SELECT "+column+" FROM "+table+" LIMIT 0")
		})
		if err != nil {
			t.Errorf("the table %s has no column %s: %v", table, column, err)
		}
	}
}
