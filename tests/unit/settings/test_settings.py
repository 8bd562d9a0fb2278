"""Settings: documented, complete errors, secrets out of sight."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from updraft.exceptions import UpdraftError
from updraft.settings import Settings
from updraft.taints import Toleration

REFERENCE = Path(__file__).parents[3] / "docs/reference/settings.md"
MINIMUM = {
    "UPDRAFT_LEDGER_URL": "sqlite:///ledger.db",
    "UPDRAFT_S3_ENDPOINT": "http://127.0.0.1:9000",
    "UPDRAFT_MLFLOW_URI": "http://127.0.0.1:5000",
}


def test_every_setting_is_documented_with_its_meaning() -> None:
    text = REFERENCE.read_text()
    for name, field in Settings.model_fields.items():
        assert f"`UPDRAFT_{name.upper()}`" in text
        assert field.description is not None
        assert field.description in text


def test_what_is_missing_or_wrong_is_told_at_once() -> None:
    with pytest.raises(UpdraftError) as error:
        Settings.from_environment({"UPDRAFT_DATA_LIMIT_BYTES": "-1"})
    for name in ("LEDGER_URL", "S3_ENDPOINT", "MLFLOW_URI", "CREDENTIALS_FILE", "DATA_LIMIT_BYTES"):
        assert f"UPDRAFT_{name}" in str(error.value)


def test_several_tenants_start_only_where_they_trust_each_other() -> None:
    given = {**MINIMUM, "UPDRAFT_CREDENTIALS_FILE": "/x", "UPDRAFT_TENANTS": "vision,speech"}
    with pytest.raises(UpdraftError, match=r"vision, speech are several tenants.*UPDRAFT_TRUSTED_TENANTS=true"):
        Settings.from_environment(given)
    assert Settings.from_environment({**given, "UPDRAFT_TRUSTED_TENANTS": "true"}).tenants == ("vision", "speech")
    assert Settings.from_environment({**given, "UPDRAFT_TENANTS": "vision"}).tenants == ("vision",)


def test_credentials_are_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(
        json.dumps(
            {"s3": {"access_key": "AK", "secret_key": "hidden-1"}, "mlflow": {"username": "u", "password": "hidden-2"}}
        )
    )
    settings = Settings.from_environment({**MINIMUM, "UPDRAFT_CREDENTIALS_FILE": str(file)})
    credentials = settings.credentials()
    assert credentials.s3.secret_key.get_secret_value() == "hidden-1"
    assert "hidden" not in repr(credentials) + str(credentials) + repr(settings)


def test_a_broken_credentials_file_is_named_and_its_content_is_not(tmp_path: Path) -> None:
    file = tmp_path / "credentials.json"
    file.write_text('{"s3": {"access_key": 5, "secret": "hidden"}}')
    settings = Settings.from_environment({**MINIMUM, "UPDRAFT_CREDENTIALS_FILE": str(file)})
    with pytest.raises(UpdraftError) as error:
        settings.credentials()
    assert str(file) in str(error.value)
    assert "hidden" not in str(error.value)


def test_lists_folders_and_images_are_read_from_text() -> None:
    given = {
        **MINIMUM,
        "UPDRAFT_CREDENTIALS_FILE": "/c",
        "UPDRAFT_GIT_PROTOCOLS": "https, file,",
        "UPDRAFT_LOCAL_SOURCES": f"/data{os.pathsep}/code",
        "UPDRAFT_FRAMEWORK_IMAGES": '{"jax": "lab/jax:1"}',
    }
    settings = Settings.from_environment(given)
    assert settings.git_protocols == ("https", "file")
    assert settings.local_sources == (Path("/data"), Path("/code"))
    assert settings.framework_images == {"jax": "lab/jax:1"}
    wrong = {**given, "UPDRAFT_FRAMEWORK_IMAGES": "jax=lab/jax:1", "UPDRAFT_CODE_LIMIT_BYTES": "0"}
    with pytest.raises(UpdraftError, match=r"UPDRAFT_FRAMEWORK_IMAGES: .*not JSON.*; UPDRAFT_CODE_LIMIT_BYTES: "):
        Settings.from_environment(wrong)


@pytest.mark.parametrize("bucket", ["updraft", "mlflow", "MLflow"])
def test_the_platforms_own_buckets_can_be_no_sources(bucket: str) -> None:
    with pytest.raises(UpdraftError, match=f"UPDRAFT_SOURCE_BUCKETS: '{bucket}' holds the platform's own objects"):
        Settings.from_environment(
            {**MINIMUM, "UPDRAFT_CREDENTIALS_FILE": "c.json", "UPDRAFT_SOURCE_BUCKETS": f"data, {bucket}"}
        )


def test_tolerations_are_written_as_taints_are() -> None:
    given = {**MINIMUM, "UPDRAFT_CREDENTIALS_FILE": "/c", "UPDRAFT_TOLERATIONS": "dedicated=training:NoSchedule, spot"}
    assert Settings.from_environment(given).tolerations == (
        Toleration("dedicated", "training", "NoSchedule"),
        Toleration("spot"),
    )
    with pytest.raises(UpdraftError, match=r"UPDRAFT_TOLERATIONS: .*'a b' is no taint, such as dedicated"):
        Settings.from_environment(given | {"UPDRAFT_TOLERATIONS": "a b"})


def test_a_pod_policy_is_of_a_tenant_or_of_all() -> None:
    given = {**MINIMUM, "UPDRAFT_CREDENTIALS_FILE": "/c", "UPDRAFT_TENANTS": "vision"}
    policies = '{"vision": {"service_accounts": ["trainer"]}}'
    settings = Settings.from_environment({**given, "UPDRAFT_POD_POLICY": policies})
    assert settings.pod_policy_of("vision").service_accounts == ("trainer",)
    assert settings.pod_policy_of("other").service_accounts == ()
    for wrong, said in (
        ('{"visoin": {}}', "UPDRAFT_POD_POLICY: 'visoin' is neither a tenant of UPDRAFT_TENANTS nor"),
        ('{"vision": {"annotations": ["*"]}}', "UPDRAFT_POD_POLICY: .*is no entry; write a key"),
        ('{"vision": {"host_network": true}}', "UPDRAFT_POD_POLICY: Extra inputs"),
        ("vision=all", "UPDRAFT_POD_POLICY: .*not JSON"),
    ):
        with pytest.raises(UpdraftError, match=said):
            Settings.from_environment({**given, "UPDRAFT_POD_POLICY": wrong})
