"""Check fields of a manifest against each other. The checks work on the raw mapping, so that their errors are reported
together with those of single fields; they skip a value that is malformed by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from updraft.manifest.adopting import adopting_errors
from updraft.manifest.collecting import collecting_errors
from updraft.manifest.command import unknown_params
from updraft.manifest.elastic import elastic_errors
from updraft.manifest.environment import environment_errors
from updraft.manifest.errors import FieldError, show
from updraft.manifest.pod_checks import pod_errors
from updraft.manifest.processes import processes_errors
from updraft.manifest.sizes import SIZES
from updraft.manifest.strategy import strategy_errors
from updraft.manifest.task import task_errors
from updraft.manifest.units import parse_memory


def cross_field_errors(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield everything that is wrong between fields."""
    for check in (
        _image,
        _size,
        _commands,
        _secrets,
        _data,
        elastic_errors,
        _checkpoints,
        collecting_errors,
        _failures,
        _export,
        _gate,
        _init_from,
        _schedule,
        environment_errors,
        pod_errors,
    ):
        yield from check(raw)
    yield from task_errors(raw)
    yield from strategy_errors(raw)
    yield from processes_errors(raw)


def _part(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    return value if isinstance(value, Mapping) else {}


def _items(raw: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = raw.get(name)
    if not isinstance(value, list | tuple):
        return []
    return [item if isinstance(item, Mapping) else {} for item in value]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _image(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    framework, image = raw.get("framework"), raw.get("image")
    if framework is None and image is None:
        yield FieldError("framework", None, "is missing, and so is image", "one of the two", "{name: pytorch}")
    elif framework is not None and image is not None:
        yield FieldError("image", None, "is given, and framework too", "one of the two")


def _size(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    resources = _part(raw, "resources")
    name = resources.get("size")
    size = SIZES.get(name) if isinstance(name, str) else None
    for field, standard in (size.resources() if size else {}).items():
        if field in resources and not _equal(field, resources[field], standard):
            yield FieldError(
                f"resources.{field}",
                show(resources[field]),
                f"{show(resources[field])} is not what size {name} has, which is {show(standard)}",
                "either a size or the single values",
            )
    gpus = resources.get("gpus", size.gpus if size else 0)
    if not size and _is_count(gpus) and gpus == 0 and isinstance(resources.get("gpu_type"), str):
        yield FieldError("resources.gpu_type", None, "is given, but gpus is 0", "gpus of at least 1, or no gpu_type")


def _equal(field: str, value: object, standard: object) -> bool:
    if field == "memory":
        try:
            return parse_memory(value) == parse_memory(standard)
        except PydanticCustomError:
            return True  # the model reports it
    return value == standard


def _commands(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    params = _part(raw, "params")
    for path, command in (("command", raw.get("command")), ("evaluate.command", _part(raw, "evaluate").get("command"))):
        if isinstance(command, str):
            yield from unknown_params(path, command, params)


def _secrets(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    taken = set(_part(raw, "env"))
    for number, secret in enumerate(_items(raw, "secrets")):
        name = secret.get("as")
        if not isinstance(name, str):
            continue
        if name in taken:
            yield FieldError(f"secrets[{number}].as", None, "is a name that is set twice", "a name used once")
        taken.add(name)


def _data(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    taken: set[str] = set()
    for number, data in enumerate(_items(raw, "data")):
        source = str(data.get("source", ""))
        if data.get("secret") is not None and not source.startswith("s3://"):
            problem = "is given, but the source is not in an object store"
            yield FieldError(f"data[{number}].secret", None, problem, "a secret only for s3://")
        if source.startswith("pvc://"):
            yield from _claim(number, data)
        if data.get("mode") == "stream" and data.get("expectations") is not None:
            problem = "is given, but streamed data is not read before the learners start"
            allowed = "no expectations for mode: stream, or mode: copy"
            yield FieldError(f"data[{number}].expectations", None, problem, allowed)
        if data.get("increment") is True:
            if data.get("mode") == "stream" or source.startswith("pvc://"):
                problem = "is given, but the platform does not have the files of this data"
                yield FieldError(f"data[{number}].increment", "true", problem, "mode: copy or mode: mount")
            if _part(raw, "export").get("register_as") is None:
                problem = "is given, but nothing is registered, so there is no champion"
                yield FieldError(f"data[{number}].increment", "true", problem, "export.register_as too")
        mount = data.get("as", ".")
        if not isinstance(mount, str):
            continue
        if mount in taken:
            problem = f"{show(mount)} is already the folder of another data set"
            yield FieldError(f"data[{number}].as", show(mount), problem, "a folder of its own", f"data-{number}")
        taken.add(mount)
    yield from _hidden(_items(raw, "data"))


def _claim(number: int, data: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield the fields that need the platform to read the data, which only the learners read."""
    if data.get("mode") in ("copy", "stream"):
        problem = f"{show(data['mode'])} is not possible for a claim, which is mounted as it is"
        yield FieldError(f"data[{number}].mode", show(data["mode"]), problem, "mount for pvc://, or no mode")
    if data.get("expectations") is not None:
        problem = "is given, but data of a claim is mounted as it is and not read before the learners start"
        allowed = "no expectations for pvc://, or a copy of the data in s3://"
        yield FieldError(f"data[{number}].expectations", None, problem, allowed)
    if data.get("limit") is not None:
        problem = "is given, but nothing of a claim is copied"
        yield FieldError(f"data[{number}].limit", None, problem, "no limit for pvc://")


def _hidden(items: list[Mapping[str, Any]]) -> Iterator[FieldError]:
    """Yield an error for each data set below a folder that is mounted: the mount covers it and would hide the data."""
    mounts = [item.get("as", ".") for item in items]
    claims = [
        mount
        for mount, item in zip(mounts, items, strict=True)
        if str(item.get("source", "")).startswith("pvc://") or item.get("mode") == "mount"
    ]
    for number, mount in enumerate(mounts):
        above = [c for c in claims if isinstance(mount, str) and isinstance(c, str) and _is_below(mount, c)]
        if above:
            problem = f"{show(mount)} is below {show(above[0])}, which a mount covers"
            yield FieldError(f"data[{number}].as", show(mount), problem, "folders that lie beside each other")


def _is_below(mount: str, other: str) -> bool:
    return mount != other and (other == "." or mount.startswith(f"{other}/"))


def _checkpoints(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    checkpoints = _part(raw, "checkpoints")
    yield from adopting_errors(checkpoints)
    best = _part(checkpoints, "keep").get("best")
    if _is_count(best) and best and checkpoints.get("metric") is None:
        problem = f"{show(best)} best checkpoints cannot be told without a metric"
        yield FieldError("checkpoints.keep.best", show(best), problem, "checkpoints.metric too, or best 0")


def _failures(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    budget = raw.get("budget")
    fields = {"infrastructure": ("infra_attempts", 5), "program": ("app_attempts", 0)}
    for number, rule in enumerate(_items(raw, "failures")):
        path, cause, action = f"failures[{number}]", rule.get("cause"), rule.get("action")
        if rule.get("exit_code") is None and rule.get("contains") is None:
            problem = "is missing, and so is contains"
            yield FieldError(f"{path}.exit_code", None, problem, "an exit code, a text of the log, or both", "42")
        if not isinstance(cause, str) or not isinstance(action, str) or action == "stop":
            continue
        if cause in ("configuration", "data"):
            problem = f"{show(action)} is no action for {cause}, which is never tried again"
            yield FieldError(f"{path}.action", show(action), problem, "stop, or another cause", "stop")
        elif cause in fields and (budget is None or isinstance(budget, Mapping)):
            field, default = fields[cause]
            attempts = (budget or {}).get(field)
            if attempts == 0 or (attempts is None and default == 0):
                problem = f"{show(action)} can never be, because budget.{field} is 0"
                yield FieldError(f"{path}.action", show(action), problem, f"stop, or a budget.{field} of at least 1")


def _export(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    export = _part(raw, "export")
    if _part(export, "promote_if") and export.get("register_as") is None:
        yield FieldError("export.promote_if", None, "is given, but nothing is registered", "export.register_as too")
    formats, trusted = export.get("formats"), export.get("trust_code") is True
    own = isinstance(formats, list | tuple) and "mlflow" in formats
    if own and len(formats) > 1:  # type: ignore[arg-type]
        yield FieldError("export.formats", show(list(formats)), "names mlflow and others", "mlflow alone", "[mlflow]")  # type: ignore[arg-type]
    if own and not trusted:
        problem = "names mlflow, and loading the program's own MLflow model runs the job's code"
        yield FieldError("export.formats", show(list(formats)), problem, "onnx, torch, or trust_code: true too")  # type: ignore[arg-type]
    if trusted and not own:
        yield FieldError("export.trust_code", "true", "is given, but no code is exported", "formats: [mlflow] too")


def _gate(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    export = _part(raw, "export")
    gate = _part(export, "gate")
    if not gate:
        return
    if export.get("register_as") is None:
        yield FieldError("export.gate", None, "is given, but nothing is registered", "export.register_as too")
    if not _part(raw, "evaluate"):
        problem = "is given, but no command writes predictions.parquet"
        yield FieldError("export.gate", None, problem, "evaluate.command too", "python evaluate.py")
    listed = _items(gate, "slices")
    bounds = [each.get(name) for each in (gate, *listed) for name in ("threshold", "margin")]
    others = ("latency_ms", "size", "require")
    if all(bound is None for bound in bounds) and not any(gate.get(name) for name in others):
        problem = "has no rule"
        yield FieldError("export.gate", None, problem, f"threshold, margin, slices, {', '.join(others)}", "margin: 0")
    for number, each in enumerate(listed):
        if each.get("threshold") is None and each.get("margin") is None:
            field = f"export.gate.slices[{number}].threshold"
            yield FieldError(field, None, "is missing, and so is margin", "a threshold, a margin, or both", "0.8")
    required = gate.get("require")
    wanted = required if isinstance(required, list | tuple) else ()
    trusted = export.get("trust_code") is True
    if trusted and gate.get("latency_ms") is not None:
        problem = "is given, and the platform does not run a model that it takes unchecked (trust_code)"
        yield FieldError("export.gate.latency_ms", show(gate["latency_ms"]), problem, "formats: [onnx]")
    if trusted and "verified_model" in wanted:
        problem = "names verified_model, and export.trust_code takes the model unchecked"
        yield FieldError("export.gate.require", show(list(wanted)), problem, "one of the two")
    if "validated_data" in wanted and not all(each.get("expectations") for each in _items(raw, "data") or [{}]):
        problem = "names validated_data, and not every data set has expectations"
        yield FieldError("export.gate.require", show(list(wanted)), problem, "data[].expectations too")


def _init_from(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    if raw.get("init_from") == "champion" and _part(raw, "export").get("register_as") is None:
        problem = "is given, but nothing is registered, so there is no champion"
        yield FieldError("init_from", show("champion"), problem, "export.register_as too, or the id of a job")


def _schedule(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    schedule = raw.get("schedule")
    if not isinstance(schedule, Mapping):
        return
    cron, new = schedule.get("cron"), schedule.get("and_new")
    if cron is None and not new and schedule.get("or_champion_older") is None:
        allowed = "five cron fields or a name; or and_new, or_champion_older"
        yield FieldError("schedule.cron", None, "is missing", allowed, "'0 3 * * *'")
    for field in ("secret", "quiet", "marker"):
        if schedule.get(field) is not None and not new:
            yield FieldError(f"schedule.{field}", show(schedule[field]), "is given without and_new", "and_new too")
    if schedule.get("at_most_every") is not None and cron is not None:
        problem = "is given with cron, which says the times"
        yield FieldError("schedule.at_most_every", show(schedule["at_most_every"]), problem, "one of the two")
    if isinstance(schedule.get("and_drift"), Mapping):
        if not any(item.get("expectations") for item in _items(raw, "data")):
            problem = "is given, but no data set is validated, so nothing is known of its columns"
            yield FieldError("schedule.and_drift", None, problem, "data[].expectations too")
        if _part(raw, "export").get("register_as") is None:
            problem = "is given, but nothing is registered, so there is no champion"
            yield FieldError("schedule.and_drift", None, problem, "export.register_as too")
    if schedule.get("or_champion_older") is not None and _part(raw, "export").get("register_as") is None:
        problem = "is given, but nothing is registered, so there is no champion"
        yield FieldError(
            "schedule.or_champion_older", show(schedule["or_champion_older"]), problem, "export.register_as too"
        )
