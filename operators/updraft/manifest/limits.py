"""Set limits on a manifest's size. Each is far above what a job needs, and bounds the time and memory for checking a
hostile manifest to about a second and a few tens of megabytes. docs/reference/manifest.md lists them; a test
compares."""

from __future__ import annotations

TEXT_CHARACTERS = 1024 * 1024  # in the text of one manifest or of one suite
TOTAL_CHARACTERS = 2 * 1024 * 1024  # in all keys and values together, suites included
VALUES = 50_000  # keys, items and values, each counted once wherever an alias repeats it
DEPTH = 40  # of nested mappings and lists
KEYS = 1_000  # in one mapping: params, env, promote_if, annotations and every other
ITEMS = 10_000  # in one list inside a suite or an annotation
LISTED = 100  # data sets, secrets, and_new
STRING_CHARACTERS = 5_000  # in one text; commands and values of params and env have limits of their own
ENV_CHARACTERS = 100_000  # one variable of a process has at most 128 KiB on Linux
COMMAND_BYTES = 100_000  # one argument of a process has at most 128 KiB on Linux; counted with its parameters filled in
REFERENCES = 1_000  # `${params.NAME}` in one command
REPORTED = 50  # wrong fields that one error reports
NAMED = 20  # names that one error lists as allowed
COMPARED = 100  # names, those of the most similar length, that are searched for the nearest one
COMPARED_CHARACTERS = 40  # of each of these names
