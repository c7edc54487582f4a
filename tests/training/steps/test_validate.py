from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops_provider.refs import DatasetRef, ValidationRef
from mlops_provider.step import BadConfigError, BadDataError, RunIdentity, StepInput
from training.data.snapshots import write_snapshot
from training.process import Deployment
from training.steps import StepContext, validate
from training.store import Store

START, END = datetime(2013, 2, 7, tzinfo=UTC), datetime(2013, 2, 10, tzinfo=UTC)
SCHEMA_PATH = "include/flights/schema.pbtxt"
SCHEMA = """
feature { name: "departure" type: INT time_domain { integer_format: UNIX_SECONDS } }
feature { name: "carrier" type: BYTES domain: "carrier" }
string_domain { name: "carrier" value: "AA" value: "UA" }
"""
VOLUME = {"tolerance": 0.2, "against_days": 1}


def table(rows_per_day: list[int]) -> pl.DataFrame:
    departures = [
        START + timedelta(days=day, minutes=row) for day, rows in enumerate(rows_per_day) for row in range(rows)
    ]
    return pl.DataFrame({"departure": departures, "carrier": ["AA", "UA"] * (len(departures) // 2)})


@pytest.fixture
def context_of(tmp_path: Path):
    """Commit a table as a snapshot, and give the context of its validation."""
    home = tmp_path / "home"
    (home / SCHEMA_PATH).parent.mkdir(parents=True)
    (home / SCHEMA_PATH).write_text(SCHEMA)
    store = Store(f"file://{tmp_path}/store")

    def build(frame: pl.DataFrame) -> StepContext:
        manifest = write_snapshot(
            store,
            frame,
            name="flights",
            interval_start=START.isoformat(),
            interval_end=END.isoformat(),
            timezone="UTC",
            event_time="departure",
            sources={},
        )
        place = "pipelines/flights/ingest/key"
        dataset = DatasetRef(
            place=place,
            artifacts={"manifest": store.put_artifact(place, "manifest.json", manifest.to_json())},
            name=manifest.name,
            version=manifest.version,
            schema_hash=manifest.schema_hash,
            num_rows=manifest.num_rows,
            num_bytes=manifest.num_bytes,
            interval_start=manifest.interval_start,
            interval_end=manifest.interval_end,
        )
        run = RunIdentity(
            pipeline="flights",
            run_key="key",
            interval_start=START.isoformat(),
            interval_end=END.isoformat(),
            timezone="UTC",
            dag_id="flights",
            task_id="validate",
            run_id="run",
            try_number=1,
        )
        config = {"schema_path": SCHEMA_PATH, "volume": VOLUME}
        deployment = Deployment(
            home=home, store=store.uri, tracking_uri="", result_path=tmp_path / "result.json", rank=0
        )
        return StepContext(
            input=StepInput(step="validate", run=run, config=config, ref=dataset), deployment=deployment, store=store
        )

    return build


def test_data_that_fits_gives_a_ref_with_report_and_statistics(context_of):
    context = context_of(table([100, 100, 90]))
    ref = validate.run(context)
    assert isinstance(ref, ValidationRef)
    assert ref.parent == context.input.ref
    assert ref.schema_sha256 == hashlib.sha256(SCHEMA.encode()).hexdigest()
    assert ref.num_checks > 0
    assert context.store.read(ref.artifacts["report"]).startswith(b"<!doctype html>")
    statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(context.store.read(ref.artifacts["statistics"]))
    assert [(dataset.name, dataset.num_examples) for dataset in statistics.datasets] == [
        ("window", 290),
        ("2013-02-09", 90),
        ("2013-02-08", 100),
    ]


def test_anomalies_fail_at_once_with_a_line_each_and_the_report(context_of):
    """The person on call reads the message; the link in the UI needs the report's key."""
    frame = table([100, 100, 70]).with_columns(carrier=pl.lit("ZZ"))
    context = context_of(frame)
    with pytest.raises(BadDataError) as caught:
        validate.run(context)
    message, details = str(caught.value), caught.value.details
    assert "- 2013-02-09 has 70 rows, 2013-02-08 had 100: ratio 0.700 is outside 0.8 .. 1.2" in message
    assert "- column carrier: unknown values in 270 of 270 rows, on every day (e.g. 'ZZ' 270x)" in message
    assert [anomaly["kind"] for anomaly in details["anomalies"]] == [
        "COMPARATOR_LOW_NUM_EXAMPLES",
        "ENUM_TYPE_UNEXPECTED_STRING_VALUES",
    ]
    assert details["report"] in message
    report = context.store.get(details["report"])
    assert hashlib.sha256(report).hexdigest() == details["report_sha256"]
    assert any("/statistics." in key for key in context.store.list(context.place))
    assert not caught.value.retryable


def test_without_a_schema_one_is_proposed_and_nothing_passes(context_of):
    """A pipeline that accepted its first data in silence would take that data's faults for the norm."""
    context = context_of(table([100, 100, 100]))
    schema = context.deployment.home / SCHEMA_PATH
    schema.unlink()
    with pytest.raises(BadConfigError, match=r"there is no schema include/flights/schema\.pbtxt.*commit it") as caught:
        validate.run(context)
    assert caught.value.details["schema"] in str(caught.value)
    schema.write_bytes(context.store.get(caught.value.details["schema"]))
    assert isinstance(validate.run(context), ValidationRef)


def test_an_empty_snapshot_never_passes(context_of):
    context = context_of(table([0, 0, 0]).cast({"departure": pl.Datetime("us", "UTC"), "carrier": pl.String}))
    with pytest.raises(BadDataError, match="the snapshot is empty"):
        validate.run(context)
    (context.deployment.home / SCHEMA_PATH).unlink()
    with pytest.raises(BadDataError, match="no rows to propose one from"):
        validate.run(context)


def test_volume_is_checked_only_where_asked_for(context_of):
    context = context_of(table([100, 100, 20]))
    config = {"schema_path": SCHEMA_PATH, "volume": None}
    assert validate.run(replace(context, input=replace(context.input, config=config)))
