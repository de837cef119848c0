package outbound

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"syscall"
)

// Reason is why a server could not be reached, such as ": connection refused", and empty for rare reasons. It is for messages
// that anybody may see: errors of the network show addresses, also those of name servers.
func Reason(err error) string {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, nameless := errors.AsType[*net.DNSError](err)
	switch {
	case untrusted:
		return ": its certificate is not trusted"
	case nameless:
		return ": its name cannot be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return ": connection refused"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ": it did not answer in time"
	}
	return ""
}
