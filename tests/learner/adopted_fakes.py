"""A pod whose program writes checkpoints by itself, and a clock that only the test moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from learner.sidecar_fakes import CONFIG

from updraft_learner import checkpoint_format as fmt
from updraft_learner.contract import PodConfig
from updraft_learner.pod import PodPaths
from updraft_learner.record.disk import PodDisk
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.adopted import QUIET_SECONDS, Adopter

GLOB = replace(CONFIG, adopt="output/checkpoint-*")


class Watch:
    """A pod's adopter, with a clock that only the test moves."""

    def __init__(self, paths: PodPaths, config: PodConfig = GLOB, disk: PodDisk | None = None) -> None:
        paths.code.mkdir(exist_ok=True)
        self.paths, self.seconds, self.warnings = paths, 0.0, Warnings()
        self.adopter = Adopter(config, paths, self.warnings, disk=disk or PodDisk(), clock=lambda: self.seconds)

    def quiet(self, last: bool = False) -> None:
        """See the folders once, and again when nothing has changed for long enough."""
        self.adopter.poll()
        self.seconds += QUIET_SECONDS
        self.adopter.poll(last)

    def steps(self) -> list[int]:
        return [fmt.step_of(path) for path in reversed(fmt.complete_checkpoints(self.paths.checkpoints))]

    def said(self) -> str:
        return "\n".join(self.warnings.texts())


def write(paths: PodPaths, path: str, files: dict[str, str]) -> Path:
    folder = paths.code / path
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def copied(paths: PodPaths, step: int) -> dict[str, str]:
    return content(paths.checkpoints / fmt.step_name(step) / "adopted")
