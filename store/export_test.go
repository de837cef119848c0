package store

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
