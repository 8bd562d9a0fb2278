"""Train for as many samples as the params say; a step is a sleep of the length that the params' speed gives.

Writes the times of the first and of the last step of all attempts to `times.txt` in the results.
"""

from __future__ import annotations

import json
import time

import updraft_learner as updraft

config = updraft.params()
learners = updraft.world_size()
share = updraft.batch_size(0)
batch = share * learners
exchange = config["sync"] + config["sync_per_learner"] * (learners - 2) if learners > 1 else 0.0
seconds = config["fixed"] + config["per_sample"] * share + exchange

folder = updraft.checkpoint_dir()
stored = sorted(folder.glob("step-*/state.json"))
state = json.loads(stored[-1].read_text()) if stored else {"step": 0, "samples": 0, "first": time.time()}


def save() -> None:
    if updraft.rank() == 0:
        name = f"step-{state['step']:010d}"
        if (folder / name).exists():
            return
        hidden = folder / f".tmp-{name}"
        hidden.mkdir()
        (hidden / "state.json").write_text(json.dumps(state))
        hidden.rename(folder / name)
        (folder / name / "COMPLETE").touch()


due = time.monotonic()
saved = due
while state["samples"] < config["samples"]:
    due += seconds
    time.sleep(max(0.0, due - time.monotonic()))
    state["step"] += 1
    state["samples"] += batch
    if updraft.rank() == 0:
        updraft.log_metrics({"samples": state["samples"]}, step=state["step"])
    if updraft.stop_requested():
        save()
        updraft.preempted_exit()
    if time.monotonic() - saved > 5:
        save()
        saved = time.monotonic()
if updraft.rank() == 0:
    (updraft.result_dir() / "times.txt").write_text(f"{state['first']} {time.time()}\n")
