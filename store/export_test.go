package store

import "errors"

// Statements are those that an open database, or the file of a chain, has prepared.
func Statements(db any) map[string]bool {
	d, ok := db.(*DB)
	if !ok {
		d = db.(*Audit).db
	}
	all := map[string]bool{}
	for query := range d.writer.c.stmts {
		all[query] = true
	}
	for range readers {
		c := <-d.pool
		for query := range c.stmts {
			all[query] = true
		}
		defer func() { d.pool <- c }()
	}
	return all
}

// Sums are the sum of each schema that the source has and the one of what its migrations make.
func Sums() (all [][2]string, err error) {
	for folder, make := range madeOnce {
		objects, failed := make()
		err = errors.Join(err, failed)
		all = append(all, [2]string{madeSums[folder], sum(objects)})
	}
	return all, err
}
