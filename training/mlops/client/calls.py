"""What the server can be asked for: each request, and how its answer is read."""

from __future__ import annotations

import base64
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import httpx

from mlops.client.answers import (
    Checkpoints,
    Curves,
    Datasets,
    Events,
    Run,
    RunSummary,
    Snapshot,
    SnapshotDifference,
    StartedRun,
    Study,
    Trials,
)
from mlops.client.errors import ClientError
from mlops.client.reading import document, misread, with_address
from mlops.contract import rest
from mlops.contract.extensions import RECIPES
from mlops.contract.recipe_bounds import ways_out
from mlops.contract.recipe_bundles import pack

T = TypeVar("T")
AnyRun = str | rest.RunSummary | rest.Study
"""A run, or its id."""
AnySnapshot = str | rest.SnapshotSummary
"""A snapshot, or its version."""
AnyCheckpoint = str | rest.Checkpoint
"""A checkpoint, or its id."""
REQUEST_SECONDS: Final = 300.0
"""For one answer, of a machine that has much else to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call(Generic[T]):
    """A request of the API."""

    method: str
    path: str
    """Below :data:`mlops.contract.addresses.API_PREFIX`."""
    read: Callable[[httpx.Response], T]
    """Of an answer without an error."""
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    silence_seconds: float = REQUEST_SECONDS
    """Without a byte, after which the answer counts as cut."""
    most_seconds: float = math.inf
    """Of all tries together, after which it is not tried again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[T]):
    """Of a list."""

    items: Sequence[T]
    next: str | None
    """Its cursor; None: this was the last one."""


def submit(
    pipeline: str,
    settings: Mapping[str, Any] | None,
    spec: Mapping[str, Any] | None,
    recipes: Sequence[str | Path],
    as_of: str | date | None,
    dataset: AnySnapshot | None,
    idempotency_key: str | None,
    **asked: Any,
) -> Call[RunSummary]:
    """
    :param recipes: folders of code that is sent
    :param asked: as ``POST /runs`` has them; what is None is left out
    """
    _check_mapping("spec", spec, 'give a whole pipeline, such as {"pipeline": "flight_ranking", "ingest": ...}')
    asked = {"spec": spec, "recipes": _packed(recipes), **_data(as_of, dataset), **asked}
    return _start("/runs", pipeline, settings, asked, idempotency_key)


def search(
    pipeline: str,
    space: Mapping[str, Any],
    settings: Mapping[str, Any] | None,
    as_of: str | date | None,
    dataset: AnySnapshot | None,
    idempotency_key: str | None,
    **asked: Any,
) -> Call[RunSummary]:
    """:param asked: as ``POST /studies`` has them; what is None is left out"""
    _check_mapping("space", space, 'give it by settings, such as {"learning_rate": {"low": 0.001, "high": 0.1}}')
    asked = {"space": dict(space), **_data(as_of, dataset), **asked}
    return _start("/studies", pipeline, settings, asked, idempotency_key)


def _packed(recipes: Sequence[str | Path]) -> dict[str, str] | None:
    """:raises ClientError: where one is no folder of a recipe, or its code leads out of it"""
    found = {}
    for given in (recipes,) if isinstance(recipes, str | Path) else recipes:
        folder = Path(given).absolute()
        if folder.parent.name != RECIPES or not folder.is_dir():
            raise ClientError(f"recipes: {given} is no folder {RECIPES}/NAME")
        if (problem := next(ways_out(folder), None)) is not None:
            raise ClientError(f"recipes: {problem}")
        found[f"{RECIPES}/{folder.name}"] = base64.b64encode(pack(folder)).decode()
    return found or None


def _data(as_of: str | date | None, dataset: AnySnapshot | None) -> dict[str, str | None]:
    """Of what data a run is."""
    return {"as_of": instant(as_of), "dataset": None if dataset is None else _version(dataset)}


def study(of: AnyRun) -> Call[Study]:
    return Call(method="GET", path=_study(of), read=_as_study)


def change_budget(of: AnyRun, **asked: Any) -> Call[Study]:
    """:param asked: as ``POST /studies/{id}/budget`` has it; what is None is left out"""
    return Call(method="POST", path=f"{_study(of)}/budget", body=_given(asked), read=_as_study)


def stop_search(of: AnyRun) -> Call[Study]:
    return Call(method="POST", path=f"{_study(of)}/stop", read=_as_study)


def _as_study(response: httpx.Response) -> Study:
    return with_address(document(Study, response), response)


def trials(of: AnyRun) -> Call[Trials]:
    return Call(
        method="GET",
        path=f"{_study(of)}/trials",
        read=lambda response: Trials(document(rest.Trials, response).trials),
    )


def checkpoints(of: AnyRun) -> Call[Checkpoints]:
    return Call(
        method="GET",
        path=f"{place(of)}/checkpoints",
        read=lambda response: Checkpoints(document(rest.Checkpoints, response).checkpoints),
    )


def events(of: AnyRun) -> Call[Events]:
    return Call(
        method="GET",
        path=f"{place(of)}/events",
        read=lambda response: Events(document(rest.Events, response).events),
    )


def restore(
    checkpoint: AnyCheckpoint, settings: Mapping[str, Any] | None, name: str | None, idempotency_key: str | None
) -> Call[RunSummary]:
    found = _name(checkpoint, "id", "checkpoint: give one, as checkpoints() lists them, or its id")
    return _start(f"/checkpoints/{quote(found, safe='@')}/restore", None, settings, {"name": name}, idempotency_key)


def _start(
    path: str,
    pipeline: str | None,
    settings: Mapping[str, Any] | None,
    asked: Mapping[str, Any],
    idempotency_key: str | None,
) -> Call[RunSummary]:
    # What else is wrong the server says: it may have come to take what an old client does not know.
    _check_mapping("settings", settings, 'give them by their names, such as {"train.epochs": 6}')
    return Call(
        method="POST",
        path=path,
        body=_given({"pipeline": pipeline, "settings": settings, **asked}),
        headers={"Idempotency-Key": as_header("idempotency_key", idempotency_key or token_hex(16))},
        read=_as_summary,
    )


def _as_summary(response: httpx.Response) -> RunSummary:
    return with_address(document(RunSummary, response), response)


def as_started(response: httpx.Response) -> StartedRun:
    return with_address(document(StartedRun, response), response)


def instant(of: str | date | None) -> str | None:
    return of.isoformat() if isinstance(of, date) else of


def body_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """:raises ClientError: naming a value that cannot be sent"""
    for name, value in asked.items():
        _check_json(name, value)
    return dict(asked)


def _given(asked: Mapping[str, Any]) -> dict[str, Any]:
    """As :func:`_body`, without what is None."""
    return body_of({name: value for name, value in asked.items() if value is not None})


def _check_mapping(name: str, value: Any, said: str) -> None:
    """
    :param said: what would do
    :raises ClientError: where it is none, or cannot be sent
    """
    if value is not None and not isinstance(value, Mapping):
        raise ClientError(f"{name}={value!r}: {said}")
    for key, inner in (value or {}).items():
        _check_json(key, inner)


def _check_json(name: str, value: Any) -> None:
    """:raises ClientError: naming the value that cannot be sent"""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ClientError(f"{name}={value!r}: {error}; give what JSON has: a text, a finite number, a list") from None


def as_header(name: str, value: str) -> str:
    """
    Return what a header of a request may hold.

    :raises ClientError: where it is something else
    """
    value = value.strip()
    if not value or not value.isascii() or not value.isprintable():
        raise ClientError(f"{name}: give printable characters of ASCII")
    return value


def run(of: AnyRun) -> Call[Run]:
    return Call(method="GET", path=place(of), read=lambda response: with_address(document(Run, response), response))


def runs(pipeline: str | None, kind: str, user: str | None, state: str | None, cursor: str) -> Call[Page[RunSummary]]:
    asked = {"pipeline": pipeline, "kind": kind, "user": user, "state": state, "cursor": cursor}

    def read(response: httpx.Response) -> Page[RunSummary]:
        page = document(rest.Runs, response)
        found = (RunSummary.model_validate(each.model_dump()) for each in page.runs)
        return Page(items=[with_address(each, response) for each in found], next=page.next)

    params = {key: value for key, value in asked.items() if value is not None}
    return Call(method="GET", path="/runs", params=params, read=read)


def cancel(of: AnyRun) -> Call[RunSummary]:
    return Call(
        method="DELETE",
        path=place(of),
        read=_as_summary,
    )


def logs(of: AnyRun, task: str | None, try_number: int | None, map_index: int) -> Call[str]:
    asked = {"task": task, "try_number": try_number, "map_index": map_index}
    params = {key: value for key, value in asked.items() if value is not None}

    def read(response: httpx.Response) -> str:
        if not response.headers.get("content-type", "").startswith("text/plain"):
            raise misread("log", response, "no plain text")
        return response.text

    return Call(method="GET", path=f"{place(of)}/logs", params=params, read=read)


def curves(of: AnyRun, metrics: Sequence[str] | str, points: int | None) -> Call[Curves]:
    params = {"metric": names_of(metrics), **({} if points is None else {"points": points})}
    return Call(
        method="GET",
        path=f"{place(of)}/metrics",
        params=params,
        read=lambda response: Curves(document(rest.Curves, response).curves),
    )


def datasets() -> Call[Datasets]:
    return Call(
        method="GET",
        path="/datasets",
        read=lambda response: Datasets(document(rest.Datasets, response).datasets),
    )


def snapshots(name: str, cursor: str) -> Call[Page[rest.SnapshotSummary]]:
    def read(response: httpx.Response) -> Page[rest.SnapshotSummary]:
        page = document(rest.SnapshotPage, response)
        if page.damaged:
            warnings.warn(
                f"{', '.join(page.damaged)} cannot be read, and left out: mlops store verify says more", stacklevel=2
            )
        return Page(items=page.snapshots, next=page.next)

    return Call(method="GET", path=f"{_dataset(name)}/versions", params={"cursor": cursor}, read=read)


def snapshot(name: str, version: AnySnapshot) -> Call[Snapshot]:
    path = f"{_dataset(name)}/versions/{quote(_version(version), safe='')}"
    return Call(method="GET", path=path, read=lambda response: document(Snapshot, response))


def compare(name: str, before: AnySnapshot, after: AnySnapshot) -> Call[SnapshotDifference]:
    return Call(
        method="GET",
        path=f"{_dataset(name)}/diff",
        params={"before": _version(before), "after": _version(after)},
        read=lambda response: document(SnapshotDifference, response),
    )


def _version(of: AnySnapshot) -> str:
    return _name(of, "version", "snapshot: give one, as snapshots() lists them, or its version")


def _dataset(name: str) -> str:
    return f"/datasets/{quote(name, safe='')}"


def names_of(metrics: Sequence[str] | str) -> list[str]:
    """Return names, of which one may have been given alone."""
    return [metrics] if isinstance(metrics, str) else list(metrics)


def place(of: AnyRun) -> str:
    """Where the API has a run."""
    return f"/runs/{quote(id_of(of), safe='@')}"


def _study(of: AnyRun) -> str:
    return f"/studies/{quote(id_of(of), safe='@')}"


def id_of(of: AnyRun) -> str:
    return _name(of, "id", "run: give one, or its id DAG@RUN")


def _name(of: Any, attribute: str, what: str) -> str:
    found = of if isinstance(of, str) else getattr(of, attribute, None)
    if not isinstance(found, str):
        raise ClientError(f"{of!r} is no {what}")
    return found
