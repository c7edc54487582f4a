"""Rows to rehearse with: of the newest snapshot, where the pipeline would make the same one, or of its sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, cast

import polars as pl

from mlops.contract.code_files import code_digest
from mlops.contract.grain import Grain
from mlops.contract.refs import INPUT, DatasetRef
from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.ingest import Ingest, SourceSplit
from mlops.contract.step import StepInput
from mlops.data.snapshots.canonical import normalise
from mlops.data.snapshots.snapshot import Snapshot
from mlops.data.snapshots.transform import Transform, explained, table_of
from mlops.data.sources import SourceTable, read_source
from mlops.data.sources.window import Window
from mlops.rehearsal.problems import Problems
from mlops.store import REF_FILE, Store

MOST_ROWS: Final = 20_000
"""Rows of a sample, the newest that there are."""
_ALL: Final[Mapping[Grain, int]] = {"hour": 876_000, "day": 36_500, "week": 5_200, "month": 1_200}
"""Window in which rows are looked for, of a hundred years: the newest may be of long ago."""

_CHUNKS: Final = (200, 300, 700, 1100)
"""Rows that Polars takes at once: so few that small tables are cut, too, each time elsewhere."""


@dataclass(frozen=True, slots=True)
class Sample:
    rows: pl.DataFrame
    origin: str
    """Where they are from, for people."""
    notes: Sequence[str] = ()
    """What a person should know of them."""


def of_snapshot(store: Store, pipeline: str, ingest: Ingest, home: Path) -> Sample | None:
    """Return rows of the newest snapshot; None where there is none, or these settings and this code make another."""
    commits = [each for each in store.stored(f"pipelines/{pipeline}/ingest") if each.key.endswith(f"/{REF_FILE}")]
    for commit in sorted(commits, key=lambda each: each.modified)[-1:]:
        ref = store.committed(commit.key.removesuffix(f"/{REF_FILE}"))
        if not isinstance(ref, DatasetRef) or INPUT not in ref.artifacts:
            return None
        told = StepInput.load(store.read(ref.artifacts[INPUT]).decode())
        if told.code != code_digest([home / path for path in told.code_paths]) or not _same(told, ingest):
            return None
        snapshot = Snapshot.open(store, ref)
        periods, num_rows = [], 0
        for partition in reversed(snapshot.manifest.partitions):
            periods.append(partition.period)
            num_rows += partition.num_rows
            if num_rows >= MOST_ROWS:
                break
        rows = snapshot.read(sorted(periods)).tail(MOST_ROWS)
        return Sample(rows, f"{rows.height:,} rows of the snapshot {ref.name}@{ref.version[:12]}")
    return None


def _same(told: StepInput, ingest: Ingest) -> bool:
    try:
        return check_section(Ingest, told.config, "ingest") == ingest
    except SpecError:  # of another release
        return False


def of_sources(
    ingest: Ingest, *, home: Path, scratch: Path, now: datetime, timezone: str, problems: Problems
) -> Sample | None:
    """
    Return the newest rows that a transform makes of the sources; None where something is wrong with them.

    :param scratch: folder for what is fetched
    """
    # What is read depends on the window only where a source leaves out what is older.
    leaves_out = any(source.history_days is not None for source in ingest.sources.values())
    for length in (*([ingest.window] if leaves_out else []), _ALL[ingest.grain]):
        window = Window.before(now, length, timezone, ingest.grain, begun=True)
        tables = _read(ingest, home=home, scratch=scratch / f"{length}", window=window, problems=problems)
        if tables is None:
            return None
        sample = _newest(ingest, tables, home, window, problems)
        if sample is None:
            return None
        rows, unsteady = sample
        if rows.height:
            notes = [*(note for name, table in tables.items() for note in table.notes(name)), *unsteady]
            return Sample(rows, f"{rows.height:,} rows of the sources", notes)
    problems.add("ingest", "sources", message=f"they have no rows that were known at {now.isoformat()}")
    return None


def _read(
    ingest: Ingest, *, home: Path, scratch: Path, window: Window, problems: Problems
) -> Mapping[str, SourceTable] | None:
    tables = {}
    for name, source in ingest.sources.items():
        with problems.caught("ingest", "sources", name):
            tables[name] = read_source(name, source, home=home, scratch=scratch, window=window, engine="polars")
    return tables if len(tables) == len(ingest.sources) else None


def _newest(
    ingest: Ingest, tables: Mapping[str, SourceTable], home: Path, window: Window, problems: Problems
) -> tuple[pl.DataFrame, list[str]] | None:
    """Return the newest rows, and a sentence for each column that another run would make of other bits."""
    with problems.caught("ingest", "split" if isinstance(ingest.split, SourceSplit) else "transform"):
        lazy: pl.LazyFrame = table_of(tables, ingest, Transform.of(ingest, home), window).to_native()
        with explained(ingest.transform, tables):
            newest = lazy.top_k(MOST_ROWS, by=ingest.event_time).collect(engine="streaming")
            if not newest.height:
                return newest, []
            since = window.periods.start(window.periods.at(cast(datetime, newest[ingest.event_time].max())))
            unsteady = unsteady_columns(lazy.filter(pl.col(ingest.event_time) >= since))
        sentences = [
            f"column {column!r} of the transform has other last bits each time: fractions are added up in the order in "
            "which threads come to them. Each run then stores all its days again, and a lost file cannot be made "
            "again. Add up whole numbers (cents, not euros), or round the result"
            for column in unsteady
        ]
        return normalise(newest), sentences
    return None


def unsteady_columns(rows: pl.LazyFrame) -> list[str]:
    """Return the columns of fractions whose bits are not the same each time that the rows are made; a few are tried."""
    columns = [name for name, dtype in rows.collect_schema().items() if dtype.is_float()]
    # In whole numbers, whose sum is the same in any order, as is that of the rows.
    bits = rows.select(pl.col(columns).hash().sum())
    seen = []
    for size in _CHUNKS if columns else ():
        with pl.Config(streaming_chunk_size=size):
            seen.append(bits.collect(engine="streaming").row(0))
    return [name for name, *values in zip(columns, *seen, strict=True) if len(set(values)) > 1]
