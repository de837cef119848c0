package auth_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"agentd/auth"
	"agentd/server/fault"
	"agentd/server/fuzztest"
)

const (
	zeros  = "gph_live_v1_00000000000000000000000000000000000000000002CZclj"
	ones   = "gph_live_v1_yhjskwdA6OZ1AL1YmHWZWm8LLG7HjnuCA2j5rOw8Xp13sRzl1"
	rising = "gph_test_v1_003aUlTJC7tjlCTQj2uNU3MFagCXG9LRKRcwGkBIDlf1Yo7hP"
)

func TestParse(t *testing.T) {
	good := zeros[len("gph_live_v1_"):]
	long := strings.Repeat("e", 17)
	for _, tc := range []struct {
		raw, prefix string
		envs        []string
		want        string // the environment, or the reason of the refusal
	}{
		{zeros, "gph", envs, "live"},
		{ones, "gph", envs, "live"},
		{rising, "gph", envs, "test"},
		{rising, "gph", []string{"test"}, "test"},
		{"gph_e-9_v1_" + good, "gph", nil, "e-9"},
		{"a-b9_" + long[:16] + "_v1_" + good, "a-b9", nil, long[:16]},

		{"", "gph", envs, "empty"},
		{"gph", "gph", envs, "four parts"},
		{"gph_live_v1" + good, "gph", envs, "four parts"},
		{zeros[:len(zeros)-6] + "_" + zeros[len(zeros)-6:], "gph", envs, "four parts"},
		{zeros + "_", "gph", envs, "four parts"},
		{strings.Repeat("_", 100_000), "gph", envs, "four parts"},
		{zeros, "svc", envs, "prefix"},
		{"GPH" + zeros[3:], "gph", envs, "prefix"},
		{"_live_v1_" + good, "", envs, "prefix"},
		{rising, "gph", []string{"live"}, "environment"},
		{"gph__v1_" + good, "gph", envs, "environment"},
		{"gph__v1_" + good, "gph", nil, "environment"},
		{"gph__v1_" + good, "gph", []string{""}, "environment"},
		{"gph_Live_v1_" + good, "gph", nil, "environment"},
		{"gph_" + long + "_v1_" + good, "gph", nil, "environment"},
		{"gph_live_v2_" + good, "gph", envs, "version"},
		{"gph_live__" + good, "gph", envs, "version"},
		{"gph_live_v1_", "gph", envs, "too short"},
		{"gph_live_v1_" + good[1:], "gph", envs, "too short"},
		{"gph_live_v1_0" + good, "gph", envs, "too long"},
		{"gph_live_v1_-" + good[1:], "gph", envs, "not a letter or digit"},
		{"gph_live_v1_" + good[:48] + "\n", "gph", envs, "not a letter or digit"},
		{"gph_live_v1_" + good[:47] + "é", "gph", envs, "not a letter or digit"},
		{"gph_live_v1_1" + good[1:], "gph", envs, "checksum"},
		{"gph_live_v1_" + good[:48] + "k", "gph", envs, "checksum"},
	} {
		err := auth.Parse(auth.Raw(tc.raw), tc.prefix, tc.envs)
		if err != nil && (!fault.Is(err, fault.AuthInvalid) || !strings.Contains(err.Error(), tc.want)) || err == nil && !strings.HasPrefix(tc.raw, tc.prefix+"_"+tc.want+"_") {
			t.Errorf("Parse(%q, %s, %v) = %v, want %q", tc.raw, tc.prefix, tc.envs, err, tc.want)
		}
	}
}

func TestMint(t *testing.T) {
	seen := map[auth.Raw]bool{}
	for range 1000 {
		raw, err := auth.Mint("svc", "local")
		if err != nil {
			t.Fatalf("Mint(svc, local) = %v, want none", err)
		}
		if err := auth.Parse(raw, "svc", []string{"local"}); err != nil {
			t.Fatalf("Parse(Mint(svc, local)) = %v", err)
		}
		if len(raw) != len("svc_local_v1_")+49 || seen[raw] {
			t.Fatalf("Mint(svc, local) = %q, want a new one with 49 characters behind v1", string(raw))
		}
		seen[raw] = true
	}
	for _, tc := range [][2]string{{"", "live"}, {"svc", ""}, {"s_c", "live"}, {"svc", "li_ve"}, {"Svc", "live"}, {"svc", strings.Repeat("a", 17)}} {
		if raw, err := auth.Mint(tc[0], tc[1]); !fault.Is(err, fault.ConfigInvalid) || raw != "" {
			t.Errorf("Mint(%q, %q) = %v, want config-invalid", tc[0], tc[1], err)
		}
	}
}

func TestHash(t *testing.T) {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(0x20 + i)
	}
	// Computed by another implementation, over a token of another form.
	const raw = "gph_test_v1_003aUlTJC7tjlCTQj2uNU3MFagCXG9LRKRcwGkBIDlf_1Yo7hP"
	const want = "08a85ed5e6b9b69f90126be57e790fd68d083f56603516ba2b3232832b27f917"
	if got := auth.Hash(key, raw); got != want {
		t.Errorf("Hash(20..3f, %s) = %s, want %s", string(raw), got, want)
	}
}

func TestRawHidesItself(t *testing.T) {
	raw := auth.Raw(rising)
	secret := rising[len("gph_test_v1_"):]
	type holder struct{ Token auth.Raw }
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T %[1]v", "%10.3s"} {
		for _, arg := range []any{raw, &raw, holder{raw}, &holder{raw}, []auth.Raw{raw}, map[auth.Raw]int{raw: 1}} {
			got := fmt.Sprintf(verb, arg)
			if strings.Contains(got, secret[:6]) || strings.Contains(got, fmt.Sprintf("%x", secret[:6])) {
				t.Errorf("Sprintf(%s, %T) = %s, want the token hidden", verb, arg, got)
			}
		}
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("a", "token", raw)
	slog.New(slog.NewTextHandler(&log, nil)).Info("a", "token", raw, "holder", holder{raw})
	if strings.Contains(log.String(), secret[:6]) {
		t.Errorf("the log has %s, want the token hidden", log.String())
	}
	if got, err := json.Marshal(holder{raw}); err != nil || string(got) != `{"Token":"`+rising+`"}` {
		t.Errorf("Marshal() = %s, %v, want the token in full, for the answer that hands it out", got, err)
	}
}

func TestCheckPepper(t *testing.T) {
	const hex = "3f9a1c07e5b2d8644071aa93bc5e2f18d06c7b94e1a5f3820c6d9e47b1258fa3"
	for _, tc := range []struct {
		name   string
		pepper string
		want   *fault.Kind
	}{
		{"hexadecimal", hex, nil},
		{"32 bytes", hex[:32], nil},
		{"31 bytes", hex[:31], fault.PepperWeak},
		{"nothing", "", fault.PepperMissing},
		{"7 in a row", hex + "zzzzzzz", nil},
		{"8 in a row", hex + "zzzzzzzz", fault.PepperWeak},
		{"8 in a row in front", "zzzzzzzz" + hex, fault.PepperWeak},
		{"one byte", strings.Repeat("x", 64), fault.PepperWeak},
		{"8 different bytes: 3 bits", strings.Repeat("abcdefgh", 4), nil},
		{"7 different bytes: 2.8 bits", strings.Repeat("abcdefg", 5), fault.PepperWeak},
	} {
		err := auth.CheckPepper([]byte(tc.pepper))
		if (tc.want == nil) != (err == nil) || tc.want != nil && !fault.Is(err, tc.want) {
			t.Errorf("CheckPepper(%s) = %v, want %v", tc.name, err, tc.want)
		}
		opts := auth.Options{Pepper: []byte(tc.pepper), Prefix: "svc"}
		if _, got := auth.NewVerifier(opts); fmt.Sprint(got) != fmt.Sprint(err) {
			t.Errorf("NewVerifier(%s) = %v, want %v", tc.name, got, err)
		}
	}
}

func TestNamesOfTokensAreChecked(t *testing.T) {
	_, err := auth.NewVerifier(auth.Options{Pepper: pepper, Prefix: "s_c", Envs: []string{"live", "", "Test"}})
	var paths []string
	for _, is := range fault.Of(err).Issues {
		paths = append(paths, fmt.Sprint(is.Path))
	}
	want := "[auth tokenPrefix] [auth tokenEnvironments 1] [auth tokenEnvironments 2]"
	if got := strings.Join(paths, " "); !fault.Is(err, fault.ConfigInvalid) || got != want {
		t.Errorf("NewVerifier(s_c) = %v with issues at %s, want %s", err, got, want)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{zeros, ones, rising, "", "___", "gph_live_v1_", zeros[:60], zeros + "0", "gph_live_v1_é"} {
		f.Add(seed, "gph")
	}
	f.Fuzz(func(t *testing.T, text, prefix string) {
		fuzztest.Check(t, len(text)+len(prefix), func() { auth.Parse(auth.Raw(text), prefix, nil) }) //nolint:errcheck // it is looked at below
		for _, envs := range [][]string{nil, {"live", "test"}} {
			err := auth.Parse(auth.Raw(text), prefix, envs)
			parts := strings.Split(text, "_")
			if err != nil && !fault.Is(err, fault.AuthInvalid) || err == nil && (len(parts) != 4 || parts[0] != prefix || parts[2] != "v1" || len(parts[3]) != 49 ||
				envs != nil && !slices.Contains(envs, parts[1])) {
				t.Errorf("Parse(%q, %q, %v) = %v", text, prefix, envs, err)
			}
		}
	})
}
