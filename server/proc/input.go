package proc

import (
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
)

// inputFile makes a file that holds content and that a program can only read to its end: sealed memory or, where the
// system has none, an unlinked file.
func inputFile(content []byte) (*os.File, error) {
	if f, err := memoryFile(content); err == nil {
		return f, nil
	}
	return unlinkedFile(content)
}

// unlinkedFile makes a file of this user alone that loses its name before it gets content.
func unlinkedFile(content []byte) (*os.File, error) {
	f, err := os.CreateTemp("", "stdin-*")
	if err != nil {
		return nil, err
	}
	if err = os.Remove(f.Name()); err == nil {
		_, err = f.WriteAt(content, 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// fill writes to a pipe without a reader as much as the pipe holds, and returns the rest.
func fill(pipe *os.File, content []byte) []byte {
	const usual = 64 << 10 // bytes that a pipe holds at first; fewer where its user has very many
	if len(content) > usual {
		growPipe(pipe, len(content))
	}
	raw, err := pipe.SyscallConn()
	if err != nil {
		return content
	}
	raw.Write(func(fd uintptr) bool {
		for len(content) > 0 {
			n, err := syscall.Write(int(fd), content) // the descriptor does not block
			if err != nil {
				break
			}
			content = content[n:]
		}
		return true
	})
	return content
}

// closeListed makes programs not inherit the descriptors that a folder lists.
func closeListed(folder string) {
	list, err := os.ReadDir(folder)
	if err != nil {
		return
	}
	for _, entry := range list {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

// usual are the variables that programs commonly need to work at all.
var usual = []string{"PATH", "HOME", "LANG", "TZ", "TMPDIR"}

// Environ makes a whole environment, sorted by name: the server's variables that inherit names and, unless clean is set, PATH,
// HOME, LANG, TZ and TMPDIR, as far as the server has them. The variables of env take precedence.
func Environ(env map[string]string, inherit []string, clean bool) []string {
	if !clean {
		inherit = slices.Concat(usual, inherit)
	}
	all := map[string]string{}
	for _, name := range inherit {
		if value, ok := os.LookupEnv(name); ok {
			all[name] = value
		}
	}
	maps.Copy(all, env)
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}
