"""The installer that `make` fetches first is one version with known digests, and nothing else."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
PINNED = REPOSITORY / "images" / "common" / "uv.txt"


def bootstrap() -> Any:
    """By its path, as it is run: no package holds it."""
    spec = importlib.util.spec_from_file_location("updraft_bootstrap", REPOSITORY / "scripts" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_uv_is_one_version_with_digests_for_every_platform() -> None:
    lines = [line for line in PINNED.read_text().splitlines() if not line.startswith("#")]
    assert re.fullmatch(r"uv==\d+\.\d+\.\d+ \\", lines[0])
    assert len(lines) > 10
    assert [line for line in lines[1:] if not re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line)] == []


def test_a_uv_with_another_digest_is_not_installed(tmp_path: Path) -> None:
    """As a registry that hands out something else under the same version would be refused."""
    name = re.search(r"^uv==(\S+)", PINNED.read_text(), re.MULTILINE)
    assert name is not None
    version = name.group(1)
    wheel = tmp_path / f"uv-{version}-py3-none-any.whl"
    information = f"uv-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("uv.py", "print('not uv')\n")
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    python = Path(sys.base_prefix) / "bin" / "python3"
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{python} has no pip")
    pip = [python, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path), "--target", "x"]
    options = bootstrap().PINNED_ONLY
    done = subprocess.run([*pip, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in done.stderr
    assert not (tmp_path / "x").exists()


def test_what_an_installer_has_installed_is_left_out_and_what_it_complains_of_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UPDRAFT_HOME", str(tmp_path))
    lines = (" + a==1", " - b==2", " ~ c==3", "error: no wheel for d", "  + it is not a list")
    command = ["/bin/sh", "-c", f"printf '%s\\n' {' '.join(repr(line) for line in lines)} >&2; echo out; exit 3"]
    script = bootstrap()
    assert script.guarded(command, {"PATH": "/usr/bin:/bin"}, quiet=True) == 3
    said = capfd.readouterr()
    assert (said.out, said.err) == ("out\n", "error: no wheel for d\n  + it is not a list\n")
    assert script.guarded(command, {"PATH": "/usr/bin:/bin"}) == 3
    assert capfd.readouterr().err.splitlines() == list(lines)
