"""The reference page of the manifest and its JSON Schema as a file, made from the model."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from updraft.manifest import limits
from updraft.manifest.schema import json_schema, leaf
from updraft.manifest.sizes import SIZES
from updraft.manifest.units import DURATION_PATTERN, MEMORY_PATTERN
from updraft.manifest.values import PARAM_CHARACTERS, reserved_env_names
from updraft_data.expectations import MOST_REGEX_CHARACTERS

SCHEMA_FILE = "manifest.schema.json"

LIMITS = (
    ("characters of one file (the manifest, or a suite)", limits.TEXT_CHARACTERS),
    ("characters of all keys and values, suites included", limits.TOTAL_CHARACTERS),
    ("values in all", limits.VALUES),
    ("mappings and lists inside each other", limits.DEPTH),
    ("fields of one mapping, such as `params`, `env` or `annotations`", limits.KEYS),
    ("items of a list in a suite or an annotation", limits.ITEMS),
    ("characters of all regular expressions in suites", MOST_REGEX_CHARACTERS),
    ("items of `data`, `secrets` and `schedule.and_new`", limits.LISTED),
    ("characters of a text, where its field says nothing else", limits.STRING_CHARACTERS),
    ("characters of a parameter", PARAM_CHARACTERS),
    ("characters of a value in `env`", limits.ENV_CHARACTERS),
    ("bytes of a command, also with its parameters filled in", limits.COMMAND_BYTES),
    ("`${params.NAME}` in one command", limits.REFERENCES),
    ("wrong fields that one answer names", limits.REPORTED),
    ("names that an answer lists as allowed", limits.NAMED),
    ("names among which the nearest is looked for", limits.COMPARED),
    ("characters of a name that are compared", limits.COMPARED_CHARACTERS),
)

_EXAMPLE = """\
name: digits-cnn
framework: {name: pytorch, version: "2.15"}
code: .
command: python train.py --epochs ${params.epochs} --lr ${params.lr}
params: {epochs: 10, lr: 1e-3}
resources: {learners: 2, cpus: 1, memory: 2GiB}
data: [{source: s3://datasets/digits/, as: training, expectations: digits.suite.json}]
checkpoints: {every: 60s, keep: {latest: 3, best: 1}, metric: val_accuracy, mode: max}
budget: {infra_attempts: 5, app_attempts: 1, max_runtime: 6h, no_progress: 15m}
failures: [{exit_code: 42, cause: infrastructure, action: relaunch, text: All licenses are in use; they come back.}]
export: {formats: [onnx, torch], register_as: digits-cnn, promote_if: {val_accuracy: ">= champion"}}
schedule: {cron: "0 3 * * *"}
"""


def page() -> str:
    """Return docs/reference/manifest.md."""
    sizes = "\n".join(
        f"| `{name}` | {size.cpus:g} | {size.memory} | {size.gpus or ''} | {size.gpu_type or ''} |"
        for name, size in SIZES.items()
    )
    schema = json_schema()
    tables = "\n\n".join(_tables(schema, schema["$defs"]))
    reserved = ", ".join(f"`{name}`" for name in sorted(reserved_env_names()) if not name.startswith("UPDRAFT_"))
    limited = "\n".join(f"| {what} | {number:,} |" for what, number in LIMITS)
    names = textwrap.fill(reserved, 116, break_on_hyphens=False)
    return f"""\
<!-- Made by `make reference`; change the model, not this page. -->
# The manifest

One YAML or JSON file says what a training job is. Its [JSON Schema]({SCHEMA_FILE}) is made from the same model as
this page and the trigger form. For completion in an editor, put this line at the head of a manifest:
`# yaml-language-server: $schema=<path to {SCHEMA_FILE}>`.

```yaml
{_EXAMPLE}```

Nothing is guessed: a field that is not known, a value in the wrong form, two fields that contradict each other are
errors, and all of them are reported at once. YAML is read with the scalars of YAML 1.2 (`no` is text, `1e-3` is a
number); a key that is written twice is an error. Paths are relative to the manifest's folder.

{tables}

## Sizes

`resources.size` stands for the four values, per learner.

| size | cpus | memory | gpus | gpu_type |
|---|---|---|---|---|
{sizes}

## Limits

They are far above what a job needs, and keep a hostile manifest from taking time and memory from others.

| what | at most |
|---|---|
{limited}

## Units

Memory and disk are a number and one of `KB MB GB TB` (powers of 1000) or `KiB MiB GiB TiB` (powers of 1024;
`Ki Mi Gi Ti` mean the same). A length of time is `90s`, `15m`, `6h`, `7d` or a sum of them, largest first: `1h30m`.
A bare number is neither.

## Sources

| form | code | data |
|---|---|---|
| `folder` or `file.zip` beside the manifest, uploaded by the CLI | yes | yes |
| `s3://bucket/prefix`, or one object | yes | yes |
| `pvc://claim/folder`: a PersistentVolumeClaim of the tenant's namespace, mounted read-only | no | yes |
| `git+https://host/repository@<commit>` (7 or more digits), `@v1.2` or `@refs/tags/NAME` | yes | no |
| `tree:<sha256>`: content that is already stored; the CLI writes it | yes | yes |

`#subdirectory=FOLDER` after a git address takes one folder of the repository. A branch is refused, because two runs
of it could differ. No address may hold credentials.

A claim must be bound when the job is submitted; for several learners its access modes must allow several nodes.
Nothing of it is copied or read before the learners start: it takes neither `expectations` nor `limit`, and the job
records which volume it was, not what was in it. No other data set may lie below a claim's folder.

## Commands

`/bin/sh -c` runs the command in the folder of the code. `${{params.NAME}}` is replaced by the parameter, quoted for
the shell, so write it outside quotes. All else that begins with `$` is the shell's.

## Rules of promotion

A registered model belongs to the tenant whose job registered under its name first (the model's tag `updraft.tenant`);
a job of another tenant that names it is refused before it waits in the queue. A model that a person made in MLflow with
versions of their own belongs to no tenant until that tag is set.

`export.promote_if` maps a metric to a rule: `>= champion`, `> champion`, `< champion - 0.01`, `>= 0.95`.
`champion + 0.01` alone means `>= champion + 0.01`. All rules must hold. While there is no champion, rules about it
hold. A value that is not finite never promotes; neither does a metric that is missing. Without rules the alias is
not moved.

## Failures

`budget` says how many launches may be lost, and to what; [failures.md](failures.md) has every kind of failure that the
platform knows, what it counts as, and what is done about it. `failures` adds what only the job knows: a row is met
when a learner's program ends with its `exit_code`, when one of its last lines holds `contains`, or, if both are given,
by both. The first row that is met counts, before those of the platform.

## Secrets

Every user who may see the job can read `env`. A variable that looks like a secret is refused there, by its name
(`HF_TOKEN`, `DB_PASSWORD`, `CONNECTION_STRING`, `GITHUB_PAT`) or by its value (keys of known services, a URL with a
password); `secrets` names a stored one in its place. The names are a list, so a secret under another name passes.

## Names that the platform sets

`env` and `secrets` may not set names that begin with `UPDRAFT_`, nor:
{names}.

## What is refused at submission

A `tenant` that the platform has not been given is refused by name.

`schedule` acts on the manifests in `jobs/`; a manifest that is submitted by hand runs once, now.

## FfDL

FfDL's V1 manifest is accepted as it is and converted. A warning says where FfDL guessed silently, and what happens
here instead; what it guessed from nonsense is an error.

| FfDL | here |
|---|---|
| `name` | `name`, rewritten to the characters allowed here |
| `cpus` (none: 5), `gpus`, `gpu_type`, `learners` | `resources` |
| `memory` | `resources.memory`; what cannot be read is an error (FfDL took 512 MB) |
| `framework.name`, `framework.command` | `framework.name`, `command`; `custom` makes `framework.version` the `image` |
| `framework.version` | recorded; the platform's version of the framework is used |
| `data_stores[0].training_data` | `data[0]`, laid out in DATA_DIR itself |
| `data_stores[0].connection` | a stored secret `ffdl-<name>-<id>`; FfDL's bundled store is the platform's own |
| `data_stores[0].training_results` | `results.to`, with the secret of the data; for the bundled store recorded only |
| `storage` | recorded in `annotations`, not acted on; `resources.disk` limits a learner's disk |
| `evaluation_metrics` | `metrics`; `logger` needs none, `optivist` and `file` are read as `emetrics_file` |
| `version` | recorded in `annotations`, not acted on |
"""


def schema_text() -> str:
    """Return docs/reference/manifest.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _tables(part: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the table of a part's fields, then those of the parts inside it."""
    fields = {name: leaf(node, definitions) for name, node in part["properties"].items()}
    needed = dict.fromkeys(part.get("required", ()), "**required**")
    needed |= dict.fromkeys(part.get("anyOf", [{}])[0].get("required", ()), "**required** without `task`")
    rows = [
        f"| `{prefix}{name}` | {_kind(field)} | {needed.get(name) or _default(field)} | {_meaning(field)} |"
        for name, field in fields.items()
    ]
    heading = f"## `{prefix.rstrip('.')}`\n\n{part['description']}\n" if prefix else "## Fields\n"
    yield "\n".join([heading, "| field | type | default | meaning |", "|---|---|---|---|", *rows])
    for name, field in fields.items():
        listed = leaf(field.get("items", {}), definitions)
        inner, mark = (listed, "[]") if "properties" in listed else (field, "")
        if "properties" in inner:
            yield from _tables(inner, definitions, f"{prefix}{name}{mark}.")


def _meaning(field: Mapping[str, Any]) -> str:
    example = f" Example: `{_one_line(field['examples'][0])}`" if field.get("examples") else ""
    return f"{field['description'].rstrip('.')}.{example}".replace("|", "\\|")


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    return "" if default in (None, "", [], {}) else f"`{_one_line(default)}`"


def _one_line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(field: Mapping[str, Any]) -> str:
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    if "enum" in field:
        return ", ".join(f"`{name}`" for name in field["enum"])
    if kinds == ["array"]:
        return f"list of {_kind(field['items'])}" if "type" in field["items"] else "list of mappings"
    words = {"object": "mapping", "string": "text", "integer": "whole number"}
    units = {MEMORY_PATTERN: "amount", DURATION_PATTERN: "time"}
    text = units.get(field.get("pattern", "")) or " or ".join(words.get(str(kind), str(kind)) for kind in kinds)
    low = f" ≥ {field['minimum']}" if "minimum" in field else ""
    return text + low + (f", ≤ {field['maximum']}" if "maximum" in field else "")
