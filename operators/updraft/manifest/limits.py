"""How large a manifest may be. Each limit is far above what a job needs and keeps the judging of a hostile manifest
within about a second and a few tens of megabytes. docs/reference/manifest.md lists them; a test compares the two."""

from __future__ import annotations

TEXT_CHARACTERS = 1024 * 1024  # of the text of one manifest or of one suite
TOTAL_CHARACTERS = 2 * 1024 * 1024  # of all keys and values together, suites included
VALUES = 50_000  # keys, items and values, each counted once wherever an alias repeats it
DEPTH = 40  # mappings and lists inside each other
KEYS = 1_000  # of one mapping: params, env, promote_if, annotations and every other
ITEMS = 10_000  # of one list inside a suite or an annotation
LISTED = 100  # data sets, secrets, and_new
STRING_CHARACTERS = 5_000  # of one text; commands and values of params and env have limits of their own
ENV_CHARACTERS = 100_000  # one variable of a process has at most 128 KiB on Linux
COMMAND_BYTES = 100_000  # one argument of a process has at most 128 KiB on Linux; with its parameters filled in, too
REFERENCES = 1_000  # `${params.NAME}` in one command
REPORTED = 50  # wrong fields that one error names
NAMED = 20  # names that one error lists as allowed
COMPARED = 100  # names, of the most similar length, among which the nearest is looked for
COMPARED_CHARACTERS = 40  # of each
