// Package agent drives the runs of agents on the kernel of package run: agents that a model drives, with tools, policy and
// hand-offs, and agents whose program is somebody else's. It also shows what runs of agents look like from outside.
package agent
