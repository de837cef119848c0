package workflow

import (
	"fmt"
	"testing"

	"agentd/server/graph"
)

// TestDefinitionsAreBounded: threads under many older definitions do not keep the graphs of all in memory.
func TestDefinitionsAreBounded(t *testing.T) {
	var d definitions
	for i := range 1000 {
		g := &graph.Graph{Digest: fmt.Append(nil, i)}
		if d.put(g); d.get(g.Digest) != g || len(d.all) > 256 {
			t.Fatalf("after %d definitions, %d are kept", i+1, len(d.all))
		}
	}
}
