"""An elastic job whose steps take as long as real ones would, for tests on any cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from system_helpers import shell_job

PROGRAM = """
import json, os, time
import updraft_learner as updraft

# A step takes as long as a real one would whose learners share the batch: 0.4 ms for each sample.
batch, learners = int(os.environ["UPDRAFT_BATCH"]), updraft.world_size()
checkpoints = updraft.checkpoint_dir()
stored = sorted(checkpoints.glob("step-*/state.json"))
state = json.loads(stored[-1].read_text()) if stored else {"step": 0, "samples": 0, "sizes": []}
state["sizes"].append([learners, batch, float(os.environ["UPDRAFT_LR_SCALE"])])

def save():
    if updraft.rank() == 0:
        name = f"step-{state['step']:010d}"
        (checkpoints / (".tmp-" + name)).mkdir()
        (checkpoints / (".tmp-" + name) / "state.json").write_text(json.dumps(state))
        (checkpoints / (".tmp-" + name)).rename(checkpoints / name)
        (checkpoints / name / "COMPLETE").touch()

saved = time.monotonic()
while state["samples"] < int(os.environ["SAMPLES"]):
    time.sleep(0.0004 * batch / learners + 0.01)
    state["step"] += 1
    state["samples"] += batch
    if updraft.rank() == 0:
        updraft.log_metrics({"samples": state["samples"]}, step=state["step"])
    if updraft.stop_requested():
        save()
        updraft.preempted_exit()
    if time.monotonic() - saved > 2:
        save()
        saved = time.monotonic()
if updraft.rank() == 0:
    (updraft.result_dir() / "sizes.json").write_text(json.dumps(state))
"""


def elastic_job(name: str, samples: int, resources: dict[str, Any], **elastic: Any) -> dict[str, Any]:
    """Return a manifest; its code is the folder `name`, which `written` makes. It ends after so many samples."""
    limits = {"min_learners": 1, "max_learners": 4, "min_batch": 32, "max_batch": 256, "lr": "linear", **elastic}
    manifest = shell_job(name, "python train.py", code=name, resources=resources)
    manifest["image"] = "updraft/sidecar:0.1"
    manifest["env"] = {"SAMPLES": str(samples)}
    del manifest["framework"]
    return {**manifest, "elastic": limits, "checkpoints": {"every": "2s", "keep": {"latest": 2}}}


def written(folder: Path, name: str) -> Path:
    """Write the code of the job `name`; return the folder that it is in."""
    (folder / name).mkdir()
    (folder / name / "train.py").write_text(PROGRAM)
    return folder


def trained(files: list[Path]) -> dict[str, Any]:
    """Return what the job says of itself in its results: samples, and the size and the batch of each attempt."""
    (found,) = [json.loads(path.read_text()) for path in files if path.name == "sizes.json"]
    return dict(found)
