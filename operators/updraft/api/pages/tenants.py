"""Make the page of tenants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from updraft.api.pages.curves import COLOURS
from updraft.api.pages.render import render
from updraft.schemas import SharePoint, TenantList, TenantUse

WIDTH, HEIGHT = 860, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 22
BAR = 160


@dataclass(frozen=True)
class Bar:
    """What a tenant uses of one kind of device. `used`, `quota`: pixels of the bar and of its mark."""

    kind: str
    text: str
    within: float
    beyond: float
    quota: float | None


@dataclass(frozen=True)
class Line:
    """A tenant's share over time, as SVG path data."""

    tenant: str
    colour: str
    path: str
    last: float


def tenants_page(found: TenantList, *, nonce: str = "") -> str:
    """Return the page of tenants as HTML: quotas and use by kind of device, and each tenant's share over time."""
    lines = [
        Line(each.name, COLOURS[number % len(COLOURS)], _path(each.shares), each.shares[-1].share)
        for number, each in enumerate(found.tenants)
        if each.shares
    ]
    first = next((each.shares for each in found.tenants if each.shares), None)
    return render(
        "tenants.html",
        title="Updraft tenants",
        live=True,
        nonce=nonce,
        found=found,
        bars={each.name: _bars(each) for each in found.tenants},
        lines=lines,
        seconds=(first[-1].at - first[0].at).total_seconds() if first else 0,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        bar=BAR,
    )


def _bars(tenant: TenantUse) -> list[Bar]:
    return [_bar(kind, tenant.used, tenant.quota, tenant.borrow) for kind in sorted({*tenant.used, *tenant.quota})]


def _bar(kind: str, used: Mapping[str, int], quota: Mapping[str, int], borrow: Mapping[str, int]) -> Bar:
    number, limit = used.get(kind, 0), quota.get(kind)
    if limit is None:
        return Bar(kind, f"{number}, no quota", BAR if number else 0, 0, None)
    most = max(number, limit + borrow.get(kind, 0), 1)
    scale = BAR / most
    text = f"{number} of {limit}" + (f", {number - limit} of them borrowed" if number > limit else "")
    return Bar(kind, text, min(number, limit) * scale, max(0, number - limit) * scale, limit * scale)


def _path(points: Sequence[SharePoint]) -> str:
    """Return steps from left to right; a share of 1 is at the top."""
    span = (points[-1].at - points[0].at).total_seconds() or 1.0
    parts = []
    for number, point in enumerate(points):
        x = LEFT + (WIDTH - RIGHT - LEFT) * (point.at - points[0].at).total_seconds() / span
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(1.0, point.share)
        parts.append(f"M{x:.1f} {y:.1f}" if number == 0 else f"H{x:.1f}V{y:.1f}")
    return "".join(parts)
