"""
Schemas that the data would fit: a first one, or the changes that a committed one would need. A person decides on
either.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence

import polars as pl
from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from mlops.validation.schema import SERVING, expected_features
from mlops.validation.statistics import num_without_value
from mlops.validation.validator import infer_schema, update_schema


def write_schema(proto: schema_pb2.Schema, window: str, decisions: Sequence[str] = ()) -> str:
    """
    Return the text of a first schema.pbtxt, with a heading for its reviewer.

    :param window: the data that it was inferred from, e.g. ``2013-01-11 to 2013-02-09, 26,104 rows``
    :param decisions: what a person must decide, a sentence or two each
    """
    heading = (
        "# Schema of the snapshot: what the data must look like. A snapshot that does not fit stops the pipeline.\n"
        "# Format: tensorflow_metadata/proto/v0/schema.proto. Instants are INT, in seconds since 1970 UTC.\n"
        f"# Inferred from one window, {window}. Review:\n"
        '# - not_in_environment: "SERVING" is for what is not known when the model is asked, as the label;\n'
        "# - min_fraction, the least share of rows with a value: room for twice the missing ones of that window;\n"
        "# - domains: hold the values of that window and no others;\n"
        "# - numbers have no bounds, for one window does not show them: add int_domain { min: 0 max: 9 }.\n"
        + "".join(
            textwrap.fill(text, 118, initial_indent="# - ", subsequent_indent="#   ", break_on_hyphens=False) + "\n"
            for text in decisions
        )
        + "\n"
    )
    rest = schema_pb2.Schema()
    rest.CopyFrom(proto)
    rest.ClearField("feature")
    # A line per column: a change is a one-line diff.
    columns = [
        f"feature {{ {text_format.MessageToString(feature, as_one_line=True, as_utf8=True)} }}\n"
        for feature in proto.feature
    ]
    return heading + "".join(columns) + str(text_format.MessageToString(rest, as_utf8=True))


def propose_schema(
    statistics: statistics_pb2.DatasetFeatureStatistics, types: Mapping[str, pl.DataType], labels: Collection[str] = ()
) -> schema_pb2.Schema:
    """
    Infer a schema for a person to review.

    TFDV's inference, less what it gets wrong on one window of a table: integers that happened to be 0 and 1 only
    become ``bool``, strings that happened to be digits only become numbers, nullable columns get no bound on missing
    values, and ``value_count`` says nothing on flat tables.

    :param types: Polars type of each column
    :param labels: columns that are not known yet when the model is asked
    """
    proto = infer_schema(statistics)
    described = {feature.path.step[0]: feature for feature in statistics.features}
    for feature in proto.feature:
        dtype = types[feature.name]
        feature.ClearField("value_count")
        if feature.HasField("bool_domain") and dtype != pl.Boolean:
            feature.ClearField("bool_domain")
        if feature.type == schema_pb2.BYTES:
            feature.ClearField("int_domain")
            feature.ClearField("float_domain")
        if dtype.is_temporal() and dtype != pl.Duration:
            feature.time_domain.integer_format = schema_pb2.TimeDomain.UNIX_SECONDS
        if feature.type == schema_pb2.FLOAT:
            _bound_floats(feature, described[feature.name].num_stats)
        if feature.name in labels:
            feature.not_in_environment.append(SERVING)
        num_missing, num_rows = num_without_value(described[feature.name]), int(statistics.num_examples)
        if num_missing == num_rows:
            feature.presence.ClearField("min_fraction")
            feature.presence.min_count = 0
        elif num_missing:
            # Room for twice the missing share that was seen.
            feature.presence.min_fraction = max(0.0, _floor(1 - 2 * num_missing / num_rows))
    return proto


def _bound_floats(feature: schema_pb2.Feature, stats: statistics_pb2.NumericStatistics) -> None:
    """Forbid NaN and infinities where there were none: no ``presence`` counts them as missing."""
    if not any(histogram.num_nan for histogram in stats.histograms):
        feature.float_domain.disallow_nan = True
    if math.isfinite(stats.min) and math.isfinite(stats.max):
        feature.float_domain.disallow_inf = True


def revise_schema(
    proto: schema_pb2.Schema,
    datasets: Sequence[statistics_pb2.DatasetFeatureStatistics],
    types: Mapping[str, pl.DataType],
    labels: Collection[str] = (),
) -> schema_pb2.Schema:
    """
    Make the least change to a schema after which the data fits: TFDV's own update, except that a column that is gone is
    removed where TFDV would no longer look at it, a new or retyped column is described as in :func:`propose_schema`,
    and shares of missing values are rounded.

    :param datasets: the window, and the parts of it that must fit on their own
    :param types: Polars type of each column
    :param labels: columns that are not known yet when the model is asked
    """
    updated = proto
    for statistics in datasets:
        updated = update_schema(updated, statistics)
    by_name = {feature.name: feature for feature in updated.feature}
    proposed = propose_schema(datasets[0], types, labels)
    fresh = {feature.name: feature for feature in proposed.feature}
    expected = {feature.name for feature in expected_features(proto)}
    revised = schema_pb2.Schema()
    for before in proto.feature:
        if before.name not in expected:
            after = before
        elif before.name not in types:
            continue
        else:
            after = _revised(before, by_name[before.name], fresh[before.name])
            for statistics in datasets:
                _allow_for_nan(after, statistics)
        revised.feature.add().CopyFrom(after)
        if before.name in labels and SERVING not in before.not_in_environment:
            revised.feature[-1].not_in_environment.append(SERVING)
    known = {feature.name for feature in proto.feature}
    revised.feature.extend(feature for name, feature in fresh.items() if name not in known)
    _copy_domains(revised, proto, updated, proposed)
    for field, value in proto.ListFields():
        if field.name not in ("feature", "string_domain"):
            if field.is_repeated:
                getattr(revised, field.name).extend(value)
            else:
                getattr(revised, field.name).CopyFrom(value)
    return revised


def _revised(before: schema_pb2.Feature, updated: schema_pb2.Feature, fresh: schema_pb2.Feature) -> schema_pb2.Feature:
    after = schema_pb2.Feature()
    if before.type != fresh.type or before.HasField("time_domain") != fresh.HasField("time_domain"):
        after.CopyFrom(fresh)
        # What was missing before the change bounds what may be missing after it.
        after.presence.CopyFrom(updated.presence)
        if after.presence.min_fraction != before.presence.min_fraction:
            after.presence.min_fraction = _floor(after.presence.min_fraction)
        after.ClearField("not_in_environment")
        after.in_environment.extend(before.in_environment)
        after.not_in_environment.extend(before.not_in_environment)
    elif updated.lifecycle_stage != before.lifecycle_stage:
        # There was no value at all. TFDV would deprecate the column, and look at it no more.
        after.CopyFrom(before)
        after.presence.ClearField("min_fraction")
        after.presence.min_count = 0
    else:
        after.CopyFrom(updated)
        if after.presence.min_fraction != before.presence.min_fraction:
            after.presence.min_fraction = _floor(after.presence.min_fraction)
    return after


def _allow_for_nan(feature: schema_pb2.Feature, statistics: statistics_pb2.DatasetFeatureStatistics) -> None:
    """Lower the least share of values where there are NaN, of which TFDV's update takes each for a value."""
    described = next(each for each in statistics.features if each.path.step[0] == feature.name)
    if described.HasField("string_stats"):
        return
    num_rows, num_without = int(statistics.num_examples), num_without_value(described)
    if num_without == described.num_stats.common_stats.num_missing:
        return
    if num_without == num_rows:
        feature.presence.ClearField("min_fraction")
        feature.presence.min_count = 0
    elif feature.presence.min_fraction > 1 - num_without / num_rows:
        feature.presence.min_fraction = _floor(1 - num_without / num_rows)


def _copy_domains(
    revised: schema_pb2.Schema,
    committed: schema_pb2.Schema,
    updated: schema_pb2.Schema,
    proposed: schema_pb2.Schema,
) -> None:
    """Give the features the shared domains that they name; a new domain must not take a committed one's name."""
    kept = {domain.name for domain in committed.string_domain}
    before = {feature.name: feature.domain for feature in committed.feature}
    used = {feature.domain for feature in revised.feature if feature.domain == before.get(feature.name)}
    no_more = {domain for name, domain in before.items() if domain} - used
    revised.string_domain.extend(
        domain for domain in updated.string_domain if domain.name in kept and domain.name not in no_more
    )
    values = {domain.name: domain for domain in proposed.string_domain}
    for feature in revised.feature:
        if feature.domain and feature.domain != before.get(feature.name):
            domain = revised.string_domain.add()
            domain.CopyFrom(values[feature.domain])
            while feature.domain in kept:
                feature.domain += "_"
            domain.name = feature.domain


def _floor(share: float) -> float:
    """Round a share down to two decimals, which are enough for a person."""
    return math.floor(share * 100) / 100
