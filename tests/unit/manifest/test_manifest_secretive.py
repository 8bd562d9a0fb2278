"""Secrets that are written into `env:` are refused, with the way to `secrets:`; harmless names are not."""

from __future__ import annotations

import time

import pytest

from updraft.manifest import parse, refuse_unsupported
from updraft.manifest.secretive import looks_secret

SECRET_NAMES = (
    "PASSWORD", "DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "dbPassword", "TOKEN", "HF_TOKEN", "GITHUB_TOKEN_2",
    "WANDB_API_KEY", "API_KEY", "apiKey", "APIKEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "CLIENT_SECRET",
    "SSH_KEY", "MY_KEY", "GOOGLE_CREDENTIALS", "DB_PASS", "SIGNING_KEY_PEM", "AZURE_CREDENTIAL", "JWT", "AUTH",
    "HTTP_BASIC_AUTH", "REDISCLI_AUTH", "GITHUB_PAT", "PASSCODE", "FERNETKEY", "AIRFLOW__CORE__FERNET_KEY", "TOKEN_HF",
    "PASSWORD_DB", "CLIENT_SECRET_ID", "CONNECTION_STRING", "SESSION_COOKIE", "GOOGLE_APPLICATION_CREDENTIALS_JSON",
    "PASS", "PASSWD_FILE_CONTENT", "API_BEARER", "AUTH_JWT_2", "azureConnectionString", "PASSPHRASE_GPG",
)  # fmt: skip
HARMLESS_NAMES = (
    "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "KEY_COLUMN", "TOKEN_LIMIT", "PAD_TOKEN", "PRIMARY_KEY",
    "SORT_KEY", "KEY", "PWD", "MONKEY", "SECRETARY", "PASSES", "KEYS", "NCCL_DEBUG", "COMPASS", "BYPASS", "TOKENIZER",
    "AUTHOR", "AUTHORS", "PATH", "PYTHONPATH", "TOKEN_TYPE", "TOKEN_DROPOUT", "NUM_TOKENS", "FORWARD_PASS", "LOW_PASS",
    "NO_AUTH", "AUTH_DISABLED", "COOKIES", "PATIENCE", "PATTERN", "SECRET_SANTA", "STRING_CONNECTION", "CREDENTIALED",
)  # fmt: skip
SECRET_VALUES = (
    "AKIA" + "ABCDEFGHIJKLMNOP", "ghp_" + "a1" * 18, "hf_" + "aB" * 17, "sk-" + "proj-" + "a" * 30,
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=" + "a" * 40 + "==", "a" * 30_000 + " ghp_" + "a1" * 18,
    "BlobEndpoint=https://a;SharedAccessSignature=sv=2024", "a" * 90_000 + " ghp_" + "a1" * 18, "ghp_" + "a1" * 45_000,
    "-----BEGIN RSA " + "PRIVATE KEY-----", "postgresql://ada:pw@db/x", "eyJ" + "a" * 20 + "." + "b" * 20 + ".c",
)  # fmt: skip


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_of_a_secret_is_refused_with_the_way_to_secrets(name: str) -> None:
    manifest = parse({"name": "a", "image": "busybox:1", "command": "true", "env": {name: "hunter2"}})
    (error,) = refuse_unsupported(manifest)
    assert error.path == f"env.{name}"
    assert f"as: {name}" in error.text
    assert "updraft secrets set" in error.text
    assert "hunter2" not in error.text


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_a_name_that_only_sounds_alike_is_allowed(name: str) -> None:
    assert not looks_secret(name, "1")


@pytest.mark.parametrize("value", SECRET_VALUES)
def test_a_value_that_looks_like_a_key_is_refused_whatever_its_name(value: str) -> None:
    assert looks_secret("SETTING", value)


@pytest.mark.parametrize(
    "value", ["s3://bucket/key", "https://host/a@b", "1e-3", "max_split_size_mb:128", "a" * 90_000]
)
def test_usual_values_are_allowed(value: str) -> None:
    assert not looks_secret("SETTING", value)


def test_a_value_that_is_long_to_judge_is_judged_soon() -> None:
    began = time.process_time()
    for text in ("eyJ-", "eyJaaaaaaaaaaaaaaa.a", "://a:", "-----BEGIN A", "sk-", "AccountKey "):
        looks_secret("SETTING", text * (400_000 // len(text)))
    assert time.process_time() - began < 2
