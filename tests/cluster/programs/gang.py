"""Two learners that train one linear model together, over a socket found by the names that a gang is given.

Each sums its gradient with the other's before every step, so both end with the same weights. Knows nothing of the
platform but the environment variables that every framework reads. Run by tests/cluster/test_cluster_jobs.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np

STEPS = 30
PATIENCE_SECONDS = 120.0


def resolved(name: str) -> str:
    """The address behind a name. A learner's pod may be younger than its peer's question."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        except socket.gaierror as exc:
            if time.monotonic() > deadline:
                sys.exit(f"{name} was never found: {exc}")
            time.sleep(0.2)


def meet(rank: int, master: str, port: int) -> socket.socket:
    """A connection with the other learner."""
    if rank == 0:
        with socket.create_server(("", port)) as server:
            server.settimeout(PATIENCE_SECONDS)
            return server.accept()[0]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection((resolved(master), port), 5)
        except OSError as exc:
            if time.monotonic() > deadline:
                sys.exit(f"{master}:{port} was never reached: {exc}")
            time.sleep(0.2)


def exchanged(peer: socket.socket, own: np.ndarray) -> np.ndarray:
    peer.sendall(own.tobytes())
    data = b""
    while len(data) < own.nbytes:
        part = peer.recv(own.nbytes - len(data))
        if not part:
            sys.exit("the other learner has left")
        data += part
    return np.frombuffer(data, own.dtype).reshape(own.shape)


def main() -> None:
    rank, master, port = int(os.environ["RANK"]), os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    first, _, domain = master.partition(".")
    other = f"{first.rpartition('-')[0]}-{1 - rank}.{domain}"  # the peer, by its own name in the service
    peer = meet(rank, master, port)
    peer.settimeout(PATIENCE_SECONDS)
    by_name = resolved(other)
    rows = np.loadtxt(Path(os.environ["DATA_DIR"]) / "training" / "digits.csv", delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == "train"][rank::2]
    pixels, targets = rows[:, 2:].astype(np.float64) / 16, np.eye(10)[rows[:, 1].astype(int)]
    weights = np.zeros((pixels.shape[1], 10))
    counts = exchanged(peer, np.array([float(len(pixels))]))[0] + len(pixels)
    for step in range(1, STEPS + 1):
        own = pixels.T @ (pixels @ weights - targets)
        theirs = exchanged(peer, own)
        # In the order of the ranks: floating-point sums depend on it.
        total = own + theirs if rank == 0 else theirs + own
        weights -= 0.05 * total / counts
        loss = float(((pixels @ weights - targets) ** 2).mean())
        if rank == 0:
            point = {"t": time.time(), "step": step, "metrics": {"loss": loss}}
            with open(os.environ["UPDRAFT_METRICS_FILE"], "a") as file:
                file.write(json.dumps(point) + "\n")
    met = {
        "rank": rank,
        "host": socket.gethostname(),
        "own_address": peer.getsockname()[0],
        "peer_name": other,
        "peer_by_name": by_name,
        "peer_address": peer.getpeername()[0],
        "digest": hashlib.sha256(weights.tobytes()).hexdigest(),
        "loss": loss,
    }
    (Path(os.environ["RESULT_DIR"]) / "met.json").write_text(json.dumps(met))
    print(f"rank {rank} met {other} at {met['peer_address']}; loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
