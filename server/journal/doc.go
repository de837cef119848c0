// Package journal reads what is stored of a run: its record, the calls that it makes with what was decided on them, and its
// events, which it rebuilds from the rows that they refer to.
package journal
