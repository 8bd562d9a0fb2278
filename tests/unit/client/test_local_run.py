"""A job's program as processes of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from updraft.client.local_run import LocalRun, run_local, with_local_data
from updraft.exceptions import DataError, RefusedError
from updraft.manifest import Manifest, ManifestError, parse

PROGRAM = """
import json, os, pathlib
result = pathlib.Path(os.environ["RESULT_DIR"])
checkpoints = pathlib.Path(os.environ["CHECKPOINT_DIR"])
earlier = sorted(path.name for path in checkpoints.iterdir())
if os.environ["RANK"] == "0":  # the folder is one for all learners
    (checkpoints / f"step-{len(earlier)}").mkdir()
names = ("RANK", "WORLD_SIZE", "UPDRAFT_ATTEMPT", "MLFLOW_TRACKING_URI", "TOKEN", "MINE")
seen = {name: os.environ.get(name) for name in names}
seen["params"] = json.load(open(os.environ["UPDRAFT_PARAMS_FILE"]))
data = pathlib.Path(os.environ["DATA_DIR"])
seen["data"] = sorted(str(path.relative_to(data)) for path in data.glob("**/*.csv"))
seen["earlier"] = earlier
import updraft_learner
updraft_learner.log_metrics({"loss": 0.5}, step=1)
(result / f"seen-{seen['RANK']}.json").write_text(json.dumps(seen))
"""


def manifest(base: Path, **fields: Any) -> Manifest:
    code = base / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(PROGRAM)
    command = f"{sys.executable} train.py"
    return parse({"name": "mine", "framework": {"name": "shell"}, "code": "code", "command": command, **fields}, base)


def run(base: Path, job: Manifest, **options: Any) -> LocalRun:
    return run_local(job, base, base / "run", {"PATH": os.environ["PATH"], "TOKEN": "abc"}, **options)


def seen(ended: LocalRun, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ended.folder / "result" / f"seen-{rank}.json").read_text())
    return found


def test_the_program_finds_what_it_finds_on_the_platform(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.csv").touch()
    (tmp_path / "b.csv").touch()
    job = manifest(
        tmp_path,
        params={"epochs": 3},
        env={"MINE": "yes"},
        secrets=[{"name": "hub", "as": "TOKEN"}],
        data=[{"source": "rows", "as": "training"}, {"source": "b.csv", "as": "other"}],
    )
    ended = run(tmp_path, job)
    found = seen(ended)
    assert (ended.exit_code, ended.results, ended.metrics) == (0, ["seen-0.json"], {"loss": 0.5})
    assert (found["RANK"], found["WORLD_SIZE"], found["UPDRAFT_ATTEMPT"]) == ("0", "1", "1")
    assert (found["TOKEN"], found["MINE"], found["params"]) == ("abc", "yes", {"epochs": 3})
    assert found["data"] == ["other/b.csv", "training/a.csv"]
    assert found["MLFLOW_TRACKING_URI"].startswith("sqlite:///")
    assert ended.tracking_uri is None


def test_a_second_run_finds_the_checkpoints_of_the_first(tmp_path: Path) -> None:
    job = manifest(tmp_path)
    run(tmp_path, job)
    second = seen(run(tmp_path, job))
    assert (second["UPDRAFT_ATTEMPT"], second["earlier"]) == ("2", ["step-0"])
    fresh = seen(run(tmp_path, job, fresh=True))
    assert (fresh["UPDRAFT_ATTEMPT"], fresh["earlier"]) == ("1", [])


def test_learners_are_processes_with_a_rank_each(tmp_path: Path) -> None:
    ended = run(tmp_path, manifest(tmp_path, resources={"learners": 2}))
    assert ended.exit_code == 0
    assert [seen(ended, rank)["WORLD_SIZE"] for rank in (0, 1)] == ["2", "2"]


def test_the_exit_code_is_the_programs(tmp_path: Path) -> None:
    assert run(tmp_path, manifest(tmp_path, command="exit 7")).exit_code == 7


def test_sigterm_reaches_the_program_and_ends_the_run(tmp_path: Path) -> None:
    command = "trap 'echo stopped; exit 75' TERM; echo ready; while :; do sleep 0.05; done"
    manifest(tmp_path, command="true")
    text = json.dumps({"name": "mine", "framework": {"name": "shell"}, "code": "code", "command": command})
    script = (
        "import os, pathlib, sys\nfrom updraft.client.local_run import run_local\nfrom updraft.manifest import parse\n"
        "base = pathlib.Path(sys.argv[1])\nimport json\n"
        "sys.exit(run_local(parse(json.loads(sys.argv[2]), base), base, base / 'run', os.environ).exit_code)"
    )
    starter = [sys.executable, "-c", script, str(tmp_path), text]
    with subprocess.Popen(starter, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert "stopped" in process.communicate(timeout=30)[0]
        assert process.returncode == 75


def test_what_needs_the_platform_is_named(tmp_path: Path) -> None:
    data = [{"source": "s3://datasets/digits/", "as": "training", "secret": "bucket"}]
    job = manifest(tmp_path, data=data)
    with pytest.raises(ManifestError, match="data") as caught:
        run(tmp_path, job)
    assert "give --data training=FOLDER" in caught.value.fields[0].text
    changed = with_local_data(job, {"training": str(tmp_path / "code")})
    assert run(tmp_path, changed).exit_code == 0
    with pytest.raises(DataError, match="no data set of this `as`; it has training"):
        with_local_data(job, {"other": "."})
    with pytest.raises(DataError, match="does not exist"):
        with_local_data(job, {"training": "missing"})


def test_a_secret_that_is_not_set_here_is_named(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="HUB_TOKEN is not set here"):
        run(tmp_path, manifest(tmp_path, secrets=[{"name": "hub", "as": "HUB_TOKEN"}]))


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    for fresh in (False, True):
        with pytest.raises(RefusedError, match="holds something else"):
            run(tmp_path, manifest(tmp_path), fresh=fresh)
    assert (tmp_path / "run" / "thesis.tex").exists()


def test_a_folder_inside_the_code_is_refused(tmp_path: Path) -> None:
    job = manifest(tmp_path)
    with pytest.raises(RefusedError, match="is in the folder of the code"):
        run_local(job, tmp_path, tmp_path / "code" / "out", {"PATH": os.environ["PATH"]})
    assert not (tmp_path / "code" / "out").exists()
    ended = run_local(job, tmp_path, tmp_path / "code" / "updraft-run" / "mine", {"PATH": os.environ["PATH"]})
    assert not (ended.folder / "code" / "updraft-run").exists()
