package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"agentd/server/message"
)

// ClockName is the name of the tool that [NewClock] makes.
const ClockName = "clock"

// NewClock makes a tool that returns the current time: {zone?} gives {time, weekday, unix, zone}. Zones are those that the host
// has; UTC always works.
func NewClock() Tool {
	return Func(Spec{
		Name:        ClockName,
		Description: "Tells the current date and time, in UTC or in an IANA time zone such as Europe/Paris.",
		Input: json.RawMessage(`{"type":"object","properties":{"zone":{"type":"string","maxLength":64,` +
			`"description":"IANA name of a time zone; UTC when absent"}},"additionalProperties":false}`),
		SideEffect: ReadOnly,
	}, now)
}

func now(_ context.Context, call Call) (Result, error) {
	var args struct{ Zone string }
	if err := json.Unmarshal(call.Args, &args); err != nil {
		return Result{}, invalidInput(err.Error(), "")
	}
	zone, err := time.LoadLocation(args.Zone)
	if err != nil || args.Zone == "Local" { // which is no IANA name: what it means is the host's affair
		return Result{}, invalidInput(fmt.Sprintf("There is no time zone %.80q.", args.Zone),
			"Use an IANA name such as America/New_York, or UTC.")
	}
	at := time.Now().In(zone)
	return JSON(struct {
		Time    string `json:"time"` // RFC 3339
		Weekday string `json:"weekday"`
		Unix    int64  `json:"unix"`
		Zone    string `json:"zone"`
	}{at.Format(time.RFC3339), at.Weekday().String(), at.Unix(), zone.String()})
}

func invalidInput(text, hint string) *Error {
	return &Error{Kind: message.InvalidInput, Message: text, Hint: hint}
}
