package config

// unsupported lists the sections and settings that have a name but no effect in this version, with what to do instead. A
// file, a variable or a flag that sets one is refused.
var unsupported = map[string]string{
	"mcpServers": reserved, "skills": reserved, "memory": reserved, "consolidator": reserved,

	"retention.consolidatorRunsDays":        "this version has no consolidator",
	"retention.dlqExhaustedDays":            "this version has no consolidator",
	"retention.memoryHistoryDays":           "this version has no memory",
	"server.stream.disconnectPolicy":        "runs continue without subscribers; abort one with POST /runs/{runId}/abort",
	"server.stream.disconnectGracePeriodMs": "runs continue without subscribers; abort one with POST /runs/{runId}/abort",
	"storage.mode":                          "one server owns the database file",
	"storage.walCheckpointIntervalMs":       "SQLite folds the write-ahead log into the database",
	"storage.encryption.cipher":             "agentd cannot encrypt the database; encrypt the disk instead",
}

const reserved = "this version does not have it yet"

// advice is what to do about a name that is not supported; "" for names that are not known at all.
func advice(path string) string {
	if instead, ok := unsupported[path]; ok {
		return "is not supported: " + instead + "; leave it out"
	}
	return ""
}
