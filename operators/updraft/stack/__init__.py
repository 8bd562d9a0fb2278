"""The embedded stack: all parts of the platform as processes of one machine.

`updraft.stack.control` starts, stops and describes it; the CLI and `python -m updraft.stack` call that.
This module imports nothing, so that a single module of the package can be used without the others.
"""
