package recording

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"agentd/store"
)

const (
	folderPrefix = "agentd-replay-"
	database     = "replay.db"

	// fresh is how young a folder may be whose database nobody holds yet, because its replay is only about to begin.
	fresh = time.Minute
)

// folder makes a temporary folder for a replay. It removes those of replays that were killed before they could: they hold
// what was said in a run.
func folder() (string, error) {
	entries, _ := os.ReadDir(os.TempDir()) // then the folder cannot be made either
	for _, e := range entries {
		dir := filepath.Join(os.TempDir(), e.Name())
		if strings.HasPrefix(e.Name(), folderPrefix) && abandoned(dir, e) {
			os.RemoveAll(dir) //nolint:errcheck // the next replay tries again
		}
	}
	return os.MkdirTemp("", folderPrefix)
}

// abandoned reports whether a folder is that of a replay of this user which has ended.
func abandoned(dir string, e os.DirEntry) bool {
	info, err := e.Info()
	if err != nil || !info.IsDir() || time.Since(info.ModTime()) < fresh {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) != os.Getuid() {
		return false
	}
	_, held := store.FindHolder(filepath.Join(dir, database))
	return !held
}
