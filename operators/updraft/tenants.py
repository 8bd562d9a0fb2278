"""Define what each tenant may use of the shared cluster, and read it from a file under version control.

    tenants:
      vision:
        weight: 2                      # of its fair share; 1 without it
        quota: {gpu: 8, cpu: 20}       # devices: GPUs, and learners without GPUs
        borrow: {gpu: 4}               # beyond the quota, at most; without it, whatever is free
        lend: {gpu: 6}                 # of what it does not use, at most; without it, all
        priorities: [low, normal]

A kind of device that `quota` does not name is not limited.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, field_serializer, model_validator

from updraft.exceptions import UpdraftError
from updraft.manifest import Manifest, parse, refuse_unsupported
from updraft.manifest.errors import VALUE, FieldError, ManifestError, all_wrong, one_of, show, wrong
from updraft.manifest.explain import field_errors
from updraft.manifest.model import Budget, Environment, Notify, Resources
from updraft.manifest.part import Part
from updraft.manifest.pod import Pod
from updraft.manifest.text import read_mapping
from updraft.manifest.values import check_gpu_type, check_name
from updraft.settings import NOT_ISOLATED, TRUST_ADVICE, refuse_untrusted_tenants, tenants_of

CPU = "cpu"  # a learner without GPUs
GPU = "gpu"  # a GPU of any type
MOST_DEVICES = 1_000_000
MOST_TENANTS = 1_000
FILE_BYTES = 1_000_000

Priority = Literal["low", "normal", "high"]
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high")


def _kind(value: str) -> str:
    return value if value in (CPU, GPU) else check_gpu_type(value)


Number = Annotated[int, Field(strict=True, ge=0, le=MOST_DEVICES)]
User = Annotated[str, Field(strict=True, min_length=1, max_length=250)]
Devices = dict[Annotated[str, AfterValidator(_kind)], Number]


def _some(value: tuple[Priority, ...]) -> tuple[Priority, ...]:
    if not value:
        raise wrong("lists nothing", "the priorities that the tenant's jobs may have", "[low, normal]")
    return value


def _positive(value: float) -> float:
    if value <= 0:
        raise wrong(f"{VALUE} gives the tenant no share", "a number above 0", "1", value=value)
    return value


class Defaults(Part):
    """What a tenant's manifests mean where they leave a field out. A field that is left out here too has the default of
    the manifest."""

    priority: Priority | None = Field(None, description="Priority of its jobs")
    resources: Resources | None = Field(None, description="What each learner gets")
    pod: Pod | None = Field(None, description="Where its jobs' pods may run")
    env: Environment | None = Field(None, description="Environment variables of its programs")
    budget: Budget | None = Field(None, description="What its jobs may spend")
    notify: Notify | None = Field(None, description="Who is told what about its jobs")

    @model_validator(mode="after")
    def _amounts_in_place_of_a_size(self) -> Self:
        if self.resources is not None and self.resources.size is not None:
            problem = f"{VALUE} cannot be a default: it would contradict a manifest that gives cpus or memory"
            error = FieldError("resources.size", None, problem, "cpus, memory, gpus and gpu_type")
            raise all_wrong([(error, self.resources.size)])
        return self

    def given(self) -> dict[str, Any]:
        """Return what was written, as plain JSON values."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class Tenant(Part):
    """What one tenant may use. Kinds of devices are `cpu` (a learner without GPUs), `gpu` (a GPU of any type), and the
    types of GPUs as the cluster labels them."""

    weight: Annotated[float, Field(allow_inf_nan=False, le=1e6), AfterValidator(_positive)] = Field(
        1.0, description="Weight of its fair share against those of the others"
    )
    quota: Devices = Field({}, description="Devices that it may always use, by kind")
    borrow: Devices = Field(
        {}, description="Devices that it may use beyond its quota while others do not need theirs; without it, all"
    )
    lend: Devices = Field({}, description="Devices of its quota that others may use while it does not; without it, all")
    priorities: Annotated[tuple[Priority, ...], AfterValidator(_some)] = Field(
        PRIORITIES, description="Priorities that its jobs may have"
    )
    defaults: Defaults = Field(Defaults(), description="What its manifests mean where they leave a field out")
    people: tuple[User, ...] = Field(
        (),
        description="Airflow's users who may run its jobs and see them; without it, those whose teams in Airflow name "
        "the tenant",
    )

    @model_validator(mode="after")
    def _limits_belong_to_quotas(self) -> Self:
        errors: list[tuple[FieldError, object]] = []
        for name, limits in (("borrow", self.borrow), ("lend", self.lend)):
            for kind in sorted(set(limits) - set(self.quota)):
                problem = f"is given, but quota names no {kind}, so that there is no limit"
                errors.append((FieldError(f"{name}.{kind}", None, problem, f"quota.{kind} too"), limits[kind]))
        for kind in sorted(set(self.lend) & set(self.quota)):
            if kind == CPU:
                problem = "cannot be limited: how many learners without GPUs the cluster holds is not known"
                errors.append((FieldError("lend.cpu", None, problem, "no lend.cpu"), None))
            elif self.lend[kind] > self.quota[kind]:
                problem = f"{VALUE} is more than the quota of {self.quota[kind]}"
                errors.append(
                    (FieldError(f"lend.{kind}", None, problem, f"at most {self.quota[kind]}"), self.lend[kind])
                )
        if errors:
            raise all_wrong(errors)
        return self

    @field_serializer("defaults")
    def _as_given(self, defaults: Defaults) -> dict[str, Any]:
        return defaults.given()

    def most(self, kind: str) -> int | None:
        """Return the number of devices of the kind that it may use at all; None: no limit."""
        if kind not in self.quota or kind not in self.borrow:
            return None
        return self.quota[kind] + self.borrow[kind]


class TenantsFile(Part):
    """The whole file."""

    tenants: dict[Annotated[str, AfterValidator(check_name)], Tenant] = Field(
        min_length=1, max_length=MOST_TENANTS, description="Tenants by name"
    )
    administrators: tuple[User, ...] = Field((), description="Airflow's users who may see and run the jobs of all")


@dataclass(frozen=True)
class Tenancy:
    """The tenants that exist.

    Args:
        tenants: By name.
        administrators: Users who belong to all tenants.
        problem: Why the file of tenants cannot be read now, if it cannot; `tenants` is what it said before.
    """

    tenants: Mapping[str, Tenant] = field(default_factory=lambda: {"default": Tenant()})
    administrators: tuple[str, ...] = ()
    problem: str | None = None

    @classmethod
    def of(cls, *names: str) -> Tenancy:
        """Return tenants without limits."""
        return cls({name: Tenant() for name in names})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tenants)

    def document(self) -> dict[str, Any]:
        """Return the tenants as plain JSON values; `from_document` reads them."""
        return TenantsFile(tenants=dict(self.tenants), administrators=self.administrators).model_dump(mode="json")

    def allows(self, user: str, tenant: str, teams: Collection[str] = ()) -> bool:
        """Return whether the user belongs to the tenant. Where there is one tenant, which names no people, every user
        does.

        Args:
            teams: The user's teams in Airflow.
        """
        known = self.tenants.get(tenant)
        if known is None:
            return False
        if user in self.administrators:
            return True
        return user in known.people if known.people else len(self.tenants) == 1 or tenant in teams

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Tenancy:
        """Return what `document` has made, perhaps in an earlier version of Updraft."""
        found = TenantsFile.model_validate(document)
        return cls(found.tenants, found.administrators)

    def home_of(self, user: str | None) -> str:
        """Return the tenant that gets what cannot be counted as another's: `default` where there is one, otherwise the
        user's first one, otherwise the first of all."""
        if "default" in self.tenants:
            return "default"
        mine = [name for name in self.names if user is not None and self.allows(user, name)]
        return (mine or list(self.names))[0]


def read_tenants(path: Path, *, trusted: bool) -> Tenancy:
    """Return the tenants that a file names.

    Args:
        trusted: Whether the tenants trust each other, without which there may be only one.

    Raises UpdraftError, which names every wrong field.
    """
    try:
        known = path.stat()
        found = _read(path, known.st_mtime_ns, known.st_size, known.st_ino)
    except OSError as exc:
        advice = "name a file that the platform can read in UPDRAFT_TENANTS_FILE"
        raise UpdraftError(f"{path}: cannot be read ({exc.strerror or exc}); {advice}") from exc
    except UnicodeDecodeError as exc:
        raise UpdraftError(f"{path}: is not text in UTF-8; write YAML") from exc
    if len(found.tenants) > 1 and not trusted:
        raise UpdraftError(f"{path}: {', '.join(found.names)} {NOT_ISOLATED}; {TRUST_ADVICE}")
    return found


@lru_cache(maxsize=8)
def _read(path: Path, *_: int) -> Tenancy:
    """Read the file. The same file, by its time, size and number, is read once."""
    with path.open("rb") as file:
        raw = file.read(FILE_BYTES + 1)
    if len(raw) > FILE_BYTES:
        raise UpdraftError(f"{path}: has more than {FILE_BYTES} bytes; name fewer tenants")
    return parse_tenants(raw.decode("utf-8-sig"), path.name)


def tenants_at_start(environment: Mapping[str, str]) -> Tenancy:
    """Return the tenants that an environment names, for what starts the platform and its checks. Raises UpdraftError if
    the file of tenants is wrong, or if there are several tenants and nothing says that they trust each other."""
    refuse_untrusted_tenants(environment)
    names, trusted = tenants_of(environment)
    path = environment.get("UPDRAFT_TENANTS_FILE")
    return read_tenants(Path(path), trusted=trusted) if path else Tenancy.of(*names)


def parse_tenants(text: str, source: str = "tenants.yaml") -> Tenancy:
    """Return the tenants that a text in YAML names. Raises ManifestError."""
    raw = read_mapping(text, source)
    try:
        return Tenancy.from_document(raw)
    except ValidationError as exc:
        raise ManifestError(field_errors(exc, TenantsFile), source) from None


def completed(manifest: Manifest, tenancy: Tenancy) -> Manifest:
    """Return the manifest with its tenant's defaults for the fields that it leaves out.

    Raises ManifestError if they contradict what the manifest says.
    """
    tenant = tenancy.tenants.get(manifest.tenant)
    defaults = tenant.defaults.given() if tenant else {}
    if not defaults:
        return manifest
    given = manifest.given()
    whole = _with_defaults(given, defaults)
    resources = whole.get("resources")
    if isinstance(resources, dict) and not resources.get("gpus") and "gpu_type" not in given.get("resources", {}):
        resources.pop("gpu_type", None)  # the type is for jobs that ask for GPUs
    return parse(whole, source=f"manifest with the defaults of tenant {manifest.tenant}")


def _with_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        name: _with_defaults(given[name], value)
        for name, value in defaults.items()
        if isinstance(value, Mapping) and isinstance(given.get(name), Mapping)
    }
    return {**defaults, **given, **both}


def refusals(manifest: Manifest, tenancy: Tenancy) -> list[FieldError]:
    """Return an error for each value that this platform does not support, and for what the job's tenant may not."""
    return [
        *refuse_unsupported(manifest, tenants=tenancy.names),
        *refuse_priority(tenancy, manifest.tenant, manifest.priority),
    ]


def refuse_tenant(tenant: str, own: str, dag_id: str) -> tuple[FieldError, ...]:
    """Return an error if a manifest names another tenant than its DAG has, which is `own`."""
    if tenant == own:
        return ()
    return (FieldError("tenant", show(tenant), f"{show(tenant)} is not the tenant of the DAG {dag_id}", show(own)),)


def refuse_priority(tenancy: Tenancy, tenant: str, priority: str) -> tuple[FieldError, ...]:
    """Return an error if the tenant's jobs may not have this priority."""
    known = tenancy.tenants.get(tenant)
    if known is None or priority in known.priorities:
        return ()
    problem = f"{show(priority)} is not allowed to tenant {tenant}"
    return (FieldError("priority", show(priority), problem, one_of(known.priorities)),)


def refuse_user(tenancy: Tenancy, tenant: str, user: str) -> tuple[FieldError, ...]:
    """Return an error if the tenant names its people, and the user is none of them. Airflow does not tell a task the
    teams of a user, so that a tenant without people is open here."""
    known = tenancy.tenants.get(tenant)
    if known is None or not known.people or tenancy.allows(user, tenant):
        return ()
    mine = [name for name in tenancy.names if tenancy.allows(user, name)]
    problem = f"{show(tenant)} is not a tenant of user {user}"
    allowed = one_of(mine) if mine else "a tenant of yours; there is none, ask the platform's operator for one"
    return (FieldError("tenant", show(tenant), problem, allowed),)
