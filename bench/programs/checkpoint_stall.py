"""Time a training's checkpoints, in the background and synchronously in turn, and print the seconds as JSON.

python checkpoint_stall.py --megabytes 210 --rounds 9 --upload-to http://127.0.0.1:8080/bucket --folder /somewhere
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import statistics
import time
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch import nn

import updraft_learner as updraft

LAYER = 2048  # 16.8 MB of parameters each
USUAL_STEPS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=210)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--upload-to", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    layers = -(-int(options.megabytes * 1e6) // (LAYER * LAYER * 4))
    model = nn.Sequential(*(nn.Linear(LAYER, LAYER) for _ in range(layers)))
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    inputs = torch.randn(4, LAYER)

    def step() -> float:
        began = time.perf_counter()
        with torch.no_grad():
            model(inputs)
        return time.perf_counter() - began

    usual = statistics.median(step() for _ in range(USUAL_STEPS))
    checkpoints = updraft.Checkpointer(every_seconds=0, directory=options.folder / "checkpoints", keep_on_disk=2)
    number = 0

    def background() -> tuple[float, float, float]:
        """Seconds: in calls of the Checkpointer, lost in all, until the checkpoint was written."""
        nonlocal number
        number += 1
        stall = 0.0
        began, steps = time.perf_counter(), 0
        saved = False
        while not saved:
            called = time.perf_counter()
            if checkpoints.due():
                saved = checkpoints.save(model.state_dict(), number)
            stall += time.perf_counter() - called
            if not saved:
                step()
                steps += 1
        while not (options.folder / "checkpoints" / f"step-{number:010d}" / "COMPLETE").exists():
            step()
            steps += 1
        span = time.perf_counter() - began
        checkpoints.wait()
        return stall, max(stall, span - steps * usual), span

    first, _, _ = background()
    stalls, lost, writes, synchronous, parts = [], [], [], [], []
    for _ in range(options.rounds):
        stall, missing, span = background()
        stalls.append(stall)
        lost.append(missing)
        writes.append(span)
        os.sync()  # neither side pays for what the other left to the disk
        part = save_synchronously(model, options.folder / "synchronous.pt", options.upload_to)
        parts.append(part)
        synchronous.append(sum(part.values()))
        os.sync()
    print(
        json.dumps(
            {
                "bytes": size,
                "parameters": size // 4,
                "first": first,
                "background": stalls,
                "background_lost": lost,
                "write": writes,
                "synchronous": synchronous,
                "synchronous_parts": parts,
            }
        )
    )


def save_synchronously(model: nn.Module, path: Path, upload_to: str) -> dict[str, float]:
    """What a training without a background thread does before its next step; seconds of each part."""
    seconds = {}
    began = time.perf_counter()
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        seconds["write"] = time.perf_counter() - began
        began = time.perf_counter()
        os.fsync(file.fileno())
    temporary.replace(path)
    seconds["flush to disk"] = time.perf_counter() - began
    began = time.perf_counter()
    with path.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    seconds["checksum"] = time.perf_counter() - began
    began = time.perf_counter()
    upload(path, upload_to)
    seconds["upload"] = time.perf_counter() - began
    return seconds


def upload(path: Path, url: str) -> None:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    try:
        with path.open("rb") as file:
            length = {"Content-Length": str(path.stat().st_size)}
            connection.request("PUT", f"{parts.path}/{path.name}", body=file, headers=length)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise SystemExit(f"the upload was answered with {answer.status}")
    finally:
        connection.close()


if __name__ == "__main__":
    main()
