"""
Answer the rows of a snapshot, a period at a time, and store the answers: in this process, or in Spark's executors where
Spark made the snapshot.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import polars as pl

from mlops.contract.refs import Artifact, ReportRef
from mlops.contract.step import BadDataError
from mlops.data.engine.engines import on_executors, spark_session
from mlops.data.snapshots.canonical import encode
from mlops.data.snapshots.snapshot import Snapshot
from mlops.features.batches import rows_of
from mlops.predictor.document import read_document
from mlops.serving.answered import answers_of
from mlops.serving.archive import unarchived
from mlops.serving.registered_package import RegisteredPackage

_NUMBER: Final = "__number"
_PARTS_OF_A_CORE: Final = 4
"""So many parts of the work for each of Spark's cores: they end at about one time, and open the model a few times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredPeriod:
    """A period whose answers are in the store."""

    period: str
    num_rows: int
    num_unanswered: int
    """Rows of groups below ``FeatureSet.min_group_size``."""
    artifact: Artifact


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodAnswers:
    """What answers periods. It is picklable, because Spark's executors answer rows where they are."""

    snapshot: Snapshot
    report: ReportRef
    """Of the model; its package answers."""
    columns: Sequence[str]
    """Columns of the snapshot that stand beside the answers."""
    place: str
    metadata: Mapping[str, str]

    def store(self, package: RegisteredPackage, scratch: Path) -> Iterator[AnsweredPeriod]:
        """
        Answer all periods.

        :param package: of the report
        :param scratch: folder for files
        :raises BadDataError: naming the period whose rows the model cannot answer
        """
        spans = list(self._spans(read_document(package.data)["features"]["group_by"], scratch))
        if self.snapshot.manifest.engine == "polars":
            yield from self._store(spans, package, scratch)
            return
        num_parts = _PARTS_OF_A_CORE * spark_session().sparkContext.defaultParallelism
        size = -(-len(spans) // num_parts)
        for answered in on_executors(self, [spans[start : start + size] for start in range(0, len(spans), size)]):
            yield from answered

    def __call__(self, spans: Sequence[range]) -> list[AnsweredPeriod]:
        """Answer a part of the periods, in an executor."""
        with TemporaryDirectory() as folder:
            scratch = Path(folder)
            package = RegisteredPackage.of(
                unarchived(self.snapshot.store, self.report, scratch), scratch / "registered"
            )
            return list(self._store(spans, package, scratch))

    def _spans(self, group_by: Sequence[str], scratch: Path) -> Iterator[range]:
        """Return the numbers of the periods, of those together which a group has rows in."""
        periods = self.snapshot.periods
        last = list(range(len(periods)))
        if group_by and len(periods) > 1:
            groups = [
                rows.with_columns(pl.lit(number).alias(_NUMBER))
                for number, rows in enumerate(self._groups(group_by, scratch))
            ]
            found = (
                pl.concat(groups).group_by(group_by).agg(pl.min(_NUMBER).alias("first"), pl.max(_NUMBER).alias("last"))
            )
            for first, end in found.select("first", "last").unique().collect().iter_rows():
                last[first] = max(last[first], end)
        start = 0
        for number, end in enumerate(itertools.accumulate(last, max)):
            if end == number:
                yield range(start, number + 1)
                start = number + 1

    def _groups(self, group_by: Sequence[str], scratch: Path) -> Iterator[pl.LazyFrame]:
        """Return the groups of each period."""
        periods = self.snapshot.periods
        if self.snapshot.manifest.engine == "polars":
            for period in periods:
                yield self.snapshot.scan([period], cache=scratch).select(group_by).unique()
            return
        groups = on_executors(lambda period: self.snapshot.read([period]).select(group_by).unique(), periods)
        yield from (rows.lazy() for rows in groups)

    def _store(self, spans: Sequence[range], package: RegisteredPackage, scratch: Path) -> Iterator[AnsweredPeriod]:
        document, periods = read_document(package.data), self.snapshot.periods
        # A group may be anywhere among the rows.
        most = None if document["features"]["group_by"] else rows_of(document["model"]["num_features"])
        no_answer = pl.all_horizontal(pl.col(*document["model"]["columns"]).is_null())
        with answers_of(package, scratch) as answer:
            for span in spans:
                parts = [self.snapshot.read([periods[number]]) for number in span]
                rows = pl.concat(parts)
                try:
                    found = pl.concat(
                        batch.select(self.columns).hstack(answer(batch))
                        for batch in rows.iter_slices(most or rows.height)
                    )
                except BadDataError as error:
                    raise BadDataError(f"{periods[span.start]}: {error}") from error
                ends = itertools.accumulate(part.height for part in parts)
                for number, part, end in zip(span, parts, ends, strict=True):
                    own = found[end - part.height : end]
                    data = encode(own, self.metadata)
                    yield AnsweredPeriod(
                        period=periods[number],
                        num_rows=part.height,
                        num_unanswered=own.select(no_answer.sum()).item(),
                        artifact=self.snapshot.store.put_artifact(self.place, f"{number:05d}.parquet", data),
                    )
