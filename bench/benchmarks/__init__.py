"""Measures the platform side by side with the same work done without it. Nothing of the platform imports this."""
