"""A pipeline's first schema: proposed from its data, in force until taken over, with what a person must decide."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from mlops.contract.step import BadConfigError
from mlops.store import Store
from mlops.validation.anomalies import Anomaly, shorten
from mlops.validation.baselines import WINDOW, last_validation
from mlops.validation.columns import check_columns
from mlops.validation.proposal import propose_schema, revise_schema, write_schema
from mlops.validation.rows import Rows
from mlops.validation.schema import Schema, proposed_schema
from mlops.validation.statistics import num_without_value

PROPOSAL: Final = "schema"
"""Artifact of a validation by a schema that was proposed; one by a file in git has none."""
_RARE: Final = 5
"""Of a value that occurs in fewer rows there are surely others which did not occur."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """A snapshot's rows and their statistics."""

    rows: Rows
    window: str
    """Periods and rows of the window, in words."""
    datasets: Mapping[tuple[str, ...], statistics_pb2.DatasetFeatureStatistics]
    """Statistics by periods: of the whole window, and of its newest period, which must both fit the schema."""

    @classmethod
    def of(cls, rows: Rows) -> Described:
        """:param rows: at least one"""
        periods, last = tuple(rows.periods), rows.periods[-1]
        window = statistics_pb2.DatasetFeatureStatistics(name=WINDOW, num_examples=rows.total)
        newest = statistics_pb2.DatasetFeatureStatistics(name=last, num_examples=rows.num_rows[last])
        for column in rows.columns():
            window.features.append(column.describe()[0])
            newest.features.append(column.describe(last)[0])
        return cls(
            rows=rows,
            window=f"{periods[0]} to {last}, {rows.total:,} rows",
            datasets={periods: window, periods[-1:]: newest},
        )

    def anomalies(self, schema: Schema) -> list[Anomaly]:
        """Return what validation would find wrong with the columns; of several of one kind the first."""
        found: dict[tuple[str | None, str], Anomaly] = {}
        for periods, statistics in self.datasets.items():
            whole = len(periods) == len(self.rows.num_rows)
            for anomaly in check_columns(statistics, schema, self.rows, periods, whole=whole):
                found.setdefault((anomaly.column, anomaly.kind), anomaly)
        return list(found.values())


def first_schema(described: Described, labels: Collection[str] = ()) -> str:
    """
    Return the text of a schema that the data fits, in the window and in its newest period.

    :param labels: columns that are not known yet when the model is asked
    """
    window, types = next(iter(described.datasets.values())), described.rows.schema
    proto = propose_schema(window, types, labels)
    unfit = {anomaly.column for anomaly in described.anomalies(Schema(path="", proto=proto, sha256=""))}
    # The window's least share of values may be more than its newest period has, beyond what chance would do.
    revised = revise_schema(proto, list(described.datasets.values()), types, labels) if unfit else proto
    for feature, fitting in zip(proto.feature, revised.feature, strict=True):
        if feature.name in unfit:
            feature.CopyFrom(fitting)
    return write_schema(proto, described.window, list(_decisions(proto, window)))


def proposal_in_force(store: Store, pipeline: str, path: str, before: datetime | None = None) -> Schema | None:
    """
    Return the schema that earlier data was held against without anybody having taken it over.

    :param path: of the file that is missing
    :param before: of the intervals that ended before it; None: of all
    :return: None where nothing has passed yet
    :raises BadConfigError: where there was a file: somebody decided what is in it, and now it is gone
    """
    passed = last_validation(store, pipeline, before)
    if passed is None:
        return None
    if PROPOSAL not in passed.artifacts:
        raise BadConfigError(
            f"there is no schema {path}, but the data up to {passed.parent.interval_end} was held against one (SHA-256 "
            f"{passed.schema_sha256[:12]}). Put that file back, or correct validate.schema_path; for another one:\n"
            f"  {takeover(pipeline, path)}"
        )
    return proposed_schema(store.read(passed.artifacts[PROPOSAL]), path)


def takeover(pipeline: str, path: str) -> str:
    """Return the command that makes a proposal the pipeline's schema."""
    return f"mlops schema propose {pipeline} --schema {path} --label LABEL --write"


def _decisions(proto: schema_pb2.Schema, statistics: statistics_pb2.DatasetFeatureStatistics) -> Iterator[str]:
    """Say what no data can tell, a sentence or two for columns that are alike."""
    described = {feature.path.step[0]: feature for feature in statistics.features}
    num_rows = int(statistics.num_examples)
    empty: list[str] = []
    mostly_empty: list[str] = []
    constant: list[str] = []
    thin: list[str] = []
    for feature in proto.feature:
        stats = described[feature.name]
        present = num_rows - num_without_value(stats)
        if not present:
            empty.append(feature.name)
            continue
        if 2 * present < num_rows:
            mostly_empty.append(feature.name)
        elif (value := _only_value(stats)) is not None and num_rows > 1:
            constant.append(f"{feature.name} ({value})")
        elif feature.domain:
            rarest = stats.string_stats.rank_histogram.buckets[-1]
            if rarest.sample_count < _RARE:
                thin.append(f"{feature.name} ({rarest.label!r} in {rarest.sample_count:.0f})")
    if empty:
        yield (
            f"{_names(empty)} without any value. Nobody knows what will be in there: give the type by `types` of the "
            "source, or drop it in ingest.transform."
        )
    if mostly_empty:
        yield f"{_names(mostly_empty)} with a value in less than half of the rows: is that as it should be?"
    if constant:
        yield f"{_names(constant)} of which each value is the same: it teaches nothing. Is it wanted?"
    if thin:
        yield (
            f"{_names(thin)} with values in so few rows that there are surely others, and each new one stops a night: "
            "add them to its string_domain, or take `domain` away."
        )


def _names(columns: Sequence[str]) -> str:
    return f"column{'s' if len(columns) > 1 else ''} {shorten(columns)}"


def _only_value(stats: statistics_pb2.FeatureNameStatistics) -> str | None:
    """Return the value that all rows which have one share."""
    if stats.HasField("string_stats"):
        buckets = stats.string_stats.rank_histogram.buckets
        return repr(buckets[0].label) if len(buckets) == 1 else None
    numbers = stats.num_stats
    return f"{numbers.min:g}" if numbers.min == numbers.max else None
