"""Decide about models over time: which version is the champion, and which one was before it. Pure functions."""
