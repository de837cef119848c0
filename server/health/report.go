package health

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// A Report is the answer to a probe.
type Report struct {
	Status        string `json:"status" enum:"ok|degraded|failing" doc:"failing when any check fails, else degraded when any warns"`
	Version       string `json:"version"`
	UptimeSeconds int64  `json:"uptimeSeconds"`
	Checks        Checks `json:"checks"`
}

// Checks are what the checks found. In JSON they are an object whose members keep the order of the list.
type Checks []struct {
	Name string
	answer
}

// An answer is a result as it goes to clients: one flat JSON object.
type answer struct {
	Status Status
	object json.RawMessage
}

// MarshalJSON writes one member for each check.
func (c Checks) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, k := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, "%q:%s", k.Name, k.object) // names are letters
	}
	return append(b, '}'), nil
}

// OpenAPISchema is the JSON Schema of what MarshalJSON writes.
func (Checks) OpenAPISchema() json.RawMessage {
	return json.RawMessage(`{"type":"object","description":"What each check found, by its name.","additionalProperties":` +
		`{"type":"object","description":"Further members depend on the check.","required":["status"],"properties":{` +
		`"status":{"type":"string","enum":["ok","warn","fail"]},"message":{"type":"string"}}}}`)
}

func rollUp(version string, uptime time.Duration, found Checks) (Report, int) {
	rep := Report{Status: "ok", Version: version, UptimeSeconds: int64(max(0, uptime) / time.Second), Checks: found}
	code := http.StatusOK
	for _, c := range found {
		switch c.Status {
		case OK:
		case Warn:
			if code == http.StatusOK {
				rep.Status = "degraded"
			}
		default:
			rep.Status, code = "failing", http.StatusServiceUnavailable
		}
	}
	return rep, code
}

func failed(message string) answer { return encode(Result{Status: Fail, Message: message}) }

// encode flattens a result. Where that cannot be done the check counts as failed: a report without the numbers that
// somebody watches should not look healthy.
func encode(r Result) answer {
	if r.Status != OK && r.Status != Warn {
		r.Status = Fail
	}
	head, _ := json.Marshal(struct {
		Status  Status `json:"status"`
		Message string `json:"message,omitempty"`
	}{r.Status, r.Message})
	fields, err := json.Marshal(r.Fields)
	var members map[string]json.RawMessage
	if err != nil || json.Unmarshal(fields, &members) != nil || members["status"] != nil || members["message"] != nil {
		return failed("The check gave fields that cannot stand beside its status.")
	}
	if len(members) > 0 {
		head = append(append(head[:len(head)-1], ','), fields[1:]...)
	}
	return answer{r.Status, head}
}
