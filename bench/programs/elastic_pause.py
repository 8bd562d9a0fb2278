"""The program of the figure `elastic_pause`, in the PyTorch learner's environment.

`python elastic_pause.py drive JSON` runs one training that learners join, leave and are killed in, and the same by
torchrun, which stops all and starts again from a checkpoint. It prints what the survivors saw, as one JSON line.
`... learner JSON`, `... restarted JSON` and `... steady JSON` are its processes.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SAMPLES = 8192
INPUTS, CLASSES = 64, 10
BYTES_OF_A_PARAMETER = 12  # with the two averages of Adam
WARM_STEPS = 10  # between two events
RATE = 1e-4
MOST_LOSSES = 2000  # steps of which the losses are compared
WAIT_SECONDS = 180.0


def width(megabytes: float) -> int:
    """Return the width of a hidden layer, with which model and optimizer have about so many megabytes."""
    parameters = megabytes * 1e6 / BYTES_OF_A_PARAMETER
    half = (INPUTS + CLASSES + 2) / 2
    return int((half * half + parameters) ** 0.5 - half)


def made(megabytes: float) -> tuple[Any, Any, Any, Any]:
    """Return model, optimizer, inputs [SAMPLES, INPUTS] and labels [SAMPLES]: the same in each process."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    wide = width(megabytes)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(INPUTS, wide), torch.nn.ReLU(), torch.nn.Linear(wide, wide), torch.nn.ReLU()),
        torch.nn.Linear(wide, CLASSES),
    )
    inputs = torch.randn(SAMPLES, INPUTS)
    labels = (inputs @ torch.randn(INPUTS, CLASSES)).argmax(1)
    return model, torch.optim.Adam(model.parameters(), lr=RATE), inputs, labels


def learner(given: dict[str, Any]) -> None:
    """Be one learner of the elastic training."""
    import torch

    from updraft_learner import elastic

    model, optimizer, inputs, labels = made(given["megabytes"])
    loss_of = torch.nn.functional.cross_entropy
    log = Path(given["log"]).open("w", buffering=1)  # noqa: SIM115 - until the process ends
    training = elastic.init(
        model,
        optimizer,
        range(SAMPLES),
        batch=given["batch"],
        epochs=given.get("epochs", 10_000),
        collate=torch.tensor,
        warm_up=lambda: loss_of(model(inputs[:8]), labels[:8]),
        hang_seconds=20.0,
    )
    log.write(json.dumps({"prepared": time.monotonic()}) + "\n")
    signal.signal(signal.SIGTERM, lambda *_: training.leave())
    seen = 0
    for ids in training:
        loss = loss_of(model(inputs[ids]), labels[ids])
        done = training.step(loss)
        line = {"at": time.monotonic(), "step": training.steps, "learners": training.learners, "done": done}
        log.write(json.dumps({**line, "generation": training.generation, "loss": loss.item()}) + "\n")
        for change in training.changes[seen:]:
            log.write(json.dumps({"change": vars(change)}) + "\n")
        seen = len(training.changes)
    log.write(json.dumps({"outcome": training.outcome}) + "\n")


def restarted(given: dict[str, Any]) -> None:
    """Be one worker of torchrun: resume from the checkpoint, and save one when asked to end."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer, inputs, labels = made(given["megabytes"])
    checkpoint, step = Path(given["checkpoint"]), 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    replica = DistributedDataParallel(model)
    log = Path(given["log"]).open("a", buffering=1) if rank == 0 else None  # noqa: SIM115 - until the process ends
    share = given["batch"] // world
    while True:
        begin = (step * given["batch"] + rank * share) % (SAMPLES - share)
        loss = torch.nn.functional.cross_entropy(replica(inputs[begin : begin + share]), labels[begin : begin + share])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        asked = torch.tensor([len(stop)])
        dist.all_reduce(asked, op=dist.ReduceOp.MAX)
        if log:
            log.write(json.dumps({"at": time.monotonic(), "step": step, "learners": world, "pid": os.getpid()}) + "\n")
        if asked or step % WARM_STEPS == 0:
            if rank == 0:
                new = checkpoint.with_suffix(".new")
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
                new.replace(checkpoint)
            dist.barrier()
        if asked:
            return


def steady(given: dict[str, Any]) -> None:
    """Be one of two learners that nothing happens to: elastic blocks and blocks of DistributedDataParallel in turn.

    What elasticity adds is what is neither the program's nor part of any data-parallel step: the clock runs from the
    request for a batch to its arrival, and in `step`. It stops in the backward pass, the exchange of gradients, the
    optimizer, and while samples are drawn and fetched.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from updraft_learner import elastic
    from updraft_learner.elastic.exchange import GradientExchange

    model, optimizer, inputs, labels = made(given["megabytes"])
    other, other_optimizer, _, _ = made(given["megabytes"])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{given['port']}", rank=given["rank"], world_size=2)
    replica = DistributedDataParallel(other)
    loss_of = torch.nn.functional.cross_entropy
    training = elastic.init(
        model,
        optimizer,
        range(SAMPLES),
        batch=given["batch"],
        epochs=1 + given["steps"] * given["batch"] // SAMPLES,
        collate=torch.tensor,
        ahead=0,  # otherwise threads fetch while the clock runs
    )
    theirs = 0.0

    def excluded(act: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*values: Any, **named: Any) -> Any:
            nonlocal theirs
            began = time.perf_counter()
            try:
                return act(*values, **named)
            finally:
                theirs += time.perf_counter() - began

        return timed

    GradientExchange.add = excluded(GradientExchange.add)  # type: ignore[method-assign]
    GradientExchange.sum = excluded(GradientExchange.sum)  # type: ignore[method-assign]
    optimizer.step, optimizer.zero_grad = excluded(optimizer.step), excluded(optimizer.zero_grad)
    training._samples.get = excluded(training._samples.get)  # type: ignore[method-assign]
    torch.Tensor.backward = excluded(torch.Tensor.backward)  # type: ignore[method-assign]
    own, steps, blocks = 0.0, 0, []
    batches = iter(training)
    ids = next(batches)
    training.step(loss_of(model(inputs[ids]), labels[ids]))  # the group has formed
    share = given["batch"] // 2
    while steps < given["steps"]:
        began_block = time.perf_counter()
        for _ in range(given["block"]):
            began, theirs = time.perf_counter(), 0.0
            ids = next(batches)
            own += time.perf_counter() - began - theirs
            loss = loss_of(model(inputs[ids]), labels[ids])
            began, theirs = time.perf_counter(), 0.0
            training.step(loss)
            own += time.perf_counter() - began - theirs
            steps += 1
        middle = time.perf_counter()
        for number in range(given["other_block"]):
            ids = torch.arange(share) + number
            loss_of(replica(inputs[ids]), labels[ids]).backward()
            other_optimizer.step()
            other_optimizer.zero_grad()
        ended = time.perf_counter()
        blocks.append([(middle - began_block) / given["block"], (ended - middle) / given["other_block"]])
    Path(given["log"]).write_text(json.dumps({"own": own, "steps": steps, "blocks": blocks}))
    dist.barrier()
    os._exit(0)


class Run:
    """The processes of one training, in a folder."""

    def __init__(self, folder: Path, megabytes: float, batch: int) -> None:
        self.folder, self._given = folder, {"megabytes": megabytes, "batch": batch}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._errors = (folder / "errors.txt").open("ab")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def start(self, name: str, command: list[str], **environment: str) -> None:
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-W", "ignore", *command],
            env=os.environ | environment,
            stdout=self._errors,
            stderr=self._errors,
            start_new_session=True,
        )

    def start_learner(self, name: str) -> None:
        given = {**self._given, "log": str(self.folder / f"{name}.jsonl")}
        alive = str(self.folder / f"{name}.alive")
        environment = {"UPDRAFT_ELASTIC": f"127.0.0.1:{self.port}", "UPDRAFT_ALIVE_FILE": alive}
        self.start(name, [__file__, "learner", json.dumps(given)], **environment)
        self.start(f"{name}-alive", ["-m", "updraft_learner.elastic.alive", alive])  # what its sidecar does

    def kill(self, name: str) -> None:
        """Send SIGKILL, and wait until the process is gone: only then are its connections closed."""
        self.processes[name].kill()
        self.processes[name].wait()

    def start_torchrun(self, name: str, learners: int) -> None:
        given = {**self._given, "log": str(self.folder / "torchrun.jsonl")}
        given["checkpoint"] = str(self.folder / "checkpoint.pt")
        self.start(
            name,
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(learners)]
            + [__file__, "restarted", json.dumps(given)],
        )

    def lines(self, name: str) -> list[dict[str, Any]]:
        try:
            text = (self.folder / f"{name}.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def steps(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines(name) if "at" in line]

    def wait(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not look():
            if time.monotonic() > deadline:
                raise SystemExit(f"{what} did not happen: {(self.folder / 'errors.txt').read_text()[-2000:]}")
            time.sleep(0.05)

    def wait_for_steps(self, name: str, learners: int, after: float) -> None:
        """Wait until so many learners have done some steps together since a time."""

        def enough() -> bool:
            done = [each for each in self.steps(name) if each["learners"] == learners and each["at"] > after]
            return len(done) >= WARM_STEPS

        self.wait(f"{learners} learners train", enough)

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._errors.close()


@contextmanager
def running(megabytes: float, batch: int) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(prefix="updraft-elastic-") as folder:
        run = Run(Path(folder), megabytes, batch)
        try:
            yield run
        finally:
            run.end()


def pause(steps: list[dict[str, Any]], asked: float, learners: int) -> tuple[float, float]:
    """Return for how long the steps stopped, beyond the time of a step, and how long a step took before: seconds.

    The pause is from the last committed step of the group at the time `asked` to the first step of a group of so many
    learners that had not been done before.
    """

    def group_of(line: dict[str, Any]) -> int:
        return int(line.get("pid") or line["generation"])

    done = [each for each in steps if each.get("done", True)]
    group = group_of([each for each in done if each["at"] <= asked][-1])
    old = [each for each in done if group_of(each) == group]
    new = [
        each
        for each in done
        if group_of(each) != group
        and each["at"] > asked
        and each["step"] > old[-1]["step"]
        and each["learners"] == learners
    ]
    return new[0]["at"] - old[-1]["at"] - _usual(new[: WARM_STEPS + 1]), _usual(old[-WARM_STEPS - 1 :])


def _usual(steps: list[dict[str, Any]]) -> float:
    return statistics.median(b["at"] - a["at"] for a, b in itertools.pairwise(steps))


def newest_change(run: Run, name: str, learners: int, after: int) -> dict[str, Any]:
    changes = [line["change"] for line in run.lines(name) if "change" in line]
    return next(each for each in changes if each["learners"] == learners and each["generation"] > after)


def elastic_rounds(megabytes: float, batch: int, rounds: int) -> dict[str, Any]:
    """Return what learner a saw, which stays: by event the pauses and their parts."""
    found: dict[str, list[dict[str, float]]] = {"scale-out": [], "scale-in": [], "crash": []}
    with running(megabytes, batch) as run:
        run.start(
            "coordinator",
            ["-m", "updraft_learner.elastic.coordinator", "--port", str(run.port), "--first", "2"]
            + ["--state", str(run.folder / "state.json"), "--hang-seconds", "20", "--settle-seconds", "2"],
        )
        run.start_learner("a")
        run.start_learner("b")
        run.wait_for_steps("a", 2, 0.0)

        def event(kind: str, learners: int, act: Callable[[], None], newcomer: str = "") -> None:
            generation = run.steps("a")[-1]["generation"]
            asked = time.monotonic()
            act()
            acted = time.monotonic()
            run.wait_for_steps("a", learners, asked)
            seconds, step = pause(run.steps("a"), asked, learners)
            change = newest_change(run, "a", learners, generation)
            row = {
                "pause": seconds,
                "step": step,
                "topology": change["meet_seconds"],
                "transfer": change["copy_seconds"],
            }
            row["copied_bytes"] = change["copied_bytes"]
            switched = next(each["at"] for each in run.steps("a") if each["generation"] == change["generation"])
            if newcomer:
                prepared = run.lines(newcomer)[0]["prepared"]
                row |= {"prepare": prepared - asked, "switch": switched - prepared}
            else:
                row["switch"] = switched - asked
            if kind == "crash":
                row["death"] = acted - asked
            found[kind].append(row)

        for number in range(rounds):
            joining, killed = f"join-{number}", f"kill-{number}"
            event("scale-out", 3, lambda name=joining: run.start_learner(name), joining)  # type: ignore[misc]
            event("scale-in", 2, lambda name=joining: run.processes[name].send_signal(signal.SIGTERM))  # type: ignore[misc]
            event("scale-out", 3, lambda name=killed: run.start_learner(name), killed)  # type: ignore[misc]
            event("crash", 2, lambda name=killed: run.kill(name))  # type: ignore[misc]
        losses = {each["step"]: each["loss"] for each in run.steps("b") if each["done"]}
    return {"events": found, "losses": losses}


def torchrun_rounds(megabytes: float, batch: int, rounds: int) -> dict[str, list[float]]:
    """Return the pauses of stop and resume, by event."""
    found: dict[str, list[float]] = {"scale-out": [], "scale-in": [], "crash": []}
    with running(megabytes, batch) as run:
        run.start_torchrun("torchrun", 2)
        run.wait_for_steps("torchrun", 2, 0.0)
        for _ in range(rounds):
            for kind, learners in (("scale-out", 3), ("scale-in", 2)):
                asked = time.monotonic()
                run.processes["torchrun"].send_signal(signal.SIGTERM)
                run.processes["torchrun"].wait()
                run.start_torchrun("torchrun", learners)
                run.wait_for_steps("torchrun", learners, asked)
                found[kind].append(pause(run.steps("torchrun"), asked, learners)[0])
            asked = time.monotonic()
            os.kill(run.steps("torchrun")[-1]["pid"], signal.SIGKILL)
            run.processes["torchrun"].wait()
            run.start_torchrun("torchrun", 2)
            run.wait("torchrun goes on", lambda asked=asked: _new_steps(run, asked) >= WARM_STEPS)  # type: ignore[misc]
            found["crash"].append(pause(run.steps("torchrun"), asked, 2)[0])
    return found


def _new_steps(run: Run, asked: float) -> int:
    """Return how many steps were done since then that no process had done before."""
    most = max((each["step"] for each in run.steps("torchrun") if each["at"] <= asked), default=0)
    return sum(each["step"] > most + 1 for each in run.steps("torchrun"))


def undisturbed_losses(megabytes: float, batch: int, steps: int) -> dict[int, float]:
    with running(megabytes, batch) as run:
        run._given["epochs"] = -(-steps * batch // SAMPLES)
        run.start(
            "coordinator",
            ["-m", "updraft_learner.elastic.coordinator", "--port", str(run.port), "--first", "2"]
            + ["--state", str(run.folder / "state.json")],
        )
        run.start_learner("a")
        run.start_learner("b")
        run.wait("it ends", lambda: any("outcome" in line for line in run.lines("b")))
        return {each["step"]: each["loss"] for each in run.steps("b")}


def steady_cost(megabytes: float, batch: int, steps: int, block: int, other_block: int) -> dict[str, Any]:
    with running(megabytes, batch) as run:
        run.start(
            "coordinator",
            ["-m", "updraft_learner.elastic.coordinator", "--port", str(run.port), "--first", "2"]
            + ["--state", str(run.folder / "state.json")],
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(2):
            given = {"megabytes": megabytes, "batch": batch, "steps": steps, "rank": rank}
            given |= {"block": block, "other_block": other_block, "port": port, "log": str(run.folder / f"{rank}.json")}
            address = {"UPDRAFT_ELASTIC": f"127.0.0.1:{run.port}"}
            run.start(str(rank), [__file__, "steady", json.dumps(given)], **address)
        for rank in range(2):
            if run.processes[str(rank)].wait():
                raise SystemExit(f"a learner failed: {(run.folder / 'errors.txt').read_text()[-2000:]}")
        found: dict[str, Any] = json.loads((run.folder / "0.json").read_text())
    return found


def drive(given: dict[str, Any]) -> None:
    result: dict[str, Any] = {"sizes": [], "steady": steady_cost(**given["steady"])}
    for case in given["sizes"]:
        elastic = elastic_rounds(case["megabytes"], case["batch"], given["rounds"])
        restart = torchrun_rounds(case["megabytes"], case["batch"], given["restarts"])
        if case is given["sizes"][0]:
            most = min(max(elastic["losses"]), MOST_LOSSES)
            plain = undisturbed_losses(case["megabytes"], case["batch"], most)
            result["losses"] = [[elastic["losses"][step], plain[step]] for step in elastic["losses"] if step in plain]
        result["sizes"].append({**case, "elastic": elastic["events"], "torchrun": restart})
        print(json.dumps(result["sizes"][-1]), file=sys.stderr, flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    roles = {"drive": drive, "learner": learner, "restarted": restarted, "steady": steady}
    roles[sys.argv[1]](json.loads(sys.argv[2]))
