"""docs/reference/public-programs.md: each public program of tests/public, with its manifest and its patch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "public"
HEAD = """\
<!-- Made by `make reference`; change tests/public, not this page. -->
# Programs of public repositories

These programs are fetched from their repositories, changed by a patch, and trained with a manifest. `make test-public`
does this with each of them: it kills the learner after the first checkpoint, and checks that the job goes on from a
checkpoint, completes and registers a model. [The guide](../howto/public-programs.md) says how to run one by hand.

Patches and manifests are in [`tests/public`](../../tests/public); `+` counts the lines that a patch adds.

| program | framework | learners | + | its checkpoint |
|---|---|---|---|---|
"""


def page() -> str:
    programs = {path.parent.name: path.read_text() for path in sorted(FOLDER.glob("*/manifest.yaml"))}
    rows = [_row(name, yaml.safe_load(text)) for name, text in programs.items()]
    return HEAD + "".join(rows) + "".join(_section(name, text) for name, text in programs.items())


def _patch(name: str) -> str:
    return (FOLDER / name / "patch.diff").read_text()


def _row(name: str, manifest: dict[str, Any]) -> str:
    added = sum(line.startswith("+") and not line.startswith("+++") for line in _patch(name).splitlines())
    adopted = manifest["checkpoints"].get("from")
    checkpoint = f"its own file `{adopted}`" if adopted else "saved by the patch"
    resources = manifest["resources"]
    learners = str(resources["learners"])
    if "processes_per_learner" in resources:
        learners += f" of {resources['processes_per_learner']} processes"
    framework = manifest["framework"]["name"]
    return f"| [{name}](#{name}) | {framework} | {learners} | {added} | {checkpoint} |\n"


def _section(name: str, text: str) -> str:
    source = yaml.safe_load(text)["annotations"]
    address = f"{source['repository']}/tree/{source['commit']}"
    if source["folder"] != ".":
        address += f"/{source['folder']}"
    return f"\n## {name}\n\n<{address}>\n\n```yaml\n{text.rstrip()}\n```\n\n```diff\n{_patch(name).rstrip()}\n```\n"
