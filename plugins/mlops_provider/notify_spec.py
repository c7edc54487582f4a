"""Whom a pipeline tells of what happens to its runs: the entries of its ``notify``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from mlops.contract.section import Json, Section, SpecError, check_section, leaves
from mlops_provider.notifier_names import NOTIFIERS
from mlops_provider.section_file import KeyPath
from mlops_provider.team_spec import Tenant

Event = Literal["failed", "stopped", "approval", "promoted", "rolled_back", "late"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
MOST_HOURS: Final = 8760
"""The longest deadline, a year: Airflow adds it to dates."""


class Notify(Section):
    """One entry of ``notify``: by what, and of what."""

    by: Annotated[str, AfterValidator(NOTIFIERS.check_named)]
    """``smtp``, ``webhook``, one of a package, or a notifier of Airflow: ``package.module:Class``."""
    events: list[Event] = Field(default=list(EVENTS), min_length=1)
    """
    What to tell of: a task ``failed`` for good; a run ``stopped`` without putting anything into production, though
    nothing failed; somebody's ``approval`` is asked for; a version was ``promoted``; the one before was put into
    production again, ``rolled_back`` by Airflow's DAG; a run is ``late``, by ``late_hours`` or ``deadline_hours``.
    """
    late_hours: float | None = Field(default=None, gt=0, le=MOST_HOURS)
    """
    When a run is ``late`` for this entry: hours from when it is due, by which it must have succeeded. With more hours
    than others it is told where nobody has done anything. None: the pipeline's ``deadline_hours``.
    """
    settings: dict[str, Json] = {}
    """The notifier's own; of one of Airflow's its arguments, whose texts may be templates of ``incident``."""

    @field_validator("late_hours")
    @classmethod
    def _told_of_what_is_late(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and "late" not in info.data.get("events", EVENTS):
            raise ValueError("given with late among the events; this entry is told of others only")
        return value

    def hours_until_late(self, deadline_hours: float | None) -> float | None:
        """
        Return when a run is late for this entry, in hours; None where it is never told of one.

        :param deadline_hours: for entries that have no hours of their own
        """
        if "late" not in self.events:
            return None
        return deadline_hours if self.late_hours is None else self.late_hours


def notified(given: Any, place: str) -> list[Notify]:
    """
    Check entries as a DAG gives them; those of a pipeline's file are there as they were checked.

    :param place: where they stand, the beginning of a message
    :raises SpecError: where one is none
    """
    if not isinstance(given, (list, tuple)):
        raise SpecError(f"{place}: notify must be a list of entries such as {{'by': 'smtp', ...}}, got {given!r}")
    return [
        entry if isinstance(entry, Notify) else check_section(Notify, entry, f"{place}: notify.{number}")
        for number, entry in enumerate(given)
    ]


def trespasses(notify: Sequence[Notify], tenant: Tenant) -> Iterator[tuple[KeyPath, str]]:
    """
    Yield what the entries name that is not the team's, and where.

    A team's pipeline uses Airflow's connections that the deployment allows it, defaults of notifiers included, and
    notifiers whose settings are known to be harmless: another one may read any file or connection.
    """
    for number, entry in enumerate(notify if tenant.team is not None else ()):
        place = ("notify", str(number))
        if (why := tenant.why_not_notifier(entry.by)) is not None:
            yield (*place, "by"), why
            continue  # which is not imported then
        for keys, value in leaves({**_default_connections(entry.by), **entry.settings}):
            is_connection = keys[-1] == "connection" or keys[-1].endswith("conn_id")
            if is_connection and (why := tenant.why_not_connection(str(value))) is not None:
                where = (*place, "settings", *keys) if keys[0] in entry.settings else (*place, "settings")
                yield where, why if keys[0] in entry.settings else f"{keys[0]} is left out, and is {why}"


def _default_connections(name: str) -> dict[str, Any]:
    """Return the connections that a notifier takes where its settings name none."""
    try:
        notifier = NOTIFIERS.load(name)
    except SpecError:  # said of its entry
        return {}
    section = getattr(notifier, "section", None)
    if section is not None:
        return {key: field.default for key, field in section.model_fields.items() if not field.is_required()}
    parameters = inspect.signature(notifier).parameters.values() if callable(notifier) else ()
    return {each.name: each.default for each in parameters if each.default is not each.empty}
