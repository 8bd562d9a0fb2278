"""The commands and the file of docs/howto/tenants.md."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pages
import pytest
import yaml
from unit.cli.cli_fakes import Run
from unit.client.client_fakes import FakeAirflow

from updraft.tenants import parse_tenants

PAGE = "docs/howto/tenants.md"


def shown(number: int = 0) -> str:
    return [block for block in pages.blocks(PAGE) if block.language == "yaml"][number].text


def test_the_file_of_the_page_is_right(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text(shown())
    printed = run("tenants", "check", str(tmp_path / "tenants.yaml"))
    assert printed.code == 0
    assert "any A100, any cpu, 4 gpu" in " ".join(printed.out.split())
    found = json.loads(run("tenants", "check", str(tmp_path / "tenants.yaml"), "--json").out)
    assert found["tenants"]["vision"]["quota"] == {"gpu": 8, "A100": 4, "cpu": 20}
    assert parse_tenants(shown()).administrators == ("admin",)


def test_the_defaults_of_the_page_are_right(run: Run) -> None:
    [defaults] = [tenant.defaults for tenant in parse_tenants(shown(1)).tenants.values()]
    assert set(defaults.given()) == set(type(defaults).model_fields)


def test_a_wrong_file_is_told_by_field(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text(shown().replace("weight: 2", "weight: 0"))
    printed = run("tenants", "check", str(tmp_path / "tenants.yaml"))
    assert printed.code != 0
    assert "tenants.vision.weight: 0.0 gives the tenant no share" in " ".join(printed.err.split())


def test_tenants_are_listed(airflow: FakeAirflow, run: Run) -> None:
    speech = {"name": "speech", "weight": 1, "quota": {"gpu": 4}, "used": {"gpu": 6}, "borrowed": {"gpu": 2}}
    rest = {"running": 2, "waiting": 1, "share": 0.5, "claim": 0.602, "notes": ["its quota is large"]}
    robots = {"name": "robots", "weight": 1, "running": 0, "waiting": 0}
    answer = {"tenants": [{**speech, **rest}, robots], "problem": "tenants.yaml: 1 field is wrong"}

    def override(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(200, json=answer) if request.url.path.endswith("/tenants") else None

    airflow.override = override
    printed = run("tenants", "list")
    first, second = [line for line in printed.out.splitlines() if line.startswith(("speech ", "robots "))]
    assert first.split() == ["speech", "1", "4", "gpu", "6", "gpu", "2", "gpu", "2", "1", "50", "%", "0.602"]
    assert second.split() == ["robots", "1", "no", "limits", "-", "-", "0", "0", "unknown", "unknown"]
    assert "speech: its quota is large" in printed.out
    assert "1 field is wrong" in printed.err
    assert json.loads(run("tenants", "list", "--json").out)["tenants"][0]["claim"] == 0.602


def test_objects_of_tenants_are_rendered(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tenants.yaml").write_text(shown())
    printed = run("tenants", "render", str(tmp_path / "tenants.yaml"), "--prefix", "ml-")
    objects = list(yaml.safe_load_all(printed.out))
    assert {each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"} == {"ml-vision", "ml-speech"}
    assert json.loads(run("tenants", "render", str(tmp_path / "tenants.yaml"), "--json").out)[0]["kind"] == "Namespace"


def kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "bin" / "kubectl"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


def test_objects_of_tenants_are_applied_by_kubectl(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tenants.yaml").write_text(shown())
    kubectl(
        tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/args; cat > {tmp_path}/input; echo namespace/updraft-vision'
    )
    printed = run("tenants", "apply", str(tmp_path / "tenants.yaml"), "--context", "admin@cluster", "--dry-run")
    assert (printed.code, printed.out) == (0, "namespace/updraft-vision\n")
    arguments = (tmp_path / "args").read_text().split()
    assert arguments[0] == "apply"
    assert {"--context=admin@cluster", "--dry-run=server", "--server-side", "--filename=-"} <= set(arguments)
    rendered = json.loads(run("tenants", "render", str(tmp_path / "tenants.yaml"), "--json").out)
    assert json.loads((tmp_path / "input").read_text())["items"] == rendered


def test_a_conflict_says_how_it_is_ended(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tenants.yaml").write_text(shown())
    kubectl(tmp_path, monkeypatch, "cat > /dev/null; echo 'Apply failed with 1 conflict' >&2; exit 1")
    assert "--force-conflicts" in run("tenants", "apply", str(tmp_path / "tenants.yaml")).err


def test_what_kubectl_says_is_the_error(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tenants.yaml").write_text(shown())
    kubectl(tmp_path, monkeypatch, "cat > /dev/null; echo 'namespaces is forbidden' >&2; exit 1")
    printed = run("tenants", "apply", str(tmp_path / "tenants.yaml"))
    assert printed.code != 0
    assert "kubectl: namespaces is forbidden" in printed.err
    assert "force" not in printed.err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "kubectl is not on PATH" in " ".join(run("tenants", "apply", str(tmp_path / "tenants.yaml")).err.split())
