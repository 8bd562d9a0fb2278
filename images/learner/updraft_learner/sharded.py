"""Save checkpoints of a state that is spread over ranks (FSDP, DTensor): every rank saves and restores its shards.

Each learner's disk gets a part of the checkpoint, in the format of `checkpoint_format`. The platform joins the parts in
the store, and lays the whole checkpoint out for every learner that resumes, however many learners there are then. This
module makes the ranks agree: whether to save, whether all saves succeeded, from which checkpoint to resume.
`updraft_learner.torch` writes the shards; it is imported when a checkpointer is made.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsFloat

from updraft_learner import checkpoint_format as fmt
from updraft_learner import runtime
from updraft_learner.checkpoint import (
    KEEP_ON_DISK,
    SHARDED_FILE,
    Background,
    LastSave,
    OnDisk,
    clean_up,
    interval,
    torch_part,
    warn,
)
from updraft_learner.checkpoint_format import Checkpoint, CheckpointError, CorruptCheckpoint
from updraft_learner.checkpoint_names import STORED_FILE
from updraft_learner.contract import CHECKPOINT_LOCAL_MARKER

LOOK_SECONDS = 1.0  # `due` asks the other ranks about once in this time, not at every step
STORE_SECONDS = 600.0  # `due` waits at most this long until the last checkpoint is stored before it allows the next one


class ShardedCheckpointer:
    """Save and restore a state of which each rank holds a part.

    Every rank makes one, after `init_process_group`, and makes every call on it at the same place of the program. All
    ranks get the same answer.

    The ranks of one learner share its directory; outside the platform all ranks do, unless their LEARNER_ID differs.

    Args:
        every_seconds: How often `due()` returns True; by default the manifest's `checkpoints.every`, else 60.
        directory: By default CHECKPOINT_DIR.
        keep_on_disk: How many of its own newest checkpoints stay in the directory.
        clock: Returns monotonic seconds.
        background: Runs the saves; by default one of its own.

    Raises:
        CheckpointError: PyTorch is missing, or there are several learners and no process group.
    """

    def __init__(
        self,
        every_seconds: float | None = None,
        *,
        directory: Path | None = None,
        keep_on_disk: int = KEEP_ON_DISK,
        clock: Callable[[], float] = time.monotonic,
        background: Background | None = None,
    ) -> None:
        self.every_seconds = interval(every_seconds)
        self._on_disk = OnDisk(keep_on_disk)
        self.directory = directory if directory is not None else runtime.checkpoint_dir()
        self._torch = torch_part()
        self._ranks = self._torch.Ranks(os.environ.get("LEARNER_ID") or str(self.directory.resolve()))
        if runtime.world_size() > 1 and not self._ranks.distributed:
            raise CheckpointError(
                f"WORLD_SIZE is {runtime.world_size()}, but there is no process group: call "
                "torch.distributed.init_process_group() before ShardedCheckpointer()"
            )
        self._buffers = self._torch.ShardBuffers()
        self._background = background or Background()
        self._last = LastSave(self._background)
        self._known_steps: set[int] = set()
        self._clock = clock
        self._last_seconds = self._looked_seconds = clock()
        self._calls, self._calls_to_look = 0, 1
        clean_up(self.directory, self._ranks.rank)

    def due(self) -> bool:
        """Return, on all ranks at the same call, whether to save now.

        That is when rank 0's clock says that it is time, and every rank has written and every learner's sidecar has
        stored the checkpoint before: with a slow store, learners would otherwise store different checkpoints, and none
        would be complete. After ten minutes without that, the answer is yes anyway. Most calls cost nothing: the ranks
        agree about once a second, at a call agreed on before.
        """
        self._calls += 1
        if self._calls < self._calls_to_look:
            return False
        answers = self._ranks.gather((self._background.running(), self._waits_for_store(), *self._look()))
        late_seconds, calls_to_look = answers[0][2:]
        running, waiting = any(one[0] for one in answers), any(one[1] for one in answers)
        yes: bool = late_seconds >= (STORE_SECONDS if waiting else 0) and not running
        self._calls, self._calls_to_look = 0, 1 if yes else calls_to_look
        return yes

    def save(
        self,
        state: Mapping[str, Any],
        step: int,
        metrics: Mapping[str, SupportsFloat] | None = None,
        block: bool = False,
    ) -> bool:
        """Begin a checkpoint of `state` at `step`; returns whether that step is, or will be, saved.

        Args:
            state: as for `Checkpointer.save`, and DTensors; `torch.distributed.checkpoint.state_dict` makes it.
            step: what the training resumes from. A step is saved once.
            metrics: kept beside the checkpoint; rank 0's count.
            block: wait until the checkpoint is complete on all ranks, and raise if it fails. Use it for the last one.

        While another save runs on any rank, nothing is begun unless `block` is set.

        Raises:
            TypeError: the state holds something that could not be restored.
            CheckpointError: the ranks are at different steps; with `block`, the checkpoint could not be written.
        """
        if block:
            self.wait()
        said = {
            "step": int(step),
            "running": self._background.running(),
            "save": secrets.token_hex(8),
            "created": fmt.now(),
            "metrics": {name: float(value) for name, value in (metrics or {}).items()},
        }
        answers = self._ranks.gather(said)
        if len({answer["step"] for answer in answers}) > 1:
            steps = ", ".join(f"{answer['step']} on rank {rank}" for rank, answer in enumerate(answers))
            raise CheckpointError(f"ranks save different steps ({steps}); call save() at the same step on all ranks")
        if any(answer["running"] for answer in answers):
            return False
        if step in self._known_steps:
            return True
        first = answers[0]
        checkpoint = Checkpoint(
            path=self.directory / fmt.step_name(step),
            step=int(step),
            metrics=first["metrics"],
            attempt=runtime.attempt(),
            rank=self._ranks.leader_rank,
            created=first["created"],
            part=self._ranks.part,
            parts=self._ranks.parts,
            save=first["save"],
        )
        copied = self._buffers.copy(state)
        self._last_seconds = self._clock()
        self._background.start(lambda: self._finish(copied, checkpoint))
        if block:
            self.wait()
        return True

    def save_when_due(
        self,
        state: Callable[[], Mapping[str, Any]],
        step: int,
        metrics: Mapping[str, SupportsFloat] | None = None,
    ) -> bool:
        """Call this at each step or epoch, on every rank: saves if it is time, and the last one when the program ends.

        The program's end counts unless an exception or a signal ended it. It needs the process group: a program that
        destroys that saves before, with `block=True`. Returns whether a save was begun, the same on all ranks.

        Args:
            state: a function that returns what `save` takes; called on all ranks when a checkpoint is written, so at
                the end too.
            step, metrics: as for `save`.

        Raises:
            TypeError, CheckpointError: as `save`.
        """
        self._last.offer(lambda: self._save_last(state, step, metrics))
        return self.due() and self.save(state(), step, metrics)

    def _save_last(
        self, state: Callable[[], Mapping[str, Any]], step: int, metrics: Mapping[str, SupportsFloat] | None
    ) -> None:
        if not self._ranks.connected():
            if step not in self._known_steps:
                raise CheckpointError(
                    f"the process group was destroyed before step {step} was saved; let the program end with it, or "
                    "call save(..., block=True) before destroy_process_group()"
                )
        elif not all(self._ranks.gather(step in self._known_steps)):  # a state may take long to collect
            self.save(state(), step, metrics, block=True)

    def wait(self) -> None:
        """Wait for a running save; call it before the process group is destroyed.

        Raises:
            CheckpointError: the last save failed, on any rank, and this was not raised before.
        """
        self._background.wait()

    def restore(self, into: dict[str, Any]) -> tuple[dict[str, Any], int] | None:
        """Fill `into`, a state of the program as it is now, and return it with its step; None when training starts from
        nothing.

        There may be more or fewer ranks than when the checkpoint was saved. The newest checkpoint that is complete and
        intact for every rank is used; a corrupt one is renamed to `.bad-...`.

        Raises:
            CheckpointError: ranks have checkpoints, but none that all have; or it does not fit `into`.

        Example:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            restored = checkpoints.restore({"model": model_state, "optimizer": optimizer_state})
            if restored is not None:
                state, step = restored
                set_state_dict(
                    model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
                )
        """
        checkpoint = self._agree_on_one()
        if checkpoint is None:
            return None
        if not all(self._ranks.gather((checkpoint / SHARDED_FILE).is_file())):
            raise CheckpointError(
                f"checkpoint {checkpoint.name} holds no sharded state; use Checkpointer() to read what that has saved"
            )
        try:
            self._torch.read_shards(into, checkpoint, self._ranks)
        except Exception as exc:
            raise CheckpointError(f"checkpoint {checkpoint.name} does not load: {exc}") from exc
        step = fmt.step_of(checkpoint)
        self._known_steps.add(step)
        return into, step

    def _look(self) -> tuple[float, int]:
        """Return how many seconds late the next save is, and after how many calls to ask again. Rank 0's answer
        counts."""
        now = self._clock()
        late_seconds = now - self._last_seconds - self.every_seconds
        seconds_per_call = max((now - self._looked_seconds) / max(self._calls, 1), 1e-9)
        self._looked_seconds = now
        wait_seconds = min(-late_seconds, LOOK_SECONDS) if late_seconds < 0 else LOOK_SECONDS
        # At most twice as many calls: the first steps say little about later ones.
        return late_seconds, max(1, min(2 * self._calls, int(wait_seconds / seconds_per_call)))

    def _waits_for_store(self) -> bool:
        """Return whether this learner's sidecar, if there is one, has not stored its newest part yet."""
        newest = self._on_disk.newest
        if not self._ranks.leader or newest is None or not newest.exists():  # stored and removed, or quarantined
            return False
        try:
            stored = json.loads((Path(os.environ.get("JOB_STATE_DIR") or "") / STORED_FILE).read_text())
        except (OSError, ValueError):
            return False
        return newest.name not in stored

    def _finish(self, state: Any, checkpoint: Checkpoint) -> None:
        """Write the checkpoint in the background, and complete it only when every rank has written its part."""
        name = f"{fmt.TEMPORARY_PREFIX}r{checkpoint.rank}-{checkpoint.path.name}-{checkpoint.save}"
        temporary = self.directory / name
        leader = self._ranks.leader
        try:
            problem = self._write(state, temporary, checkpoint)
            problems = [text for text in self._ranks.gather(problem, behind=True) if text is not None]
            if problems:
                raise CheckpointError(problems[0])
            if leader:
                fmt.complete(checkpoint.path)
                self._on_disk.add(checkpoint.path)
            self._known_steps.add(checkpoint.step)
        except Exception as exc:  # noqa: BLE001 - outermost line of the thread: a failed save must not end the training
            if leader:
                shutil.rmtree(temporary, ignore_errors=True)
                if not (checkpoint.path / CHECKPOINT_LOCAL_MARKER).exists():
                    fmt.remove(checkpoint.path)
            self._background.failed(checkpoint.step, exc)

    def _write(self, state: Any, temporary: Path, checkpoint: Checkpoint) -> str | None:
        """Write this rank's shards and, on the leader, the learner's part; return what went wrong, or None."""
        try:
            self._torch.write_shards(state, temporary, self._ranks)
            if self._ranks.leader:
                fmt.settle(temporary, replace(checkpoint, files=fmt.hash_folder(temporary)))
        except CheckpointError as exc:
            return str(exc)
        except Exception as exc:  # noqa: BLE001 - reported to the other ranks, which wait for this rank's answer
            reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
            return f"rank {self._ranks.rank}: {reason}"
        return None

    def _agree_on_one(self) -> Path | None:
        """Return the newest checkpoint that is whole and intact in the directory of every learner."""
        leader = self._ranks.leader
        while True:
            found = fmt.complete_checkpoints(self.directory) if leader else []
            whole = [path.name for path in found if fmt.is_whole(path)]
            answers = [said for said in self._ranks.gather((leader, whole, len(found))) if said[0]]
            common: set[str] = set.intersection(*(set(names) for _, names, _ in answers))
            if not common:
                if not any(count for _, _, count in answers):
                    return None
                had = "; ".join(", ".join(names) or "none" for _, names, _ in answers)
                raise CheckpointError(
                    f"no checkpoint is whole in every learner's directory; whole there: {had}. A checkpoint that was "
                    "saved in parts is brought together when the platform launches the learners again"
                )
            newest = self.directory / max(common, key=lambda name: fmt.step_of(Path(name)))
            if all(self._ranks.gather(not leader or _intact(newest))):
                return newest


def _intact(path: Path) -> bool:
    try:
        fmt.read(path)
    except CorruptCheckpoint as exc:
        warn(f"{exc}; it is set aside as {fmt.quarantine(path).name} and the one before is used")
        return False
    return True
