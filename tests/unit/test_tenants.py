"""The file of tenants: what it may say, what is wrong in it, and that a wrong one changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from updraft.exceptions import UpdraftError
from updraft.ledger import Ledger, upgrade
from updraft.manifest import Manifest, ManifestError, parse
from updraft.services import tenancy_of
from updraft.settings import Settings
from updraft.tenants import (
    Tenancy,
    Tenant,
    completed,
    parse_tenants,
    read_tenants,
    refuse_priority,
    refuse_user,
    tenants_at_start,
)

TWO = "tenants:\n  vision: {weight: 2, quota: {gpu: 8, cpu: 20}, borrow: {gpu: 4}, lend: {gpu: 6}}\n  speech: {}\n"


def test_a_file_says_what_each_tenant_may_use() -> None:
    assert parse_tenants(TWO).tenants == {
        "vision": Tenant(weight=2, quota={"gpu": 8, "cpu": 20}, borrow={"gpu": 4}, lend={"gpu": 6}),
        "speech": Tenant(),
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants: {}", "tenants: lists nothing"),
        ("tenants: [a]", "tenants: a list is not a mapping"),
        ("tenant: {}", "did you mean 'tenants'?"),
        ("tenants: {a: {weight: 0}}", "tenants.a.weight: 0.0 gives the tenant no share; write a number above 0"),
        ("tenants: {a: {weight: .inf}}", "tenants.a.weight: "),
        ("tenants: {a: {quota: {gpu: -1}}}", "tenants.a.quota.gpu: -1 is too small; write a number of at least 0"),
        ("tenants: {a: {quota: {gpu: 1.5}}}", "tenants.a.quota.gpu: 1.5 is not a whole number"),
        ("tenants: {a: {qouta: {gpu: 1}}}", "did you mean 'tenants.a.quota'?"),
        ("tenants: {a: {quota: {gpu: 1}, lend: {gpu: 3}}}", "tenants.a.lend.gpu: 3 is more than the quota of 1"),
        ("tenants: {a: {borrow: {gpu: 3}}}", "tenants.a.borrow.gpu: is given, but quota names no gpu"),
        ("tenants: {a: {quota: {cpu: 1}, lend: {cpu: 1}}}", "tenants.a.lend.cpu: cannot be limited"),
        ("tenants: {a: {quota: {'x y': 1}}}", "tenants.a.quota['x y']: 'x y' is not a type of GPU"),
        ("tenants: {A b: {}}", "tenants['A b']: 'A b' is not a valid name"),
        ("tenants: {a: {priorities: [urgent]}}", "tenants.a.priorities[0]: 'urgent' is not allowed here"),
        ("tenants: {a: {priorities: []}}", "tenants.a.priorities: lists nothing; write the priorities"),
        (
            "tenants: {a: {defaults: {resources: {size: small}}}}",
            "defaults.resources.size: 'small' cannot be",
        ),
        ("tenants: {a: {defaults: {resources: {cpus: x}}}}", "tenants.a.defaults.resources.cpus: 'x'"),
        ("tenants: {a: {defaults: {command: x}}}", "tenants.a.defaults.command"),
        ("tenants: {a: {}, a: {}}", "a"),
        ("tenants: {", "tenants.yaml"),
    ],
)
def test_a_wrong_file_is_refused_by_field(text: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_tenants(text)
    assert words in str(caught.value)


def test_one_mistake_is_one_line() -> None:
    with pytest.raises(ManifestError) as caught:
        parse_tenants("tenants: {a: {priorities: [urgent]}}")
    assert [field.path for field in caught.value.fields] == ["tenants.a.priorities[0]"]


def test_several_tenants_have_to_trust_each_other(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    file.write_text(TWO)
    with pytest.raises(UpdraftError, match=r"vision, speech are several tenants.*UPDRAFT_TRUSTED_TENANTS=true"):
        read_tenants(file, trusted=False)
    environment = {"UPDRAFT_TENANTS_FILE": str(file)}
    with pytest.raises(UpdraftError, match="several tenants"):
        tenants_at_start(environment)
    assert tenants_at_start({**environment, "UPDRAFT_TRUSTED_TENANTS": "true"}).names == ("vision", "speech")
    assert tenants_at_start({}).names == ("default",)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b"tenants:\n" + b" " * 1_000_000])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "tenants.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UpdraftError, match=r"tenants\.yaml"):
        read_tenants(file, trusted=True)


def test_priorities_can_be_kept_from_a_tenant() -> None:
    tenancy = Tenancy({"vision": Tenant(priorities=("low", "normal"))})
    assert refuse_priority(tenancy, "vision", "low") == ()
    (wrong,) = refuse_priority(tenancy, "vision", "high")
    assert wrong.text == "priority: 'high' is not allowed to tenant vision; write one of low, normal"


def test_people_and_administrators_belong_to_a_tenant() -> None:
    text = "administrators: [root]\ntenants:\n  vision: {people: [ada, bob]}\n  speech: {}\n"
    tenancy = parse_tenants(text)
    assert Tenancy.from_document(tenancy.document()) == tenancy
    found = {user: [name for name in tenancy.names if tenancy.allows(user, name)] for user in ("root", "ada", "eve")}
    assert found == {"root": ["vision", "speech"], "ada": ["vision"], "eve": []}
    assert tenancy.allows("eve", "speech", teams=["speech"])
    assert not tenancy.allows("eve", "vision", teams=["vision"])  # it names its people
    assert not tenancy.allows("root", "robots")
    assert Tenancy.of("default").allows("anybody", "default")
    assert not Tenancy.of("a", "b").allows("anybody", "a")


def test_a_manifest_that_is_refused_belongs_to_its_submitter() -> None:
    tenancy = Tenancy({"vision": Tenant(people=("ada",)), "speech": Tenant(people=("bob",))})
    assert [tenancy.home_of(user) for user in ("bob", "ada", "eve", None)] == ["speech", "vision", "vision", "vision"]
    assert Tenancy.of("vision", "default").home_of("bob") == "default"


def test_a_job_of_another_tenant_is_refused_to_a_user() -> None:
    tenancy = Tenancy({"vision": Tenant(people=("ada",)), "speech": Tenant(people=("bob",))})
    assert refuse_user(tenancy, "vision", "ada") == ()
    (wrong,) = refuse_user(tenancy, "vision", "bob")
    assert wrong.text == "tenant: 'vision' is not a tenant of user bob; write one of speech"
    (nowhere,) = refuse_user(tenancy, "vision", "eve")
    assert "ask the platform's operator" in nowhere.text


def settings(url: str, **more: str) -> Settings:
    given = {"LEDGER_URL": url, "S3_ENDPOINT": "http://s3", "MLFLOW_URI": "http://m", "CREDENTIALS_FILE": "c", **more}
    return Settings.from_environment({f"UPDRAFT_{name}": value for name, value in given.items()})


@pytest.fixture
def configured(tmp_path: Path) -> tuple[Settings, Ledger]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    upgrade(url)
    found = settings(url, TENANTS_FILE=str(tmp_path / "tenants.yaml"), TRUSTED_TENANTS="true")
    return found, Ledger(url)


def test_tenants_are_named_in_one_place() -> None:
    with pytest.raises(UpdraftError, match="UPDRAFT_TENANTS_FILE names the tenants; leave one of the two out"):
        settings("sqlite://", TENANTS="vision", TENANTS_FILE="tenants.yaml")


def written(configured: Settings, text: str, at: int) -> None:
    assert configured.tenants_file is not None
    configured.tenants_file.write_text(text)
    os.utime(configured.tenants_file, (at, at))


def test_a_file_is_read_again_and_a_wrong_one_changes_nothing(configured: tuple[Settings, Ledger]) -> None:
    settings, ledger = configured
    with pytest.raises(UpdraftError, match="cannot be read"):
        tenancy_of(settings, lambda: ledger)
    written(settings, TWO, 1)
    assert tenancy_of(settings, lambda: ledger).names == ("vision", "speech")
    written(settings, "tenants: {vision: {weight: 0}}", 2)
    kept = tenancy_of(settings, lambda: ledger)
    assert kept.names == ("vision", "speech")
    assert kept.problem is not None
    assert "tenants.vision.weight" in kept.problem
    written(settings, "tenants: {robots: {}}", 3)
    assert tenancy_of(settings, lambda: ledger) == Tenancy({"robots": Tenant()})
    assert ledger.tenants.in_force() == Tenancy({"robots": Tenant()})


def test_a_process_that_finds_a_wrong_file_knows_the_tenants_of_the_others(
    configured: tuple[Settings, Ledger],
) -> None:
    settings, ledger = configured
    ledger.tenants.put(Tenancy({"vision": Tenant()}))
    kept = tenancy_of(settings, lambda: ledger)
    assert (kept.names, "cannot be read" in str(kept.problem)) == (("vision",), True)


VISION = """
tenants:
  vision:
    defaults:
      priority: low
      resources: {cpus: 2, memory: 8GiB}
      env: {A: "1", B: "2"}
"""


def job(**fields: Any) -> Manifest:
    return parse({"name": "x", "tenant": "vision", "image": "i", "command": "true", **fields})


def test_a_tenants_defaults_stand_for_what_a_manifest_leaves_out() -> None:
    tenancy = parse_tenants(VISION)
    found = completed(job(resources={"gpus": 1, "cpus": 4}, env={"B": "3"}), tenancy)
    assert found.priority == "low"
    assert (found.resources.gpus, found.resources.cpus, found.resources.memory_bytes) == (1, 4, 8 * 1024**3)
    assert found.env == {"A": "1", "B": "3"}
    assert completed(job(priority="normal"), tenancy).priority == "normal"  # also where that is the manifest's default
    assert completed(found, tenancy) == found
    assert Tenancy.from_document(tenancy.document()) == tenancy
    assert completed(job(tenant="speech"), tenancy) == job(tenant="speech")


def test_a_type_of_gpu_is_a_default_of_jobs_with_gpus() -> None:
    tenancy = parse_tenants("tenants: {vision: {defaults: {resources: {gpu_type: A100}}}}")
    assert completed(job(), tenancy).resources.gpu_type is None
    assert completed(job(resources={"gpus": 2}), tenancy).resources.gpu_type == "A100"
    with pytest.raises(ManifestError, match="gpu_type"):
        completed(job(resources={"gpu_type": "H100"}), tenancy)


def test_defaults_that_contradict_a_manifest_are_named() -> None:
    tenancy = parse_tenants("tenants: {vision: {defaults: {resources: {shm: 64GiB}}}}")
    with pytest.raises(ManifestError, match="defaults of tenant vision"):
        completed(job(resources={"memory": "1GiB"}), tenancy)
