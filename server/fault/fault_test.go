package fault_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"agentd/server/fault"
)

func TestTableIsSound(t *testing.T) {
	code := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := map[string]bool{}
	for _, k := range fault.Kinds() {
		if !code.MatchString(k.Code) {
			t.Errorf("code %q is not kebab-case", k.Code)
		}
		if seen[k.Code] {
			t.Errorf("code %q is declared twice", k.Code)
		}
		seen[k.Code] = true
		if k.Status != 0 && (k.Status < 400 || k.Status > 599) {
			t.Errorf("%s: status %d is no error status", k.Code, k.Status)
		}
		if !strings.HasSuffix(k.When, ".") {
			t.Errorf("%s: When = %q, want a sentence", k.Code, k.When)
		}
		if r := []rune(k.Hint); len(r) == 0 || !unicode.IsUpper(r[0]) || strings.Contains(k.Hint, "\n") {
			t.Errorf("%s: Hint = %q, want one line that starts with a verb", k.Code, k.Hint)
		}
		if got := fault.ByCode(k.Code); got != k {
			t.Errorf("ByCode(%q) = %v, want the declared kind", k.Code, got)
		}
	}
}

func TestOfIsTotal(t *testing.T) {
	if got := fault.Of(nil); got != nil {
		t.Errorf("Of(nil) = %v, want nil", got)
	}
	secret := errors.New("password hunter2")
	if got := fault.Of(secret); got.Kind != fault.Internal || strings.Contains(got.Message, "hunter2") || !errors.Is(got, secret) {
		t.Errorf("Of(unknown) = %v, want internal with the cause kept out of the message", got)
	}
	typed := fault.New(fault.RunNotFound, "no run %q", "x")
	if got := fault.Of(fmt.Errorf("reading: %w", typed)); got != typed {
		t.Errorf("Of(wrapped) = %v, want the wrapped error itself", got)
	}
	if !fault.Is(fmt.Errorf("a: %w", typed), fault.RunNotFound) || fault.Is(secret, fault.RunNotFound) {
		t.Error("Is does not find the kind through wrapping")
	}
}

func TestHintOverrides(t *testing.T) {
	e := fault.New(fault.RunNotFound, "x")
	if e.NextStep() != fault.RunNotFound.Hint {
		t.Errorf("NextStep() = %q, want the kind's hint", e.NextStep())
	}
	if e.Advise("Do this."); e.NextStep() != "Do this." {
		t.Errorf("NextStep() = %q, want its own hint", e.NextStep())
	}
}
