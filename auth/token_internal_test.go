package auth

import "testing"

func TestAssemble(t *testing.T) {
	var zeros, ones, rising [secretBytes]byte
	for i := range secretBytes {
		ones[i], rising[i] = 0xff, byte(i)
	}
	for _, tc := range []struct {
		env    string
		secret [secretBytes]byte
		want   string
	}{
		{"live", zeros, "gph_live_v1_00000000000000000000000000000000000000000002CZclj"},
		{"live", ones, "gph_live_v1_yhjskwdA6OZ1AL1YmHWZWm8LLG7HjnuCA2j5rOw8Xp13sRzl1"},
		{"test", rising, "gph_test_v1_003aUlTJC7tjlCTQj2uNU3MFagCXG9LRKRcwGkBIDlf1Yo7hP"},
	} {
		if got := string(assemble("gph", tc.env, tc.secret)); got != tc.want {
			t.Errorf("assemble(gph, %s, %x) = %s, want %s", tc.env, tc.secret, got, tc.want)
		}
	}
}

func TestChecksum(t *testing.T) {
	// The check value of CRC-32/IEEE for these nine digits is cbf43926.
	crc := 0xcbf43926
	var want [checksumLength]byte
	for i := checksumLength - 1; i >= 0; i-- {
		want[i] = base62[crc%62]
		crc /= 62
	}
	if got := checksum("123456789"); got != want {
		t.Errorf("checksum(123456789) = %s, want %s", got, want)
	}
}
