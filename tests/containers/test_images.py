"""Each image is built, started and asked for its version; nothing secret is in its layers; a program trains in one."""

from __future__ import annotations

import json
import os
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from containers import build, recipes
from containers.engine import Engine
from containers.places import Places
from containers.recipes import Recipe

from updraft.kubernetes import objects
from updraft.kubernetes.gate import gated
from updraft_learner import contract
from updraft_learner.contract import Keys, LearnerDone, LearnerStatus, PodConfig
from updraft_learner.pod import S3Credentials
from updraft_learner.store import ObjectStore, open_store
from updraft_learner.trees import scan

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]
LARGE = os.environ.get("UPDRAFT_TEST_LARGE_IMAGES", "")
HARDENED = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp:mode=1777")
ACCESS, SECRET = "UDTEST", "a-key-for-this-test-only"
JOB_GROUP = str(objects.JOB_GID)
# A name in a layer that tells of a secret, or of where the image was made.
SUSPICIOUS = re.compile(
    r"(^|/)(extra\.crt|ca-bundle\.pem|\.netrc|pip\.conf|uv\.toml|\.git-credentials|id_rsa|\.env|credentials\.json)$"
    r"|^(ca|src)/|^root/\.cache/"
)
PROGRAM = """
import json, os, pathlib
import numpy as np
from sklearn.linear_model import LogisticRegression
rows = np.loadtxt(os.environ["DATA_DIR"] + "/points.csv", delimiter=",")
model = LogisticRegression().fit(rows[:, :2], rows[:, 2])
accuracy = model.score(rows[:, :2], rows[:, 2])
result = pathlib.Path(os.environ["RESULT_DIR"], "model.json")
result.write_text(json.dumps({"accuracy": accuracy, "uid": os.getuid(), "weights": model.coef_.tolist()}))
result.chmod(0o600)
with open(os.environ["UPDRAFT_METRICS_FILE"], "a") as metrics:
    metrics.write(json.dumps({"t": 1.0, "step": 1, "metrics": {"accuracy": accuracy}}) + "\\n")
folder = pathlib.Path(os.environ["CHECKPOINT_DIR"], "step-1")
folder.mkdir()
(folder / "weights.json").write_text(json.dumps(model.coef_.tolist()))
(folder / "COMPLETE").touch()
print("trained", accuracy)
"""


def every(recipe: Recipe) -> object:
    reason = "SKIPPED: hundreds of megabytes; set UPDRAFT_TEST_LARGE_IMAGES=1"
    return pytest.param(recipe, id=recipe.short, marks=[pytest.mark.skipif(recipe.large and not LARGE, reason=reason)])


@pytest.fixture
def built(request: pytest.FixtureRequest, engine: Engine, places: Places, images: dict[str, build.Built]) -> Recipe:
    recipe: Recipe = request.param
    if recipe.large:
        build.build(engine, places, [recipe], build.warn)
    return recipe


@pytest.mark.parametrize("built", [every(r) for r in recipes.RECIPES], indirect=True)
def test_an_image_starts_without_root_and_tells_the_locked_version(engine: Engine, built: Recipe) -> None:
    said = engine.docker("run", "--rm", "--network", "none", *HARDENED, built.name, *built.version).stdout
    if built.package is not None:
        assert recipes.locked_version(built.package) in said
    else:
        assert re.search(r"\d+\.\d+", said)
    uid = engine.docker("run", "--rm", "--network", "none", *HARDENED, "--entrypoint", "id", built.name, "-u").stdout
    assert int(uid) > 0
    labels = json.loads(engine.docker("image", "inspect", built.name, "--format", "{{json .Config.Labels}}").stdout)
    assert labels["org.opencontainers.image.version"] == build.project_version()


@pytest.mark.parametrize("built", [every(r) for r in recipes.RECIPES], indirect=True)
def test_no_layer_has_a_file_of_the_build_and_no_line_of_its_history_an_argument_that_is_private(
    engine: Engine, built: Recipe, tmp_path: Path
) -> None:
    """By name, of every image; test_image_leaks looks for what two of them were given byte for byte."""
    archive = tmp_path / "image.tar"
    engine.docker("save", "--output", str(archive), built.name)
    names, texts = [], [engine.docker("history", "--no-trunc", built.name).stdout]
    with tarfile.open(archive) as image:
        manifest = json.load(member(image, "manifest.json"))[0]
        texts.append(member(image, manifest["Config"]).read().decode())
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=member(image, layer)) as tar:
                names += [entry.name.removeprefix("./") for entry in tar]
    archive.unlink()
    assert [n for n in names if SUSPICIOUS.search(n)] == []
    private = (*build.REGISTRIES, *build.PROXIES, "SSL_CERT_FILE")
    assert not [name for name in private for text in texts if name in text]


def member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    content = archive.extractfile(name)
    assert content is not None
    return content


def test_images_are_small(images: dict[str, build.Built]) -> None:
    """Above their base, in bytes: twice what was measured would be a mistake."""
    limits = {
        "sidecar": 60,
        "data": 700,
        "learner-sklearn": 600,
        "s3": 170,
        "postgres": 400,
        "mlflow": 1200,
        "localnode": 1400,
        "airflow": 2000,
    }
    over = {
        b.name: b.own_bytes
        for r in recipes.RECIPES
        if (b := images.get(r.name)) and b.own_bytes > limits.get(r.short, 1000) * 10**6
    }
    assert over == {}


def test_an_image_without_python_has_none(engine: Engine, images: dict[str, build.Built]) -> None:
    asked = engine.docker("run", "--rm", recipes.SHELL.name, "sh", "-c", "command -v python python3 || echo none")
    assert asked.stdout.strip() == "none"


@dataclass(frozen=True)
class Pod:
    """Containers that share a volume and a network as those of a learner's pod do."""

    engine: Engine
    store: ObjectStore
    name: str
    network: str

    def run(self, container: str, image: str, command: tuple[str, ...], *more: str, check: bool = True) -> str:
        # nocopy: otherwise Docker gives an empty volume the owner and mode of the image's folder at that place.
        volume = ("--volume", f"{self.name}:{contract.ROOT_DIR}:nocopy", "--group-add", JOB_GROUP)
        done = self.engine.docker(
            *("run", "--name", f"{self.name}-{container}", *HARDENED, *volume, *more, image, *command), check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{container} ended with {done.returncode}: {done.stdout}\n{done.stderr}")
        return done.stdout


@pytest.fixture
def pod(engine: Engine, places: Places, tmp_path: Path) -> Iterator[Pod]:
    build.build(engine, places, (recipes.S3, recipes.SHELL, recipes.SIDECAR, recipes.SKLEARN), build.warn)
    name = f"updraft-test-{os.getpid()}"
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "s3_auth").write_text(f'"{ACCESS},{SECRET}"')
    (secrets / "s3_auth").chmod(0o444)
    engine.docker("network", "create", name)
    engine.docker("volume", "create", name)
    try:
        engine.docker(
            *("run", "--detach", "--name", f"{name}-s3", "--network", name, "--network-alias", "s3", *HARDENED),
            *("--volume", f"{secrets}:/run/secrets:ro", "--env", "UPDRAFT_FROM_FILES=RCLONE_AUTH_KEY=s3_auth"),
            *("--publish", "127.0.0.1::9000", recipes.S3.name),
        )
        await_health(engine, f"{name}-s3")
        # What a kubelet does for a volume with fsGroup.
        engine.docker(
            *("run", "--rm", "--user", "0", "--volume", f"{name}:/job", recipes.SHELL.name),
            *("sh", "-c", f"chgrp {JOB_GROUP} /job && chmod 2775 /job"),
        )
        port = engine.docker("port", f"{name}-s3", "9000").stdout.strip().rpartition(":")[2]
        credentials = S3Credentials(f"http://127.0.0.1:{port}", "us-east-1", ACCESS, SECRET)
        yield Pod(engine, open_store("updraft", credentials), name, name)
    finally:
        found = engine.docker("ps", "--all", "--quiet", "--filter", f"name={name}").stdout.split()
        if found:
            engine.docker("rm", "--force", "--volumes", *found, check=False)
        engine.docker("volume", "rm", "--force", name, check=False)
        engine.docker("network", "rm", name, check=False)


def test_a_program_trains_beside_the_sidecar_with_a_disk_in_common_and_no_credential(pod: Pod, tmp_path: Path) -> None:
    keys = Keys("tenants/default")
    points = "\n".join(f"{x},{y},{int(x + y > 9)}" for x in range(10) for y in range(10)) + "\n"
    config = PodConfig(
        job_id="job-1",
        tenant="default",
        role="train",
        attempt=1,
        learner=1,
        learners=1,
        bucket="updraft",
        prefix=keys.prefix,
        mlflow_run_id="run",
        mlflow_experiment_id="1",
        code_tree=upload(pod.store, keys, tmp_path / "code", {"train.py": PROGRAM}),
        data=(contract.DataMount(upload(pod.store, keys, tmp_path / "data", {"points.csv": points})),),
    )
    pod.store.put_bytes(keys.fence("job-1"), json.dumps({"train": 1}).encode())
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    s3 = {"endpoint": "http://s3:9000", "region": "us-east-1", "access_key": ACCESS, "secret_key": SECRET}
    # No MLflow: what was meant for it stays in the store.
    token = "token-of-this-launch"
    written = {"s3": s3, "mlflow": {"uri": "http://127.0.0.1:9"}, "endpoint_token": token}
    (credentials / "credentials.json").write_text(json.dumps(written))
    mounted = Path(contract.CREDENTIALS_FILE).parent
    ours = (
        *("--env", f"{contract.CONFIG_ENV}={config.to_json()}", "--env", f"{contract.ROOT_ENV}={contract.ROOT_DIR}"),
        *(
            "--env",
            f"{contract.CREDENTIALS_ENV}={contract.CREDENTIALS_FILE}",
            "--volume",
            f"{credentials}:{mounted}:ro",
        ),
    )
    sidecar = f"{pod.name}-sidecar"
    command = ("python", "-m", "updraft_learner.sidecar")
    pod.run("sidecar", recipes.SIDECAR.name, command, "--detach", "--network", pod.network, *ours)
    environment = contract.learner_environment(
        job_id="job-1",
        role="train",
        attempt=1,
        learner=1,
        learners=1,
        gpus=0,
        run_id="run",
        experiment_id="1",
        master_addr="127.0.0.1",
        master_port=contract.MASTER_PORT,
        command="python train.py",
        checkpoint_seconds=None,
    )
    environment[contract.ENDPOINT_TOKEN_ENV] = token
    variables = [part for k, v in environment.items() for part in ("--env", f"{k}={v}")]
    waiting = ("/bin/sh", "-c", *gated("python train.py"))
    said = pod.run(
        *("program", recipes.SKLEARN.name, waiting, "--network", f"container:{sidecar}"),
        *("--workdir", contract.ROOT_DIR, *variables),
    )
    assert said.startswith("trained 0.9") or said.startswith("trained 1.0")
    pod.engine.docker("stop", "--time", "120", sidecar)
    logs = pod.engine.docker("logs", sidecar)
    ended = pod.engine.docker("inspect", sidecar, "--format", "{{.State.ExitCode}}").stdout.strip()
    assert ended == "0", logs.stdout + logs.stderr
    done = LearnerDone.from_json(stored(pod, keys.done("job-1", "train", 1, 1)))
    assert done.final_checkpoint is not None
    assert done.metrics_pending > 0
    result = json.loads(stored(pod, f"{keys.results('job-1', 'train', 1)}/model.json"))
    assert result["uid"] == objects.LEARNER_UID
    status = LearnerStatus.from_json(stored(pod, keys.status("job-1", "train", 1, 1)))
    assert status.last_metrics["accuracy"] == result["accuracy"]


def stored(pod: Pod, key: str) -> bytes:
    content = pod.store.get_bytes(key)
    assert content is not None, key
    return content


def upload(store: ObjectStore, keys: Keys, folder: Path, files: dict[str, str]) -> str:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    tree, blobs = scan(folder)
    for digest, path in blobs.items():
        store.put_file(keys.blob(digest), path)
    store.put_bytes(keys.tree(tree.sha256), tree.to_json())
    return tree.sha256


def await_health(engine: Engine, container: str, seconds: float = 60) -> None:
    """By the image's own HEALTHCHECK."""

    def healthy() -> bool:
        return engine.docker("inspect", container, "--format", "{{.State.Health.Status}}").stdout.strip() == "healthy"

    await_true(healthy, f"{container} is not healthy", seconds)


def await_true(holds: Callable[[], bool], otherwise: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)
