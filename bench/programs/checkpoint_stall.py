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
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import nn

import updraft_learner as updraft

LAYER = 2048  # 16.8 MB of parameters each
USUAL_STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=210)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--optimizer", action="store_true", help="train with AdamW, and save its state too")
    parser.add_argument("--upload-to", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    copies = 3 if options.optimizer else 1  # AdamW keeps two numbers for each parameter
    layers = -(-int(options.megabytes * 1e6) // (LAYER * LAYER * 4 * copies))
    model = nn.Sequential(*(nn.Linear(LAYER, LAYER) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if options.optimizer else None
    inputs = torch.randn(4, LAYER)

    def step() -> float:
        began = time.perf_counter()
        if optimizer is None:
            with torch.no_grad():
                model(inputs)
        else:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        return time.perf_counter() - began

    def state() -> dict[str, Any]:
        return model.state_dict() if optimizer is None else {"model": model.state_dict(), "opt": optimizer.state_dict()}

    def usual() -> float:
        return statistics.median(step() for _ in range(USUAL_STEPS))

    usual()
    size = copies * sum(p.numel() * p.element_size() for p in model.parameters())
    checkpoints = updraft.Checkpointer(every_seconds=0, directory=options.folder / "checkpoints", keep_on_disk=2)
    number = 0

    def background() -> tuple[float, float, float]:
        """Return seconds: in calls of the Checkpointer, lost in all, and until the checkpoint was written."""
        nonlocal number
        number += 1
        stall = 0.0
        pace = usual()  # right before, and right after: a machine that is slower by then is no cost of the checkpoint
        began, steps = time.perf_counter(), 0
        saved = False
        while not saved:
            called = time.perf_counter()
            if checkpoints.due():
                saved = checkpoints.save(state(), number)
            stall += time.perf_counter() - called
            if not saved:
                step()
                steps += 1
        while not (options.folder / "checkpoints" / f"step-{number:010d}" / "COMPLETE").exists():
            step()
            steps += 1
        span = time.perf_counter() - began
        checkpoints.wait()
        pace = (pace + usual()) / 2
        return stall, max(stall, span - steps * pace), span

    first, _, _ = background()
    stalls, lost, writes, synchronous, parts = [], [], [], [], []
    for _ in range(options.rounds):
        stall, missing, span = background()
        stalls.append(stall)
        lost.append(missing)
        writes.append(span)
        os.sync()  # neither side pays for what the other left to the disk
        part = save_synchronously(state(), options.folder / "synchronous.pt", options.upload_to)
        parts.append(part)
        synchronous.append(sum(part.values()))
        os.sync()
    print(
        json.dumps(
            {
                "bytes": size,
                "parameters": size // 4 // copies,
                "first": first,
                "background": stalls,
                "background_lost": lost,
                "write": writes,
                "synchronous": synchronous,
                "synchronous_parts": parts,
            }
        )
    )


def save_synchronously(state: dict[str, Any], path: Path, upload_to: str) -> dict[str, float]:
    """Save as a training without a background thread does before its next step; return the seconds of each part."""
    seconds = {}
    began = time.perf_counter()
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
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
