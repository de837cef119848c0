package expr

import (
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // zones are the same on hosts that have none
)

// unfit is the error of a conversion.
func (c *frame) unfit(n *call, v any, hint string) *Error {
	e := c.fail(n.at, "%s cannot read %s.", n.f.Name, quoted(v))
	e.Hint = hint
	return e
}

func toBool(c *frame, n *call, a []any) (any, *Error) {
	text, ok := a[0].(string)
	if !ok {
		return a[0], nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return nil, c.unfit(n, text, "Give true or false.")
	}
	return b, nil
}

func toInt(c *frame, n *call, a []any) (any, *Error) {
	switch v := a[0].(type) {
	case float64:
		if !(v > -two63 && v < two63) {
			return nil, c.overflow(n.at)
		}
		return int64(v), nil
	case string:
		i, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return nil, c.unfit(n, v, "Give a whole number of up to 63 bits.")
		}
		return i, nil
	case time.Time:
		return v.Unix(), nil
	}
	return a[0], nil
}

func toDouble(c *frame, n *call, a []any) (any, *Error) {
	switch v := a[0].(type) {
	case int64:
		return float64(v), nil
	case string:
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || strings.ContainsAny(v, "_xX") {
			return nil, c.unfit(n, v, "Give a decimal number.")
		}
		return f, nil
	}
	return a[0], nil
}

func toString(c *frame, n *call, a []any) (any, *Error) {
	switch v := a[0].(type) {
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		if v-v != 0 {
			return strconv.FormatFloat(v, 'g', -1, 64), nil
		}
		return strings.TrimSuffix(string(appendDouble(nil, v)), ".0"), nil
	case time.Time:
		return timeText(v), nil
	case time.Duration:
		return durationText(v), nil
	}
	return a[0], nil
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// durationText is a duration in seconds, exactly: "3.5s".
func durationText(d time.Duration) string {
	sign, nanos := "", uint64(d)
	if d < 0 {
		sign, nanos = "-", -nanos
	}
	text := sign + strconv.FormatUint(nanos/1e9, 10)
	if fraction := nanos % 1e9; fraction > 0 {
		text += "." + strings.TrimRight(strconv.FormatUint(1e9+fraction, 10)[1:], "0")
	}
	return text + "s"
}

func toTimestamp(c *frame, n *call, a []any) (any, *Error) {
	switch v := a[0].(type) {
	case int64:
		// The time just before and just after are out of range, and those far from them would overflow.
		return c.inRange(n.at, time.Unix(max(firstTime.Unix()-1, min(v, lastTime.Unix()+1)), 0))
	case string:
		var t time.Time
		if len(v) > 100 || t.UnmarshalText([]byte(v)) != nil {
			return nil, c.unfit(n, v, "Give a time as RFC 3339 has it, such as 2026-01-31T12:00:00Z.")
		}
		return c.inRange(n.at, t)
	}
	return a[0], nil
}

func toDuration(c *frame, n *call, a []any) (any, *Error) {
	v, ok := a[0].(string)
	if !ok {
		return a[0], nil
	}
	if len(v) <= 100 {
		if d, err := time.ParseDuration(v); err == nil {
			return d, nil
		}
	}
	return nil, c.unfit(n, v, "Give numbers with units, such as 1h30m; at most 292 years.")
}

const zoneSteps = 1000 // operations for reading a zone that the evaluation has not read

// zone returns a zone by its name or offset.
func (c *frame) zone(n *call, name string) (*time.Location, *Error) {
	hint := "Give a name such as Europe/Paris, or an offset such as -02:30."
	if len(name) > 64 || name == "" || name == "Local" {
		return nil, c.unfit(n, name, hint)
	}
	if offset, ok := offsetOf(name); ok {
		return time.FixedZone(name, offset), nil
	}
	if known := c.zones[name]; known != nil {
		return known, nil
	}
	if err := c.step(n.at, zoneSteps); err != nil {
		return nil, err
	}
	read, err := time.LoadLocation(name)
	if err != nil {
		return nil, c.unfit(n, name, hint)
	}
	if c.zones == nil {
		c.zones = map[string]*time.Location{}
	}
	c.zones[name] = read
	return read, nil
}

// offsetOf reads 02:00, +02:00 or -02:30 as seconds.
func offsetOf(s string) (int, bool) {
	sign := 1
	if rest, negative := strings.CutPrefix(s, "-"); negative {
		s, sign = rest, -1
	} else {
		s = strings.TrimPrefix(s, "+")
	}
	if len(s) != 5 || s[2] != ':' || span(s[:2], digits) < 2 || span(s[3:], digits) < 2 {
		return 0, false
	}
	hours, _ := strconv.Atoi(s[:2])
	minutes, _ := strconv.Atoi(s[3:])
	return sign * (hours*3600 + minutes*60), hours < 24 && minutes < 60
}

// calendar is a part of a date in a zone.
func calendar(part func(time.Time) int) body {
	return func(c *frame, n *call, a []any) (any, *Error) {
		t := a[0].(time.Time).UTC()
		if len(a) > 1 {
			zone, err := c.zone(n, a[1].(string))
			if err != nil {
				return nil, err
			}
			t = t.In(zone)
		}
		return int64(part(t)), nil
	}
}

// clock is a part of a time of day, or how many units there are in a duration; without a unit, the milliseconds of its
// second.
func clock(unit time.Duration, part func(time.Time) int) body {
	ofTime := calendar(part)
	return func(c *frame, n *call, a []any) (any, *Error) {
		d, ok := a[0].(time.Duration)
		switch {
		case !ok:
			return ofTime(c, n, a)
		case len(a) > 1:
			return nil, c.fail(n.at, "A duration has no time zone.")
		case unit == 0:
			return int64(d % time.Second / time.Millisecond), nil
		}
		return int64(d / unit), nil
	}
}
