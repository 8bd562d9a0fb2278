"""Programs of public repositories train, lose their learner, go on from a checkpoint and are registered, with the
patches and manifests in tests/public (docs/howto/public-programs.md).

Their sources are fetched from GitHub, or taken from UPDRAFT_PUBLIC_SOURCES, a folder with git repositories as
OWNER/NAME.
"""

from __future__ import annotations

import gzip
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from public_programs import GITHUB, NAMES, NoSources, apply_patch, lay_out, repositories_folder, sources
from system_helpers import Stack, kill_after_a_checkpoint, pretty

pytestmark = [pytest.mark.system, pytest.mark.public, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def repositories() -> Path | None:
    """The folder of repositories; None: they are fetched from GitHub."""
    try:
        return repositories_folder()
    except NoSources as exc:
        pytest.skip(str(exc))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_program_survives_a_kill_and_is_registered(
    stack: Stack, repositories: Path | None, name: str, tmp_path: Path
) -> None:
    folder = lay_out(name, repositories, tmp_path / "sources")
    began = time.monotonic()
    job = stack.client.submit(folder / "manifest.yaml").id
    kill_after_a_checkpoint(stack, job)
    detail = stack.end(job)
    assert detail.state == "COMPLETED", pretty(detail)
    attempts = [attempt for attempt in stack.client.attempts(job).attempts if attempt.role == "train"]
    assert attempts[0].cause == "infrastructure", attempts
    assert attempts[1].resume is not None, attempts
    assert attempts[1].resume.checkpoint is not None, attempts
    assert detail.model is not None
    assert detail.model.name == name
    own = {key for key in detail.metrics if not key.startswith("system/")}
    assert own, "the program has no metric"
    print(f"{name}: {time.monotonic() - began:.0f} s with a kill; metrics {', '.join(sorted(own))}")


def test_ffdls_own_mnist_program_runs_with_its_own_manifest(
    stack: Stack, repositories: Path | None, tmp_path: Path
) -> None:
    """As docs/howto/ffdl.md says: with two lines for TensorFlow 2, and a bucket that this platform opens."""
    source = {
        "repository": f"{GITHUB}IBM/FfDL",
        "commit": "548726a840b69b0e74a944fbeac22e425f7fd8bd",
        "folder": "etc/examples/tf-summary-model",
    }
    folder = sources(source, repositories, tmp_path / "sources")
    apply_patch("ffdl-mnist", folder)
    manifest = (folder / "manifest.yml").read_text()
    assert manifest.count("tf_training_data") == 1
    (folder / "manifest.yml").write_text(manifest.replace("tf_training_data", "datasets/ffdl-mnist"))
    for name, content in images_in_mnists_format().items():
        stack.put_object("datasets", f"ffdl-mnist/{name}", content)
    job = stack.client.submit(folder / "manifest.yml").id
    detail = stack.end(job)
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.metrics["test/accuracy_1"] > 0.9
    history = stack.client.metrics(job, "test/accuracy_1").history["test/accuracy_1"]
    assert [point.step for point in history] == list(range(0, 400, 10))


def images_in_mnists_format() -> dict[str, bytes]:
    """Images of 28 by 28 pixels with a bright square whose place is the label."""
    draw = np.random.default_rng(0)
    found = {}
    for name, count in (("train", 60_000), ("t10k", 10_000)):  # the program keeps 5,000 of them for validation
        labels = draw.integers(0, 10, count).astype(np.uint8)
        images = draw.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for label in range(10):
            row, column = 4 + 12 * (label // 5), 1 + 5 * (label % 5)
            images[labels == label, row : row + 8, column : column + 4] = 250
        head = struct.pack(">IIII", 2051, count, 28, 28)
        found[f"{name}-images-idx3-ubyte.gz"] = gzip.compress(head + images.tobytes(), compresslevel=1)
        found[f"{name}-labels-idx1-ubyte.gz"] = gzip.compress(struct.pack(">II", 2049, count) + labels.tobytes())
    return found
