"""Resource quantities: ``500m`` of a core, ``64Gi`` of memory, ``8`` GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal

from cluster.objects import Object

_PATTERN = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d+)|(n|u|m|k|[MGTPE]|[KMGTPE]i))?")
_SUFFIXES = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_SUFFIXES |= {suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)}
_SUFFIXES |= {f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)}

Amounts = Mapping[str, Decimal]


def quantity(text: object) -> Decimal:
    """
    The value of a quantity.

    :raises ValueError: it is none
    """
    match = _PATTERN.fullmatch(str(text))
    if match is None:
        raise ValueError("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")
    number, exponent, suffix = match.groups()
    if exponent:
        return Decimal(number + exponent)
    return Decimal(number) * _SUFFIXES.get(suffix, Decimal(1))


def total(amounts: Iterable[Amounts]) -> dict[str, Decimal]:
    """The sum, resource by resource."""
    result: dict[str, Decimal] = {}
    for each in amounts:
        for name, amount in each.items():
            result[name] = result.get(name, Decimal(0)) + amount
    return result


def requests_of(pod: Object) -> dict[str, Decimal]:
    """What a pod asks of its node: its containers together, or its largest init container where that is more."""
    spec = pod["spec"]
    asked = total([_requests(container) for container in spec["containers"]])
    sidecars: dict[str, Decimal] = {}
    largest: dict[str, Decimal] = {}
    for container in spec.get("initContainers", []):
        amounts = _requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = total([sidecars, amounts])
            continue
        for name, amount in total([sidecars, amounts]).items():
            largest[name] = max(largest.get(name, Decimal(0)), amount)
    asked = total([asked, sidecars])
    for name, amount in largest.items():
        asked[name] = max(asked.get(name, Decimal(0)), amount)
    return asked | {"pods": Decimal(1)}


def _requests(container: Object) -> dict[str, Decimal]:
    resources = container.get("resources", {})
    amounts = resources.get("limits", {}) | resources.get("requests", {})
    return {name: quantity(text) for name, text in amounts.items()}
