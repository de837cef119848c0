package outbound

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"syscall"
)

// Reason tells the common reasons for which a server could not be reached apart, as ": connection refused" does, and is empty
// for others. It is for messages that anybody may see: errors of the network tell addresses, also those of name servers.
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
