"""``/datasets``: the snapshots of pipelines, for whoever may read the pipeline's DAG."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import obstore
from fastapi import APIRouter, Depends, Path, Query
from obstore.store import ObjectStore

from mlops.contract.manifest import Manifest, compare_columns, differing_periods
from mlops.contract.refs import MANIFEST, SHORTEST_VERSION, VERSION_PATTERN, DatasetRef, RefError
from mlops.contract.rest import (
    Dataset,
    Datasets,
    Deprecation,
    Period,
    PeriodDifference,
    Snapshot,
    SnapshotDifference,
    SnapshotPage,
    SnapshotSummary,
    Split,
)
from mlops.contract.section import NAME_PATTERN
from mlops.contract.step import deprecation_key
from mlops_provider.api.airflow import AirflowDep, readable_dags
from mlops_provider.api.deployments import found_by_team, of_name, stored
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.committed import DAMAGED, Committed, committed_below, read_committed, read_json
from mlops_provider.connections import store_of
from mlops_provider.deployment import tenant_of_name
from mlops_provider.gathering import gather

router = APIRouter(tags=["datasets"], responses=DOCUMENTED)

MOST_SNAPSHOTS: Final = 100
"""In one answer."""
_AT_ONCE: Final = 100
"""Snapshots that are looked at before the older ones."""

Name = Annotated[str, Path(pattern=NAME_PATTERN, description="The pipeline's")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shelf:
    """Where a pipeline's snapshots lie."""

    name: str
    store: ObjectStore

    async def committed(self) -> list[Committed]:
        """Return what is there, the newest first."""
        return sorted(await committed_below(self.store, f"pipelines/{self.name}/ingest"), reverse=True)

    async def summaries(self, committed: Sequence[Committed]) -> tuple[list[SnapshotSummary], list[str]]:
        """
        Read the snapshots that are committed there.

        :return: them, and the places of those that are damaged
        """
        folder = deprecation_key(self.name, "").rpartition("/")[0]
        marks = {entry["path"] async for page in obstore.list(self.store, folder) for entry in page}
        found = await gather(lambda each: self._summary(each, marks), committed)
        damaged = [each.place for each, summary in zip(committed, found, strict=True) if summary is None]
        return [summary for summary in found if summary is not None], damaged

    async def find(self, *versions: str) -> list[tuple[SnapshotSummary, Manifest]]:
        """
        Find snapshots, and read their manifests.

        :param versions: or beginnings that no other one has
        :raises Problem: where none or several are meant, or where it is damaged
        """
        for version in versions:
            if not re.fullmatch(VERSION_PATTERN, version):
                raise Problem(422, f"version {version!r}: give at least {SHORTEST_VERSION} of its hexadecimal digits")
        every: list[SnapshotSummary] = []
        damaged: list[str] = []
        committed = await self.committed()
        for begin in range(0, len(committed), _AT_ONCE):
            found, lost = await self.summaries(committed[begin : begin + _AT_ONCE])
            every, damaged = every + found, damaged + lost
            # A whole version cannot mean another one; of a beginning all must be known.
            if {*versions} <= {each.version for each in every}:
                break
        chosen = [self._chosen(version, every, damaged) for version in versions]
        return [(each, await self._manifest(each.place)) for each in chosen]

    def _chosen(self, version: str, every: Sequence[SnapshotSummary], damaged: Sequence[str]) -> SnapshotSummary:
        found = [each for each in every if each.version.startswith(version)]
        if not found:
            others = f"; {', '.join(damaged)} cannot be read: mlops store verify says more" if damaged else ""
            raise Problem(
                404, f"there is no snapshot {self.name}@{version}: see GET /datasets/{self.name}/versions{others}"
            )
        if len(meant := sorted({each.version for each in found})) > 1:
            raise Problem(422, f"version {version!r} may mean {' or '.join(meant)}: give more of it")
        return found[0]  # of several places of one version the newest

    async def _summary(self, committed: Committed, marks: Set[str]) -> SnapshotSummary | None:
        """:return: None where it, or its mark, is damaged"""
        try:
            ref = await self._ref(committed.place)
            key = deprecation_key(ref.name, ref.version)
            mark = await read_json(self.store, key) if key in marks else None
            return SnapshotSummary(
                name=ref.name,
                version=ref.version,
                place=ref.place,
                interval_start=datetime.fromisoformat(ref.interval_start),
                interval_end=datetime.fromisoformat(ref.interval_end),
                num_rows=ref.num_rows,
                num_bytes=ref.num_bytes,
                schema_hash=ref.schema_hash,
                committed_at=committed.at,
                deprecated=None if mark is None else Deprecation.model_validate(mark),
            )
        except DAMAGED:
            return None

    async def _ref(self, place: str) -> DatasetRef:
        """:raises RefError: where it is none"""
        found = await read_committed(self.store, place)
        if not isinstance(found, DatasetRef) or MANIFEST not in found.artifacts:
            raise RefError(f"what is committed at {place} is no snapshot")
        return found

    async def _manifest(self, place: str) -> Manifest:
        artifact = (await self._ref(place)).artifacts[MANIFEST]
        data = await stored(self.store, artifact)
        try:
            return Manifest.from_json(data)
        except ValueError as error:  # of another release
            raise Problem(500, f"{artifact.key} is {error}") from None


async def _shelf(name: Name, airflow: AirflowDep) -> Shelf:
    """:raises Problem: where the asker may not read the pipeline's DAG"""
    await airflow.request("GET", f"/dags/{name}")
    return Shelf(name=name, store=await of_name(name, store_of))


ShelfDep = Annotated[Shelf, Depends(_shelf)]


@router.get("/datasets")
async def datasets(airflow: AirflowDep) -> Datasets:
    """List the datasets of the pipelines that the asker may read."""
    names = [name for name in sorted(await readable_dags(airflow)) if re.fullmatch(NAME_PATTERN, name)]

    async def dataset(shelf: Shelf) -> Dataset | None:
        found = await shelf.committed()
        return Dataset(name=shelf.name, num_snapshots=len(found), newest=found[0].end) if found else None

    async def of_team(team: str | None, store: ObjectStore) -> list[Dataset]:
        shelves = [Shelf(name=name, store=store) for name in names if tenant_of_name(name) == team]
        return [each for each in await gather(dataset, shelves) if each is not None]

    found, unreachable = await found_by_team(names, store_of, of_team)
    return Datasets(datasets=sorted(found, key=lambda each: each.name), unreachable=unreachable)


@router.get("/datasets/{name}/versions")
async def versions(
    shelf: ShelfDep,
    limit: Annotated[int, Query(ge=1, le=MOST_SNAPSHOTS)] = MOST_SNAPSHOTS,
    cursor: Annotated[str, Query(description="The `next` of the page before")] = "",
) -> SnapshotPage:
    """List the snapshots of a dataset, the newest first."""
    every = await shelf.committed()
    # What has been committed since the page before comes before it, or was left out then.
    begin = next((number + 1 for number, each in enumerate(every) if _key(each) == cursor), 0) if cursor else 0
    if cursor and not begin:
        raise Problem(422, f"cursor {cursor!r:.100} is none of this dataset: begin without one")
    page = every[begin : begin + limit]
    has_more = len(every) > begin + limit
    found, damaged = await shelf.summaries(page)
    return SnapshotPage(snapshots=found, damaged=damaged, next=_key(page[-1]) if has_more else None)


@router.get("/datasets/{name}/versions/{version}")
async def version(shelf: ShelfDep, version: str) -> Snapshot:
    """A snapshot: what is in it, and where it came from. Of its version the first six characters do."""
    ((summary, manifest),) = await shelf.find(version)
    return Snapshot(
        **summary.model_dump(),
        columns=dict(manifest.schema),
        event_time=manifest.event_time,
        timezone=manifest.timezone,
        grain=manifest.grain,
        window=list(manifest.window),
        periods=[
            Period(name=each.period, num_rows=each.num_rows, num_bytes=each.num_bytes) for each in manifest.partitions
        ],
        splits={
            name: Split(num_rows=part.num_rows, periods=list(part.periods)) for name, part in manifest.splits.items()
        },
        sources={name: dict(source) for name, source in manifest.sources.items()},
        creator=dict(manifest.creator),
        engine=manifest.engine,
    )


@router.get("/datasets/{name}/diff")
async def difference(
    shelf: ShelfDep,
    before: Annotated[str, Query(description="Version")],
    after: Annotated[str, Query(description="Version")],
) -> SnapshotDifference:
    """In which columns and periods two snapshots differ; of rows within a period `mlops datasets diff` tells more."""
    (first, old), (second, new) = await shelf.find(before, after)
    columns = compare_columns(old, new)
    rows_before, rows_after = ({part.period: part.num_rows for part in each.partitions} for each in (old, new))
    return SnapshotDifference(
        before=first.version,
        after=second.version,
        columns_added=dict(columns.added),
        columns_removed=dict(columns.removed),
        columns_retyped=dict(columns.retyped),
        periods=[
            PeriodDifference(name=period, rows_before=rows_before.get(period), rows_after=rows_after.get(period))
            for period in differing_periods(old, new)
        ],
    )


def _key(committed: Committed) -> str:
    return committed.place.rpartition("/")[2]
