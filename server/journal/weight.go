package journal

import "agentd/server/message"

// Weight is about how many bytes of memory a record takes, or the event that shows all of it.
func (rec *Record) Weight() int {
	n := 1000 + 500*(len(rec.Steps)+len(rec.Handoffs)) + rec.Past.weight()
	for i := range rec.Messages {
		e := &rec.Messages[i]
		if n += weight(&e.Message); e.Outcome != nil { // it is shown twice
			n += 500 + 2*len(e.Outcome.Output)
		}
	}
	for _, v := range rec.Slots {
		n += len(v)
	}
	for _, k := range rec.Parked {
		n += k.Record.Weight()
	}
	return n
}

func weight(m *message.Message) int {
	n := 300 + len(m.Content.Text)
	for _, p := range m.Content.Parts {
		n += 200 + len(p.Text) + len(p.Meta)
		if b, _ := p.Media(); b != nil {
			n += 2*len(b.Data) + len(b.Href)
		}
	}
	for _, c := range m.ToolCalls {
		n += 100 + 2*len(c.Args)
	}
	return n
}
