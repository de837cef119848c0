package client

var (
	Wait      = wait
	KeepAlive = keepAlive
)
