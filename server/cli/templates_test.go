package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentd/metrics"
)

func TestInitTemplates(t *testing.T) {
	t.Chdir(t.TempDir())
	want := []string{"Caddyfile", "Containerfile", "agentd.service", "alerts.yml", "dashboard.json", "nginx.conf"}
	var doc struct{ Created, Next []string }
	here(t, "init", "--templates", "deploy", "--json").decode(t, &doc)
	for i, name := range want {
		want[i] = filepath.Join("deploy", name)
	}
	if found, err := filepath.Glob("deploy/*"); err != nil || !slices.Equal(doc.Created, want) || !slices.Equal(found, want) {
		t.Errorf("init --templates created %q and says %q, want %q", found, doc.Created, want)
	}
	if entries, err := os.ReadDir("."); err != nil || len(entries) != 1 {
		t.Errorf("init --templates left %v, want the folder alone", entries)
	}
	here(t, "init", "--templates", "deploy2").want(t, 0, "agentd help deployment", "")
	here(t, "init", "site", "--templates", "deploy3").want(t, 2, "", "leave out site")

	write(t, "deploy/nginx.conf", "mine")
	if err := os.Remove("deploy/alerts.yml"); err != nil {
		t.Fatal(err)
	}
	here(t, "init", "--templates", "deploy").want(t, 1, "", "deploy/nginx.conf: exists already")
	if _, err := os.Stat("deploy/alerts.yml"); err == nil || read(t, "deploy/nginx.conf") != "mine" {
		t.Error("an init --templates that was refused changed something")
	}
}

// The dashboard and the rules name only metrics and labels of the inventory, and a scraper's own.
func TestTemplatesNameMetricsOfTheInventory(t *testing.T) {
	labels := map[string][]string{} // of the families, by the names of their samples
	inventory := metrics.New("1")
	inventory.Process()
	for line := range strings.Lines(inventory.Markdown()) {
		cells := strings.Split(line, "|")
		name := strings.Trim(cells[1], " `")
		own := regexp.MustCompile("`([a-z_]+)`").FindAllString(cells[3], -1)
		labels[name] = append(own, "`instance`", "`job`")
		switch strings.TrimSpace(cells[2]) {
		case "histogram":
			labels[name+"_bucket"] = append(slices.Clip(labels[name]), "`le`")
			labels[name+"_sum"], labels[name+"_count"] = labels[name], labels[name]
			delete(labels, name)
		case "summary":
			labels[name+"_sum"], labels[name+"_count"] = labels[name], labels[name]
			labels[name] = append(labels[name], "`quantile`")
		}
	}
	var dashboard struct {
		Panels []struct {
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "templates/dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	exprs := strings.Split(read(t, "templates/alerts.yml"), "- alert: ")[1:]
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			exprs = append(exprs, target.Expr+" "+target.LegendFormat)
		}
	}
	if len(exprs) < 30 {
		t.Fatalf("the templates have %d expressions, want at least 30", len(exprs))
	}
	sample := regexp.MustCompile(`\b(svc|process|go)_[a-z0-9_]+`)
	label := regexp.MustCompile(`([a-z_]+)=~?"|(?:by|without|ignoring) \(([a-z_, ]+)\)|\{\{(?:\s*\$labels\.)?([a-z_]+)`)
	for _, expr := range exprs {
		allowed := []string{"`instance`", "`job`"}
		for _, name := range sample.FindAllString(expr, -1) {
			own, known := labels[name]
			if !known {
				t.Errorf("the inventory has no sample %s, which this names: %s", name, expr)
			}
			allowed = append(allowed, own...)
		}
		for _, m := range label.FindAllStringSubmatch(expr, -1) {
			for word := range strings.FieldsFuncSeq(m[1]+m[2]+m[3], func(r rune) bool { return r == ',' || r == ' ' }) {
				if !slices.Contains(allowed, "`"+word+"`") {
					t.Errorf("no metric has the label %s, which this names: %s", word, expr)
				}
			}
		}
	}
}
