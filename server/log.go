package server

import (
	"io"
	"log"
	"log/slog"
)

// NewLogger makes the log that observability.logger asks for: json, pretty or silent.
func NewLogger(form string, w io.Writer) *slog.Logger {
	switch form {
	case "silent":
		return slog.New(slog.DiscardHandler)
	case "pretty":
		return slog.New(slog.NewTextHandler(w, nil))
	}
	return slog.New(slog.NewJSONHandler(w, nil))
}

// errorLog carries what net/http has to say, which is about clients that misbehave.
func errorLog(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelDebug) }
