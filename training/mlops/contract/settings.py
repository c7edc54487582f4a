"""Settings of a step as JSON, named with dots where they lie deeper. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``{"schedule.kind": "cosine", ...}``"""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= flat_settings(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def not_replaced(settings: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """
    Return the settings that stay where others are given.

    :param settings: named as in :func:`flat_settings`
    :param names: of those that are given, each perhaps in place of several
    """
    return {
        name: value for name, value in settings.items() if not any(f"{name}.".startswith(f"{each}.") for each in names)
    }


def replaced_settings(settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with other values for some, which are named as in :func:`flat_settings`."""
    result = dict(settings)
    for name, value in values.items():
        first, _, rest = name.partition(".")
        result[first] = replaced_settings(result[first], {rest: value}) if rest else value
    return result


def settings_text(values: Mapping[str, Any]) -> str:
    """``learning_rate 0.003, schedule.kind cosine``, for people."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


def decisive(settings: Mapping[str, Any], operational: Collection[str]) -> dict[str, Any]:
    """
    The settings that decide what comes out.

    :param operational: the others; of parts with dots: ``train.hang_seconds``
    """
    return {
        name: decisive(value, {inner.removeprefix(f"{name}.") for inner in operational if inner.startswith(f"{name}.")})
        if isinstance(value, Mapping)
        else value
        for name, value in settings.items()
        if name not in operational
    }
