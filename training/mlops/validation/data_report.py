"""The verdict as one HTML page without any outside resource, to be read by someone who was woken by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jinja2
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.contract.grain import Grain
from mlops.contract.sections.validate import Volume
from mlops.contract.step import RunIdentity
from mlops.validation.charts import (
    Bar,
    distance_bars,
    format_number,
    histogram_bars,
    pairs,
    percent,
    period_bars,
    slice_bars,
    value_bars,
)
from mlops.validation.examination import ValidationResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The examined data, as shown in the head of the report."""

    dataset: str
    version: str
    timezone: str
    grain: Grain
    types: Mapping[str, str]
    """Polars type by column, as in the snapshot's manifest."""
    schema_path: str
    schema_sha256: str
    takeover: str | None = None
    """The command that makes the schema a file, where it is a proposal that nobody has reviewed."""
    run: RunIdentity


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """A line of the table of columns."""

    name: str
    type: str
    missing: str
    missing_width: float
    """Share of rows without a value, in percent."""
    bars: list[Bar]
    """Histogram of a column of numbers; the most frequent values of a column of strings."""
    is_text: bool
    facts: list[tuple[str, str]]
    anomaly: int | None
    """Number of the first anomaly of the column, counted from 1; None if it has none."""


def render(verdict: ValidationResult, subject: Subject, volume: Volume | None) -> str:
    """
    Return the report page. Equal verdicts give equal bytes: there is no clock in it.

    :param volume: the setting by which the newest period was to be compared
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # values come from the data
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(pairs=pairs, distance_bars=distance_bars)
    window = verdict.statistics.datasets[0] if verdict.statistics.datasets else None
    numbered = list(enumerate(verdict.anomalies, start=1))[::-1]  # of several the first is kept
    of_column = {anomaly.column: number for number, anomaly in numbered}
    of_slice = {anomaly.slice: number for number, anomaly in numbered}
    about_rows = [anomaly for anomaly in verdict.anomalies if anomaly.column is None and anomaly.slice is None]
    marked = {period for anomaly in about_rows for period in anomaly.periods}
    return environment.get_template("report.html.j2").render(
        verdict=verdict,
        subject=subject,
        volume=volume if verdict.compared else None,
        num_rows=sum(verdict.num_rows.values()),
        unchecked=len(verdict.notes) + sum(not comparison.compared for comparison in verdict.comparisons),
        compared=verdict.compared,
        grain=subject.grain,
        periods=period_bars(verdict.num_rows, verdict.periods, marked),
        columns=[
            summarise(feature, subject.types, of_column.get(feature.path.step[0]))
            for feature in (window.features if window else ())
        ],
        slices=slice_bars(verdict.slices, of_slice),
    )


def summarise(
    feature: statistics_pb2.FeatureNameStatistics, types: Mapping[str, str], anomaly: int | None
) -> ColumnSummary:
    """Return the report's summary of a column."""
    name = feature.path.step[0]
    is_text = feature.HasField("string_stats")
    stats = feature.string_stats if is_text else feature.num_stats
    num_missing, num_present = stats.common_stats.num_missing, stats.common_stats.num_non_missing
    missing = num_missing / (num_missing + num_present)
    dtype = types[name]
    if not num_present:
        bars, facts = [], []
    elif is_text:
        bars = value_bars(feature.string_stats, num_missing + num_present)
        facts = [("distinct", f"{feature.string_stats.unique:,}")]
    else:
        bars = histogram_bars(feature.num_stats, dtype)
        numbers = feature.num_stats
        facts = [
            (label, format_number(value, dtype))
            for label, value in (("min", numbers.min), ("median", numbers.median), ("max", numbers.max))
        ]
    return ColumnSummary(
        name=name,
        type=dtype.split("(")[0].lower(),
        missing=percent(missing),
        missing_width=100 * missing,
        bars=bars,
        is_text=is_text,
        facts=facts,
        anomaly=anomaly,
    )
