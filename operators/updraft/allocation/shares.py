"""Count what tenants use, and compare it with their quotas and their fair shares. Pure.

A tenant's claim is its dominant share of the cluster, of what it uses now and of what it has used (older use counts
less), divided by its weight. The tenant with the smallest claim is served next: weighted dominant resource fairness
(Ghodsi et al., NSDI 2011).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta

from updraft.allocation.model import GangRequest, Node
from updraft.tenants import CPU, GPU, Tenant

HALF_LIFE = timedelta(hours=24)
REMEMBERED = 6  # half-lives: older use counts less than 2 %

Past = Mapping[str, tuple[float, float, float]]  # by tenant: average CPUs in thousandths, memory in MiB, GPUs


class Shares:
    """What each tenant uses in one round of planning, with what is granted in it."""

    def __init__(
        self, tenants: Mapping[str, Tenant], nodes: Sequence[Node], running: Iterable[GangRequest], past: Past
    ) -> None:
        self._tenants = tenants
        self._whole = [max(1, sum(node.amounts[i] for node in nodes)) for i in range(3)]
        self._devices = Counter[str]()
        for node in nodes:
            self._devices[GPU] += node.gpus
            if node.gpu_type:
                self._devices[node.gpu_type] += node.gpus
        self._claims: dict[str, float] = {}
        self._used: dict[str, Counter[str]] = {}
        self._amounts: dict[str, list[float]] = {tenant: list(amounts) for tenant, amounts in past.items()}
        for request in running:
            self.take(request)

    def copy(self) -> Shares:
        found = copy(self)
        found._claims, found._devices = dict(self._claims), Counter(self._devices)
        found._used = {tenant: Counter(used) for tenant, used in self._used.items()}
        found._amounts = {tenant: list(amounts) for tenant, amounts in self._amounts.items()}
        return found

    def take(self, request: GangRequest) -> None:
        """Count a gang that has room."""
        self._used.setdefault(request.tenant, Counter()).update(request.devices)
        self.foresee(request)

    def give(self, request: GangRequest) -> None:
        """Count that a gang has given its room back. What it has used stays in its tenant's claim."""
        self._used[request.tenant].subtract(request.devices)

    def foresee(self, request: GangRequest) -> None:
        """Count a gang that waits in its tenant's claim alone, to find the order of those behind it."""
        amounts, each, learners = self._amounts.get(request.tenant), request.amounts, request.learners
        if amounts is None:
            amounts = self._amounts[request.tenant] = [0.0, 0.0, 0.0]
        amounts[0] += each[0] * learners
        amounts[1] += each[1] * learners
        amounts[2] += each[2] * learners
        self._claims.pop(request.tenant, None)

    def used(self, tenant: str) -> dict[str, int]:
        """Return the devices that the tenant uses, by kind."""
        return {kind: number for kind, number in self._of(tenant).items() if number}

    def claim(self, tenant: str) -> float:
        """Return the tenant's dominant share divided by its weight."""
        if (known := self._claims.get(tenant)) is not None:
            return known
        amounts = self._amounts.get(tenant, (0.0, 0.0, 0.0))
        whole = self._whole
        share = max(amounts[0] / whole[0], amounts[1] / whole[1], amounts[2] / whole[2])
        claim = self._claims[tenant] = share / self._tenant(tenant).weight
        return claim

    def borrows(self, request: GangRequest) -> bool:
        """Return whether the gang would use more than its tenant's quota."""
        quota, used = self._tenant(request.tenant).quota, self._of(request.tenant)
        return any(kind in quota and used[kind] + need > quota[kind] for kind, need in request.devices.items())

    def entitled(self, request: GangRequest) -> bool:
        """Return whether the tenant has a quota for such a gang, and the gang stays within it."""
        return not request.devices.keys().isdisjoint(self._tenant(request.tenant).quota) and not self.borrows(request)

    def borrowed(self, tenant: str, kinds: Collection[str]) -> bool:
        """Return whether the tenant uses more of one of these kinds than its quota."""
        quota, used = self._tenant(tenant).quota, self._of(tenant)
        return any(kind in quota and used[kind] > quota[kind] for kind in kinds)

    def never(self, request: GangRequest) -> str | None:
        """Return why the tenant's limits forbid the gang even if the tenant used nothing else; None if they do not."""
        tenant = self._tenant(request.tenant)
        for kind, need in request.devices.items() if tenant.borrow else ():
            if (most := tenant.most(kind)) is not None and need > most:
                limits = f"quota of tenant {request.tenant} is {devices_text(kind, tenant.quota[kind])}"
                limits += f", and it may borrow {tenant.borrow[kind]}" if tenant.borrow[kind] else ""
                return f"needs {devices_text(kind, need)}, and the {limits}; ask for at most {most}"
        return None

    def lacks(self, request: GangRequest) -> tuple[frozenset[str], str] | None:
        """Return the kinds of which the tenant may use no more now, and the reason; None if it may."""
        tenant, used = self._tenant(request.tenant), self._of(request.tenant)
        for kind, need in request.devices.items():
            most = tenant.most(kind)
            if most is not None and used[kind] + need > most:
                quota = devices_text(kind, tenant.quota[kind])
                may = f"may borrow {tenant.borrow[kind]}" if tenant.borrow[kind] else "may borrow none"
                return frozenset({kind}), f"tenant {request.tenant} uses {used[kind]} of its quota of {quota} and {may}"
            if kind != CPU and kind in tenant.quota and used[kind] + need > tenant.quota[kind]:
                kept = self._kept(kind, request.tenant)
                if kept and self._devices[kind] - sum(each[kind] for each in self._used.values()) - need < kept:
                    return frozenset({kind}), (
                        f"tenant {request.tenant} uses {used[kind]} of its quota of "
                        f"{devices_text(kind, tenant.quota[kind])}, and the tenants that could lend keep {kept}"
                    )
        return None

    def _kept(self, kind: str, borrower: str) -> int:
        """Return how many devices of the kind other tenants neither use nor lend."""
        kept = 0
        for name, tenant in self._tenants.items():
            if name != borrower and kind in tenant.lend:
                kept += max(0, tenant.quota[kind] - tenant.lend[kind] - self._of(name)[kind])
        return kept

    def _tenant(self, name: str) -> Tenant:
        return self._tenants.get(name, _UNLIMITED)

    def _of(self, tenant: str) -> Counter[str]:
        return self._used.get(tenant, _NOTHING)


def average_use(
    held: Iterable[tuple[GangRequest, datetime, datetime | None]], now: datetime, half_life: timedelta
) -> dict[str, tuple[float, float, float]]:
    """Return what each tenant has used on average until `now`, where use counts half after each `half_life`.

    Args:
        held: What a gang held, since when, and until when; None: it still does.

    A gang that has held its room for ever counts with its amounts; one that has held it for the last half-life, with a
    half of them.
    """
    found: dict[str, tuple[float, float, float]] = {}
    for request, start, end in held:
        part = 0.5 ** ((now - min(end or now, now)) / half_life) - 0.5 ** (max(timedelta(0), now - start) / half_life)
        before = found.get(request.tenant, (0.0, 0.0, 0.0))
        cpus, memory, gpus = (amount * request.learners * max(0.0, part) for amount in request.amounts)
        found[request.tenant] = (before[0] + cpus, before[1] + memory, before[2] + gpus)
    return found


_UNLIMITED = Tenant()
_NOTHING = Counter[str]()


def devices_text(kind: str, number: int) -> str:
    """Return `4 GPUs`, `1 A100 GPU` or `2 learners without GPUs`."""
    plural = "" if number == 1 else "s"
    if kind == CPU:
        return f"{number} learner{plural} without GPUs"
    return f"{number} GPU{plural}" if kind == GPU else f"{number} {kind} GPU{plural}"
