// Package workflow runs workflows: durable graphs of steps that call tools, agents and other workflows, sleep, wait for
// answers and ask for approvals.
package workflow
