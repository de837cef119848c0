package expr

import (
	"math/bits"
	"time"
)

// A kind is a set of types. A value has one; what is known of an expression before it is evaluated may be several.
type kind uint16

const (
	kindNull kind = 1 << iota
	kindBool
	kindInt
	kindDouble
	kindString
	kindList
	kindMap
	kindTimestamp
	kindDuration
	kindType

	kindNumber = kindInt | kindDouble
	kindAny    = kindType<<1 - 1
)

// Type is a type as a value. Its text is the name in expressions.
type Type string

// typeNames are the names of the types, in the order of the bits of a kind.
var typeNames = [...]Type{"null_type", "bool", "int", "double", "string", "list", "map", "google.protobuf.Timestamp", "google.protobuf.Duration", "type"}

// kindNames are those that messages use.
var kindNames = [...]string{"null", "a bool", "an int", "a double", "a string", "a list", "a map", "a timestamp", "a duration", "a type"}

// kindOf is the type of a value; 0 for what no expression can hold.
func kindOf(v any) kind {
	switch v.(type) {
	case nil:
		return kindNull
	case bool:
		return kindBool
	case int64:
		return kindInt
	case float64:
		return kindDouble
	case string:
		return kindString
	case []any:
		return kindList
	case map[string]any, map[any]any:
		return kindMap
	case time.Time:
		return kindTimestamp
	case time.Duration:
		return kindDuration
	case Type:
		return kindType
	}
	return 0
}

func (k kind) typ() Type { return typeNames[bits.TrailingZeros16(uint16(k))] }

// a names the types of a set: "an int or a double".
func (k kind) a() string {
	if k == kindAny {
		return "any value"
	}
	text := ""
	for i, name := range kindNames {
		if k&(1<<i) == 0 {
			continue
		}
		if text != "" {
			if k>>(i+1) == 0 {
				text += " or "
			} else {
				text += ", "
			}
		}
		text += name
	}
	if text == "" {
		return "a value that expressions do not know"
	}
	return text
}

// result is the type of what an operator gives for operands of one type each; 0 if it does not take them.
func result(op string, l, r kind) kind {
	both := l | r
	switch op {
	case "==", "!=":
		return kindBool
	case "<", "<=", ">", ">=":
		if both&^kindNumber == 0 || l == r && l&(kindBool|kindString|kindTimestamp|kindDuration) != 0 {
			return kindBool
		}
		return 0
	case "in":
		if r&(kindList|kindMap) != 0 {
			return kindBool
		}
		return 0
	case "%":
		return l & r & kindInt
	}
	switch {
	case both == kindInt:
		return kindInt
	case both&^kindNumber == 0:
		return kindDouble
	case op == "+" && l == r:
		return l & (kindString | kindList | kindDuration)
	case op == "-" && l == r && l&(kindTimestamp|kindDuration) != 0:
		return kindDuration
	case op == "+" && both == kindTimestamp|kindDuration, op == "-" && l == kindTimestamp && r == kindDuration:
		return kindTimestamp
	}
	return 0
}

// results are the types that an operator can give for operands of these types.
func results(op string, l, r kind) (k kind) {
	for ; l != 0; l &= l - 1 { // without its first type
		for rest := r; rest != 0; rest &= rest - 1 {
			k |= result(op, l&-l, rest&-rest)
		}
	}
	return k
}
