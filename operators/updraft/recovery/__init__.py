"""Decisions about failures: pure functions that return frozen results with a reason."""
