"""Parse Kubernetes quantities, such as 500m, 2Gi and 1e3. Pure; called by all code that reads or checks API objects."""

from __future__ import annotations

import re
from decimal import Decimal

_QUANTITY = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d{1,2})|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei))?", re.ASCII
)
_FACTORS = {None: Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_FACTORS |= {unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)}
_FACTORS |= {f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)}


def parse_quantity(value: str | int | float) -> Decimal:
    """Return a quantity in its base unit: cores of CPU, bytes, devices. Exact.

    Raises ValueError for anything that Kubernetes would not take.

    Example:
        parse_quantity("1500m")  # Decimal("1.5")
        parse_quantity("2Gi")  # Decimal("2147483648")
    """
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a Kubernetes quantity, such as 2, 1500m, 512Mi or 4Gi")
    number, exponent, unit = match.groups()
    return Decimal(number + (exponent or "")) * _FACTORS[unit]
