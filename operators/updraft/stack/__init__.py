"""The embedded stack: everything of the platform as processes of one machine.

`updraft.stack.control` starts, stops and describes it; the CLI and `python -m updraft.stack` call that.
Nothing is imported here, so that a single module can be used without the others.
"""
