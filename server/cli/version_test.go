package cli_test

import (
	"crypto/sha256"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// The bill lists each module of the binary once, with the sum that go.sum has for it.
func TestSBOM(t *testing.T) {
	t.Parallel()
	var bill struct {
		BOMFormat string
		Metadata  struct {
			Component struct{ Name, Version string }
		}
		Components []struct {
			Name, Version, PURL string
			Properties          []struct{ Name, Value string }
		}
	}
	s := spawn(t, t.TempDir(), nil, nil, "version", "--sbom").wait().want(t, 0, "", "")
	s.decode(t, &bill)
	if bill.BOMFormat != "CycloneDX" || bill.Metadata.Component.Name != "agentd" || bill.Metadata.Component.Version == "" {
		t.Errorf("version --sbom = %+v, want the program's bill", bill)
	}
	listed, err := exec.CommandContext(t.Context(), "go", "version", "-m", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)\t(\S+)$`).FindAllStringSubmatch(string(listed), -1)
	if std := bill.Components[0]; std.Name != "std" || "go"+std.Version != runtime.Version() || len(bill.Components) != 1+len(deps) || len(deps) < 3 {
		t.Fatalf("version --sbom has %d components, the first is %v; want std and %d modules", len(bill.Components), std, len(deps))
	}
	sums := read(t, "../../go.sum")
	for i, dep := range deps {
		got := bill.Components[i+1]
		if got.Name != dep[1] || got.Version != dep[2] || got.PURL != "pkg:golang/"+dep[1]+"@"+dep[2] || len(got.Properties) != 1 {
			t.Errorf("component %d = %+v, want %s", i+1, got, dep[0])
		} else if line := dep[1] + " " + dep[2] + " " + got.Properties[0].Value + "\n"; got.Properties[0].Name != "go:sum" || !strings.Contains(sums, line) {
			t.Errorf("go.sum lacks the line %s", line)
		}
	}
}

func TestVerifySelf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := strings.Repeat("0", 64)
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(read(t, binary))))
	verify := func(list string) said {
		return spawn(t, dir, nil, nil, "version", "--verify", write(t, filepath.Join(dir, "SHA256SUMS"), list)).wait()
	}
	for _, list := range []string{
		sum + "  agentd-linux-amd64\n",
		other + "  other\n" + strings.ToUpper(sum) + " *agentd-linux-amd64\r\n",
	} {
		verify(list).want(t, 0, sum, "").want(t, 0, "agentd-linux-amd64\n", "")
	}
	for _, list := range []string{"", other + "  agentd\n", sum[:63] + "  agentd\n", "agentd  " + sum + "\n"} {
		verify(list).want(t, 1, "does not list this binary", "")
	}
	verify(strings.Repeat("x", 1<<20)+"\n"+sum+"  agentd\n").want(t, 1, "", "is larger than")
	spawn(t, dir, nil, nil, "version", "--verify", "nothing").wait().want(t, 1, "", "Check the name")
	spawn(t, dir, nil, nil, "version", "--verify", "SHA256SUMS", "--sbom").wait().want(t, 2, "", "cannot be combined")
}
