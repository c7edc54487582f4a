"""Runs that have not ended when they should have: Airflow's deadlines, and what people are told of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk.definitions.callback import SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from mlops.contract.section import SpecError
from mlops_provider.incidents import incident_of_run
from mlops_provider.messages import tell
from mlops_provider.notifiers.named import check_notifiers
from mlops_provider.notify_spec import MOST_HOURS, Notify, notified

log = logging.getLogger(__name__)


def deadline(hours: float | None, notify: Sequence[Mapping[str, Any] | Notify], pipeline: str) -> list[DeadlineAlert]:
    """
    Return a DAG's ``deadline``: whoever wants to know of ``late`` runs is told of one that has not succeeded in time.

    It counts from when the run is queued, which is when it is due, or when somebody asks for it: a run of an old
    night is not late from its first second. Airflow's scheduler watches it, and has the message sent by a worker.

    :param hours: by when a run must have succeeded, for entries without ``late_hours``; None if each has its own
    :param notify: whom to tell, see :class:`mlops_provider.notify_spec.Notify`
    :param pipeline: its name, for the message
    :return: one for each number of hours, the earliest first
    :raises SpecError: where nobody would be told
    """
    place = f"the deadline of {pipeline!r}"
    if hours is not None and not 0 < hours <= MOST_HOURS:
        raise SpecError(f"{place}: hours must be more than 0, and {MOST_HOURS} at most, got {hours!r}")
    entries = notified(notify, place)
    told: dict[float, list[dict[str, Any]]] = {}
    for entry in entries:
        if (until := entry.hours_until_late(hours)) is not None:
            told.setdefault(until, []).append(entry.model_dump(mode="json"))
    if not told:
        raise SpecError(f"{place}: no entry of notify is told of late")
    check_notifiers(entries, notify, place)
    return [
        DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=timedelta(hours=until),
            callback=SyncCallback(tell_late, kwargs={"pipeline": pipeline, "hours": until, "notify": told[until]}),
            name=f"{pipeline} is late by {until:g} h",
        )
        for until in sorted(told)
    ]


def tell_late(pipeline: str, hours: float, notify: Sequence[Mapping[str, Any]], context: Mapping[str, Any]) -> None:
    """Called by Airflow, in a process of its own, when a run has missed its deadline."""
    run = context["dag_run"]
    entries = [Notify.model_validate(entry) for entry in notify]
    asked = f" of {run['logical_date']}" if run.get("logical_date") else ""
    queued = datetime.fromisoformat(str(run["queued_at"])) if run.get("queued_at") else None
    since = "" if queued is None else f", {queued:%Y-%m-%d %H:%M %Z}"
    said = f"The run{asked} was to have succeeded {hours:g} h after it was due{since}, and is {run['state']}."
    tell(entries, incident_of_run("late", pipeline, run["dag_id"], run["dag_run_id"], said), log)
