"""Launches learners on real nodes, one for each line of the standard input, which is a job's name.

Runs in Airflow's environment, with BENCH_CODE naming the job's folder. The answer is one line: `{"pod": its name,
"began": unix seconds at which the launch began, "image": the program's}`. What `train` does before it defers, by the
platform's own functions; its code lies in the object store.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from defer_pods import SERVICES, admitted_job, core, experiment, launch_pod

from updraft.manifest import parse
from updraft.storage import Staged, look

MANIFEST = {
    "name": "first-line",
    "framework": {"name": "shell"},
    "code": ".",
    "command": "sh first_line.sh",
    "resources": {"learners": 1, "cpus": 0.5, "memory": "256MiB"},
}


def main() -> None:
    code = Path(os.environ["BENCH_CODE"])
    settings = SERVICES.settings
    staged = look(
        str(code), SERVICES.content("default"), name="code", limit_bytes=settings.code_limit_bytes, settings=settings
    )
    assert isinstance(staged, Staged)  # a folder needs no pod
    core(), experiment()
    image = settings.framework_images[parse(MANIFEST).canonical()["framework"]["name"]]
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        job = admitted_job(line.strip(), MANIFEST, staged.tree_sha256)
        began = time.time()
        pod = launch_pod(SERVICES, core(), job)
        print(json.dumps({"pod": pod, "began": began, "image": image}), flush=True)


if __name__ == "__main__":
    main()
