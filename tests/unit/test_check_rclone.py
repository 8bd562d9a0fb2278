"""What the comparison of rclone with its public sources finds."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import sys
import urllib.error
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_rclone.py"
PRINTED = """bin/rclone: go1.26.9
\tpath\tgithub.com/rclone/rclone
\tmod\tgithub.com/rclone/rclone\tv1.75.2+dirty\t
\tdep\tbazil.org/fuse\tv0.1.0\th1:A0=
\tdep\tgolang.org/x/net\tv0.60.0\th1:B0=
\tbuild\t-trimpath=true
"""
SUMS = {"bazil.org/fuse@v0.1.0": "h1:A0=", "golang.org/x/net@v0.60.0": "h1:B0="}
GO_SUM = frozenset({"bazil.org/fuse v0.1.0 h1:A0=", "golang.org/x/net v0.60.0 h1:B0=", "x v1 h1:C0="})


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("updraft_check_rclone", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def judge(script: Any, printed: str = PRINTED, sums: dict[str, str] = SUMS, go_sum: Any = GO_SUM) -> list[str]:
    found: list[str] = script.differences(script.parse(printed), "1.75.2", script.Known(sums, go_sum))
    return found


def test_a_release_of_public_modules_has_no_difference(script: Any) -> None:
    assert judge(script) == []
    assert judge(script, sums={}, go_sum=None) == []  # what cannot be compared is told by `main`


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("h1:B0=", "h1:evil=", "golang.org/x/net@v0.60.0 is h1:evil= in the binary, and h1:B0= in public"),
        ("v0.60.0", "v0.59.0", "golang.org/x/net@v0.59.0 is not in the go.sum of rclone 1.75.2"),
        ("v1.75.2+dirty", "v1.75.1", "the binary is version v1.75.1, the package 1.75.2"),
        ("path\tgithub.com/rclone", "path\tgithub.com/other", "not github.com/rclone/rclone"),
        ("h1:B0=\n", "h1:B0=\n\t=>\texample.org/net\tv1\th1:X=\n", "example.org/net is built from other code"),
        ("h1:B0=\n", "\n\t=>\t./net\t(devel)\t\n", "golang.org/x/net is built from other code than its own"),
        ("bin/rclone", "bin/rclone: no Go\n\n", None),
    ],
)
def test_a_difference_is_named(script: Any, before: str, after: str, told: str | None) -> None:
    assert before in PRINTED
    found = judge(script, PRINTED.replace(before, after, 1))
    assert [text for text in found if told in text] if told else found == []


def test_without_go_and_without_a_network_both_comparisons_are_skipped_and_say_so(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*arguments: Any, **options: Any) -> Any:
        assert options["timeout"] <= 10
        raise urllib.error.URLError("no route to host")

    monkeypatch.setenv("PATH", "/nowhere")
    get = partial(script.download, urlopen=away)
    assert script.main([], get=get) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("SKIPPED: rclone was not compared with its sources, because Go")
    assert second.startswith("SKIPPED: rclone's bytes were not compared with upstream's release: https://downloads")
    assert "no route to host" in second
    assert script.main(["--require"], get=get) == 1
    assert capsys.readouterr().err == "error: nothing of rclone could be compared (--require)\n"


BINARY = b"\x7fELF" + bytes(range(256)) * 40


class Upstream:
    """The server of releases."""

    def __init__(self, script: Any, binary: bytes = BINARY) -> None:
        self.name = script.archive_name("1.75.2")
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr(f"{self.name.removesuffix('.zip')}/rclone", binary)
        self.packed = made.getvalue()
        listed = f"{'0' * 64}  other.zip\n{hashlib.sha256(self.packed).hexdigest()}  {self.name}\n"
        self.sums = f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{listed}-----BEGIN PGP SIGNATURE-----\n"

    def get(self, url: str) -> bytes:
        base, _, name = url.rpartition("/")
        assert base == "https://downloads.rclone.org/v1.75.2"
        return {"SHA256SUMS": self.sums.encode(), self.name: self.packed}[name]


@pytest.fixture
def released(tmp_path: Path) -> Path:
    (tmp_path / "rclone").write_bytes(BINARY)
    return tmp_path / "rclone"


def test_the_binary_of_upstreams_release_has_no_difference(
    script: Any, released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.compare_release(released, "1.75.2", Upstream(script).get) == []
    assert "the binary is the one in upstream's rclone-v1.75.2-" in capsys.readouterr().out


def test_one_changed_byte_is_found_in_the_binary_and_in_the_archive(script: Any, released: Path) -> None:
    upstream = Upstream(script)
    changed = bytearray(BINARY)
    changed[-1] ^= 1
    released.write_bytes(changed)
    (told,) = script.compare_release(released, "1.75.2", upstream.get)
    assert told.startswith("the binary is not the one in upstream's rclone-v1.75.2-")
    assert hashlib.sha256(changed).hexdigest() in told
    released.write_bytes(BINARY)
    packed = bytearray(upstream.packed)
    packed[len(packed) // 2] ^= 1
    upstream.packed = bytes(packed)
    (told,) = script.compare_release(released, "1.75.2", upstream.get)
    assert told == f"{upstream.name} does not have the checksum that upstream's SHA256SUMS names"


def test_a_list_without_the_archive_is_a_difference_and_no_list_is_skipped(script: Any, released: Path) -> None:
    upstream = Upstream(script)
    upstream.sums = f"{'0' * 64}  other.zip\n"
    assert script.compare_release(released, "1.75.2", upstream.get) == [
        f"upstream's SHA256SUMS does not name {upstream.name}"
    ]
    upstream.sums = "<html>log in to this network</html>"
    assert script.compare_release(released, "1.75.2", upstream.get) is None


def test_what_is_required_is_one_comparison_and_a_difference_fails_in_any_case(
    script: Any, released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_sources = {
        "read_build": lambda binary: script.parse(PRINTED),
        "ask": lambda build, release: script.Known({}, None),
    }
    assert script.main(["--require", str(released)], get=Upstream(script).get, **without_sources) == 0
    assert "SKIPPED: rclone was not compared with its sources" in capsys.readouterr().out
    assert script.main([str(released)], get=Upstream(script, b"other").get, **without_sources) == 1


def test_json_documents_that_follow_each_other_are_all_read(script: Any) -> None:
    assert script.documents('{"Path": "a"}\n{"Path": "b"}\n') == [{"Path": "a"}, {"Path": "b"}]
