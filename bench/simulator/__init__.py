"""Simulate a shared cluster in virtual time, with the platform's own planner."""
