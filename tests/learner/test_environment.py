"""An environment as its pod builds it: the sidecar's work before and after, and between them the builder with real
uv, against an index of tiny wheels on the loopback address."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from folder_store import FolderStore
from learner.package_index import package_index, source_only, wheel
from learner.stage_fakes import CONFIG, KEYS, upload

from updraft_learner import contract
from updraft_learner.environment.documents import EnvironmentRequest, log_in_variable
from updraft_learner.environment.keeping import keep_environment
from updraft_learner.environment.laying import lay_out_build
from updraft_learner.pod import PodPaths
from updraft_learner.stage import stage

UV = Path(os.environ.get("UPDRAFT_UV") or shutil.which("uv") or "uv")
BUILD = replace(CONFIG, role=contract.BUILD_ROLE, attempt=1)
SMALL = (wheel("tinya", "1.0", ["tinyb>=1"]), wheel("tinyb", "1.5"))


class Pod:
    """One pod of the role `build`; its result is what the platform reads."""

    def __init__(self, store: FolderStore, folder: Path) -> None:
        self.store, self.paths = store, PodPaths(folder / "root", folder / "private")
        self.status, self.said = 0, ""

    def run(self, request: EnvironmentRequest, code: Mapping[str, str], secrets: Mapping[str, str]) -> Any:
        self.paths.code.mkdir(parents=True)
        for name, text in code.items():
            (self.paths.code / name).write_text(text)
        self.store.put_bytes(KEYS.environment_request("job-1", 1), request.to_json().encode())
        lay_out_build(BUILD, self.paths, self.store, UV, io.StringIO())
        program = self.paths.at(contract.BUILD_DIR) / "builder.py"
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.paths.root), "UV_HTTP_RETRIES": "0", **secrets}
        done = subprocess.run(
            [sys.executable, "-I", str(program)], env=environment, capture_output=True, text=True, timeout=120
        )
        self.status, self.said = done.returncode, done.stdout + done.stderr
        keep_environment(BUILD, self.paths, self.store)
        return json.loads(self.store.get_bytes(KEYS.environment_built("job-1", 1)) or b"")


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def build(
    store: FolderStore,
    folder: Path,
    index: str,
    *requirements: str,
    code: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    **fields: Any,
) -> tuple[Any, Pod]:
    pod = Pod(store, folder)
    request = EnvironmentRequest("image:1", (index,), requirements=requirements, **fields)
    return pod.run(request, code or {}, secrets or {}), pod


def placed(store: FolderStore, folder: Path, tree: str) -> Path:
    """Return the environment as a learner gets it."""
    paths = PodPaths(folder / "root", folder / "private")
    stage(replace(CONFIG, environment_tree=tree), paths, store, io.StringIO())
    return paths.at(contract.ENVIRONMENT_DIR)


def refusal(answer: Any) -> tuple[str, str]:
    assert answer["built"] is None
    return answer["error"]["kind"], answer["error"]["message"]


def test_a_learner_imports_the_packages_and_finds_their_scripts(store: FolderStore, tmp_path: Path) -> None:
    with package_index(*SMALL) as index:
        answer, pod = build(store, tmp_path / "pod", index, "tinya")
    assert answer["error"] is None, pod.said
    assert not answer["built"]["reused"]
    folder = placed(store, tmp_path / "learner", answer["built"]["tree"])
    environment = {"PYTHONPATH": str(folder), "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    code = "import tinya, tinyb; print(tinya.VERSION, tinyb.VERSION)"
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout == "1.0 1.5\n"
    ran = subprocess.run(["/bin/sh", "-c", "tinya-run"], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "tinya 1.0\n"


def test_the_lock_names_versions_and_digests_and_progress_is_said(store: FolderStore, tmp_path: Path) -> None:
    with package_index(*SMALL) as index:
        answer, pod = build(store, tmp_path / "pod", index, "tinya")
    assert "tinya==1.0" in answer["built"]["lock"]
    assert "--hash=sha256:" in answer["built"]["lock"]
    assert "environment: installing 2 packages: tinya, tinyb" in pod.said


def test_a_package_of_the_image_that_no_index_has_is_used_as_it_is(store: FolderStore, tmp_path: Path) -> None:
    with package_index(wheel("tinyc", "2.0", ["pytest"])) as index:
        answer, pod = build(store, tmp_path / "pod", index, "tinyc")
    assert answer["error"] is None, pod.said
    assert re.findall(r"^\S+", answer["built"]["lock"], re.MULTILINE) == ["tinyc==2.0"]


def test_a_package_of_the_image_that_the_index_has_too_is_not_added(store: FolderStore, tmp_path: Path) -> None:
    version = metadata.version("pytest")
    files = (wheel("tinyc", "2.0", ["pytest"]), wheel("pytest", version), wheel("pytest", "999.0"))
    with package_index(*files) as index:
        answer, pod = build(store, tmp_path / "pod", index, "tinyc")
    assert answer["error"] is None, pod.said
    assert re.findall(r"^\S+", answer["built"]["lock"], re.MULTILINE) == ["tinyc==2.0"]


def test_the_same_lock_is_not_built_again(store: FolderStore, tmp_path: Path) -> None:
    with package_index(*SMALL) as index:
        first, _ = build(store, tmp_path / "first", index, "tinya")
        second, pod = build(store, tmp_path / "second", index, "tinya", "tinyb==1.5")
    assert second["built"] == {**first["built"], "reused": True}
    assert "installing" not in pod.said


def test_a_learner_refuses_an_environment_that_was_changed(store: FolderStore, tmp_path: Path) -> None:
    with package_index(*SMALL) as index:
        answer, _ = build(store, tmp_path / "pod", index, "tinyb")
    tree = json.loads(store.get_bytes(KEYS.tree(answer["built"]["tree"])) or b"")
    (pack,) = tree["files"]
    stored = store.get_bytes(KEYS.blob(pack["sha256"])) or b""
    store.put_bytes(KEYS.blob(pack["sha256"]), stored.replace(b"VERSION = '1.5'", b"VERSION = '6.6'"))
    with pytest.raises(Exception, match=r"00000\.tar' does not match its digest"):
        placed(store, tmp_path / "learner", answer["built"]["tree"])


def test_requirements_come_from_a_file_of_the_code(store: FolderStore, tmp_path: Path) -> None:
    code = {"requirements.txt": "# ours\ntinyb>=1  # small\n\n"}
    with package_index(*SMALL) as index:
        answer, pod = build(store, tmp_path / "pod", index, code=code, file="requirements.txt")
    assert answer["error"] is None, pod.said
    assert answer["built"]["lock"].startswith("tinyb==1.5")


def test_requirements_come_from_a_pyproject(store: FolderStore, tmp_path: Path) -> None:
    code = {"pyproject.toml": '[project]\nname = "p"\nversion = "1"\ndependencies = ["tinyb"]\n'}
    with package_index(*SMALL) as index:
        answer, pod = build(store, tmp_path / "pod", index, code=code, file="pyproject.toml")
    assert answer["error"] is None, pod.said
    assert answer["built"]["lock"].startswith("tinyb==1.5")


def test_what_would_differ_from_the_image_is_named_with_both_versions(store: FolderStore, tmp_path: Path) -> None:
    from importlib.metadata import version

    has = version("pytest")
    with package_index(wheel("wants", "1.0", ["pytest<1"]), wheel("pytest", "0.9")) as index:
        kind, message = refusal(build(store, tmp_path / "pod", index, "wants")[0])
    assert kind == "refused"
    assert f"they need pytest 0.9, and image image:1 has pytest {has}" in message


def test_a_package_without_wheel_needs_a_compiler(store: FolderStore, tmp_path: Path) -> None:
    with package_index(source_only("sourceonly", "1.0")) as index:
        kind, message = refusal(build(store, tmp_path / "pod", index, "sourceonly")[0])
    assert kind == "refused"
    assert "sourceonly has no wheel" in message
    assert "need a compiler" in message


def test_a_package_that_does_not_exist_is_said_in_uvs_words(store: FolderStore, tmp_path: Path) -> None:
    with package_index(*SMALL) as index:
        kind, message = refusal(build(store, tmp_path / "pod", index, "nosuchthing")[0])
    assert kind == "refused"
    assert "nosuchthing was not found" in message


def test_an_index_that_is_away_is_worth_another_try(store: FolderStore, tmp_path: Path) -> None:
    answer, pod = build(store, tmp_path / "pod", "http://127.0.0.1:9/simple", "tinya")
    kind, message = refusal(answer)
    assert kind == "unavailable"
    assert "cannot be reached" in message
    assert pod.status == contract.ExitCode.STORAGE


def test_an_index_with_a_log_in_is_used_and_the_password_is_in_no_text(store: FolderStore, tmp_path: Path) -> None:
    secrets = {log_in_variable(0, "username"): "me", log_in_variable(0, "password"): "swordfish"}
    with package_index(*SMALL, log_in=("me", "swordfish")) as index:
        answer, pod = build(store, tmp_path / "pod", index, "tinya", secrets=secrets)
        kind, message = refusal(build(store, tmp_path / "without", index, "tinya")[0])
    assert answer["error"] is None, pod.said
    assert "swordfish" not in json.dumps(answer) + pod.said
    assert (kind, "refuses the log-in" in message) == ("refused", True)


def test_another_python_than_the_images_is_refused(store: FolderStore, tmp_path: Path) -> None:
    kind, message = refusal(build(store, tmp_path / "pod", "http://127.0.0.1:9/simple", "tinya", python="3.99")[0])
    assert kind == "refused"
    assert "asks for Python 3.99, and image image:1 has 3." in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-r other.txt", "is an option (-r)"),
        ("--index-url https://a.example", "is an option (--index-url)"),
        ("tinya @ https://a.example/tinya.whl", "is no name with versions"),
        ("./local", "is no name with versions"),
        ("git+https://a.example/tinya", "is no name with versions"),
    ],
)
def test_a_line_that_is_no_requirement_is_named(store: FolderStore, tmp_path: Path, line: str, words: str) -> None:
    code = {"requirements.txt": f"tinyb\n{line}\n"}
    answer, _ = build(store, tmp_path / "pod", "http://127.0.0.1:9/simple", code=code, file="requirements.txt")
    assert f"line 2 of requirements.txt {words}" in refusal(answer)[1]


def test_a_build_ends_with_its_time(store: FolderStore, tmp_path: Path) -> None:
    with package_index(*SMALL) as index:
        kind, message = refusal(build(store, tmp_path / "pod", index, "tinya", seconds=0)[0])
    assert kind == "limit"
    assert "longer than its limit" in message


def test_a_folder_that_is_a_link_is_not_stored(store: FolderStore, tmp_path: Path) -> None:
    pod = Pod(store, tmp_path / "pod")
    request = EnvironmentRequest("image:1", ("http://127.0.0.1:9/simple",), requirements=("tinya",))
    store.put_bytes(KEYS.environment_request("job-1", 1), request.to_json().encode())
    lay_out_build(BUILD, pod.paths, store, UV, io.StringIO())
    folder = pod.paths.at(contract.BUILD_DIR)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "key").write_text("secret")
    (folder / "tree").symlink_to(tmp_path / "own")
    (folder / "report.json").write_text(json.dumps({"done": True, "lock": "", "python": "p", "machine": "m"}))
    keep_environment(BUILD, pod.paths, store)
    answer = json.loads(store.get_bytes(KEYS.environment_built("job-1", 1)) or b"")
    assert "left no folder of packages" in refusal(answer)[1]


def test_code_is_staged_for_the_build(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    tree = upload(store, tmp_path / "code", {"requirements.txt": "tinyb"})
    paths = PodPaths(tmp_path / "root", tmp_path / "private")
    stage(replace(CONFIG, code_tree=tree), paths, store, io.StringIO())
    assert (paths.code / "requirements.txt").read_text() == "tinyb"
