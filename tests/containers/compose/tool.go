//go:build tools

// Package tool makes Docker Compose a requirement of this module, so that go.sum holds the digest of its sources.
package tool

import _ "github.com/docker/compose/v2/cmd"
