"""The launchers by name: ours, and those that other packages add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mlops.contract.extensions import ExtensionPoint
from mlops.contract.section import Section, SpecError, check_section

LAUNCHERS: Final = ExtensionPoint(
    kind="launcher",
    group="mlops.launchers",
    builtin={
        "process": "mlops_provider.launchers.process:ProcessLauncher",
        "pod": "mlops_provider.launchers.pod:PodLauncher",
    },
    attributes=("section", "of", "run", "cancel"),
)
"""Classes that implement :class:`mlops_provider.launchers.base.Launcher`."""


def check_launcher(name: str | None, place: str) -> None:
    """
    :param place: where it stands, the beginning of the message
    :raises SpecError: saying what would do, where no launcher has this name
    """
    try:
        if name is not None:
            LAUNCHERS.import_path(name)
    except SpecError as error:
        raise SpecError(f"{place}: {error}") from None


def check_settings(name: str | None, settings: Mapping[str, Any], place: str) -> None:
    """
    Check settings of a launcher, as a pipeline or a DAG gives them.

    :param place: where they stand, the beginning of the message
    :raises SpecError: where they are not those of the launcher's section, or it has none
    """
    if not settings:
        return
    if name is None:
        raise SpecError(f"{place}: say whose settings these are: give a launcher, too")
    section: type[Section] | None = LAUNCHERS.load(name).section
    if section is None:
        instead = ", use pods" if name == "pod" else ""
        raise SpecError(f"{place}: launcher {name!r} takes none{instead}; leave out {', '.join(settings)}")
    check_section(section, settings, place)
