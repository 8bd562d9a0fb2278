"""Validate single values for the model. Each function returns the value or raises a PydanticCustomError."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic_core import PydanticCustomError

from updraft.manifest import limits
from updraft.manifest.cron import check_cron as _check_cron
from updraft.manifest.errors import VALUE, FieldError, all_wrong, join_path, shown_key, wrong
from updraft.manifest.rules import parse_rule
from updraft.manifest.sources import parse_source
from updraft_data.expectations import MOST_REGEX_CHARACTERS, regex_characters, suite_errors
from updraft_learner import contract

NAME_LENGTH = 40
NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$"
NAME_ALLOWED = "lower-case letters, digits and hyphens, a letter first, at most 40 characters"
PARAM_CHARACTERS = 6000  # MLflow's limit for one param's value
CONTAINED_CHARACTERS = (4, 200)
FAILURE_CHARACTERS = 300
# If a container sets this, NVIDIA's runtime gives it all GPUs of the node, also those of other pods.
GPU_VARIABLE = "NVIDIA_VISIBLE_DEVICES"

_NAME = re.compile(NAME_PATTERN.strip("^$"), re.ASCII)
_SECRET_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_PARAM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./ -]{0,249}", re.ASCII)
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_GPU_TYPE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]{0,253}(@sha256:[0-9a-f]{64})?", re.ASCII)
_TIMEZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", re.ASCII)


@cache
def reserved_env_names() -> frozenset[str]:
    """Return the names of the variables that the platform sets, which `env` must not set."""
    names = contract.learner_environment(
        job_id="", role="", attempt=1, learner=1, learners=1, gpus=0, run_id="", experiment_id="",
        master_addr="", master_port=0, command="", checkpoint_seconds=1.0, batch=1, coordinator="",
    )  # fmt: skip
    return frozenset(names) | {GPU_VARIABLE, contract.ENDPOINT_TOKEN_ENV}


def slug(text: str) -> str:
    """Return the nearest valid name."""
    name = re.sub(r"[^a-z0-9]+", "-", text[:200].lower()).strip("-")
    if not name[:1].isalpha():
        name = f"job-{name}".strip("-")
    return name[:NAME_LENGTH].strip("-")


def raise_all(fields: Iterable[FieldError]) -> None:
    found = [(field, None) for field in islice(fields, limits.REPORTED + 1)]
    if found:
        raise all_wrong(found)


def check_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise wrong(f"{VALUE} is not a valid name", NAME_ALLOWED, f"'{slug(value)}'", value=value)
    return value


def check_secret_name(value: str) -> str:
    if not _SECRET_NAME.fullmatch(value):
        raise wrong(f"{VALUE} is not the name of a secret", "lower-case letters, digits, hyphens and dots", value=value)
    return value


def check_command(value: str) -> str:
    if not value.strip():
        raise wrong("is empty", "the shell command that starts the program", "'python train.py'", value=value)
    if len(value.encode()) > limits.COMMAND_BYTES:
        raise wrong(
            f"has {len(value.encode())} bytes",
            f"at most {limits.COMMAND_BYTES} bytes; put a longer script into the code's folder",
            value=value[:40],
        )
    return value


def check_contained(value: str) -> str:
    """Check a text that is looked for in single lines of a log."""
    allowed = f"{CONTAINED_CHARACTERS[0]} to {CONTAINED_CHARACTERS[1]} characters of one line"
    if not CONTAINED_CHARACTERS[0] <= len(value.strip()) or len(value) > CONTAINED_CHARACTERS[1]:
        raise wrong(f"{VALUE} has {len(value.strip())} characters", allowed, value=value)
    if len(value.splitlines()) > 1:
        raise wrong("has more than one line", allowed, value=value)
    return value


def check_failure_text(value: str) -> str:
    if not value.strip():
        raise wrong("is empty", "a sentence for people", value=value)
    if len(value) > FAILURE_CHARACTERS:
        problem = f"has {len(value)} characters"
        raise wrong(problem, f"at most {FAILURE_CHARACTERS} characters", value=value)
    return value


def check_metric_name(value: str) -> str:
    if not _METRIC_NAME.fullmatch(value):
        raise wrong(f"{VALUE} is not the name of a metric", "letters, digits, _ . - / and blanks", value=value)
    return value


def is_model_name(value: str) -> bool:
    return _MODEL_NAME.fullmatch(value) is not None


def check_model_name(value: str) -> str:
    if not is_model_name(value):
        allowed = "letters, digits, dots, hyphens and underscores, at most 100"
        raise wrong(f"{VALUE} is not a valid name of a model", allowed, f"'{slug(value)}'", value=value)
    return value


def check_gpu_type(value: str) -> str:
    if not _GPU_TYPE.fullmatch(value):
        raise wrong(f"{VALUE} is not a type of GPU", "the value of the cluster's GPU label", "v100", value=value)
    return value


def check_image(value: str) -> str:
    if not _IMAGE.fullmatch(value) or "//" in value:
        raise wrong(f"{VALUE} is not an image", "registry/name:tag or registry/name@sha256:DIGEST", value=value)
    return value


def check_version(value: object) -> str | None:
    """Check a version or a range of versions. Numbers are refused: YAML reads 2.10 as 2.1."""
    if value is None or (isinstance(value, str) and (_VERSION.fullmatch(value) or _is_range(value))):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise wrong(
            f"{VALUE} is a number, and 2.10 would become 2.1", "the version in quotes", f"'{value}'", value=value
        )
    raise wrong(f"{VALUE} is not a version", "a version or a range in quotes", "'2.15' or '>=2.10,<3'", value=value)


def _is_range(value: str) -> bool:
    try:
        return len(value) <= 64 and len(SpecifierSet(value)) > 0
    except InvalidSpecifier:
        return False


def check_code(value: str) -> str:
    parse_source(value, git=True)
    return value


def check_data_source(value: str) -> str:
    parse_source(value, git=False)
    return value


def check_s3(value: str) -> str:
    if parse_source(value, git=False).kind != "s3":
        raise wrong(f"{VALUE} is not in an object store", "s3://bucket/prefix", "s3://datasets/digits/", value=value)
    return value


def check_mount(value: str) -> str:
    parts = value.split("/")
    if value != "." and (not value or any(part in ("", ".", "..") for part in parts) or "\\" in value):
        raise wrong(f"{VALUE} is not a folder below DATA_DIR", "a relative path without '..'", "training", value=value)
    return value


def check_formats(value: tuple[str, ...]) -> tuple[str, ...]:
    if not value:
        raise wrong("lists nothing", "at least one format, or no export section", "[onnx]", value=list(value))
    if len(set(value)) != len(value):
        raise wrong("names a format twice", "each format once", value=list(value))
    return value


def check_cron(value: str) -> str:
    return _check_cron(value)


def check_timezone(value: str) -> str:
    try:
        if _TIMEZONE.fullmatch(value):
            ZoneInfo(value)
            return value
    except (KeyError, ValueError, OSError):
        pass  # each of the three means that the zone does not exist
    raise wrong(f"{VALUE} is not a known time zone", "a name of the IANA database", "Europe/Berlin", value=value)


def check_params(value: object) -> dict[str, str | int | float | bool]:
    def check(name: str, item: object) -> None:
        if not _PARAM_NAME.fullmatch(name):
            raise wrong("is not a valid name of a parameter", "letters, digits, _ . and -, a letter first")
        if not isinstance(item, str | int | float | bool):
            raise wrong(f"{VALUE} is not a single value", "text, a number, true or false", value=item)
        if isinstance(item, float) and not math.isfinite(item):
            raise wrong(f"{VALUE} is not a finite number", "a finite number", value=item)
        if isinstance(item, str) and len(item) > PARAM_CHARACTERS:
            raise wrong("is too long", f"at most {PARAM_CHARACTERS} characters")

    return check_each(value, check, "a mapping of names to values", "{epochs: 10}")


def check_env_name(name: str) -> str:
    if not _ENV_NAME.fullmatch(name):
        raise wrong(
            f"{VALUE} is not the name of an environment variable", "letters, digits and _", "HUB_TOKEN", value=name
        )
    if name.startswith("UPDRAFT_") or name in reserved_env_names():
        raise wrong(
            f"{name} is set by the platform", "a name that is neither of the platform's nor starts with UPDRAFT_"
        )
    return name


def check_env(value: object) -> dict[str, str]:
    def check(name: str, item: object) -> None:
        check_env_name(name)
        if not isinstance(item, str):
            raise wrong(f"{VALUE} is not text", "the value in quotes", _quoted(item), value=item)
        if len(item) > limits.ENV_CHARACTERS:
            raise wrong("is too long", f"at most {limits.ENV_CHARACTERS} characters")

    return check_each(value, check, "a mapping of names to text", "{OMP_NUM_THREADS: '1'}")


INIT_FROM = re.compile(r"champion|[a-z0-9][a-z0-9-]{0,51}(/[A-Za-z0-9._-]{1,200})?", re.ASCII)


def check_init_from(value: str) -> str:
    """Return what `init_from` names. Raises PydanticCustomError."""
    if not INIT_FROM.fullmatch(value):
        allowed = "champion, the id of a job, or job/checkpoint"
        raise wrong(f"{VALUE} names no checkpoint", allowed, "champion", value=value)
    return value


def check_marker(value: str) -> str:
    """Return the name of an object. Raises PydanticCustomError for a path."""
    if not value or "/" in value or len(value) > 200:
        raise wrong(f"{VALUE} is no name of an object", "a name without slashes", "_SUCCESS", value=value)
    return value


def check_promote_if(value: object) -> dict[str, str]:
    def check(metric: str, text: object) -> None:
        check_metric_name(metric)
        parse_rule(metric, text)

    rules = check_each(value, check, "a mapping of metrics to rules", "{val_accuracy: '>= champion'}")
    return {metric: str(parse_rule(metric, text)) for metric, text in rules.items()}


def check_annotations(value: object) -> dict[str, Any]:
    return check_each(value, lambda name, item: None, "a mapping of names to values", "{ticket: V-12}")


def check_suites(value: object) -> object:
    """Refuse data whose suites are together too long to be checked, before any of them is."""
    listed = value if isinstance(value, list | tuple) else ()
    found = regex_characters(item.get("expectations") for item in listed if isinstance(item, dict))
    if found > MOST_REGEX_CHARACTERS:
        problem = f"the regular expressions in expectations have {found} characters"
        raise wrong(problem, f"at most {MOST_REGEX_CHARACTERS} in all")
    return value


def check_expectations(value: object) -> str | dict[str, Any]:
    """Return a file name, or a suite whose expectations are all on the allow-list with the kwargs that they take."""
    if isinstance(value, str):
        if parse_source(value, git=False).kind != "local" or not value.endswith(".json"):
            raise wrong(
                f"{VALUE} is not a JSON file beside the manifest", "the suite's file", "data.suite.json", value=value
            )
        return value
    example = "{expectations: [{type: expect_column_to_exist, kwargs: {column: label}}]}"
    if not isinstance(value, dict):
        raise wrong(f"{VALUE} is not a suite", "a JSON file beside the manifest, or the suite", example, value=value)
    wrong_ones = suite_errors(value.get("expectations"))
    raise_all(FieldError(each.path, None, each.problem, each.allowed, each.example) for each in wrong_ones)
    return value


def check_each(value: object, check: Callable[[str, Any], object], allowed: str, example: str) -> dict[str, Any]:
    """Check every item of a mapping and reports all that are wrong together."""
    if not isinstance(value, dict):
        raise wrong(f"{VALUE} is not a mapping", allowed, example, value=value)
    found: list[tuple[FieldError, object]] = []
    for name, item in value.items():
        if len(found) > limits.REPORTED:
            break
        key = str(name)
        try:
            check(key, item)
        except PydanticCustomError as exc:
            fields: tuple[tuple[FieldError, object], ...] = (exc.context or {})["fields"]
            found += [(_below(key, field), shown) for field, shown in fields]
    if found:
        raise all_wrong(found)
    return dict(value)


def _below(key: str, field: FieldError) -> FieldError:
    return FieldError(join_path(shown_key(key), field.path), None, field.problem, field.allowed, field.suggestion)


def _quoted(value: object) -> str:
    if isinstance(value, bool):
        return "'true'" if value else "'false'"
    return f"'{value}'" if isinstance(value, int | float) else "'1'"
