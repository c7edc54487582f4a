"""The validate step on real snapshots in a real store, committed and found again night by night."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import narwhals as nw
import polars as pl
import pytest
from committed_refs import commit_lineage
from tensorflow_metadata.proto.v0 import statistics_pb2

from mlops.contract.refs import DatasetRef, Ref, ValidationRef
from mlops.contract.sections.calendar import EVERY_DAY, AnyCalendar, GapDays, OpenDays
from mlops.contract.sections.ingest import RowSplit
from mlops.contract.step import BadConfigError, BadDataError, RunIdentity, StepInput, place
from mlops.data.snapshots.deprecation import deprecate
from mlops.data.snapshots.snapshot import Manifest, Snapshot, write_snapshot
from mlops.data.sources.window import Window
from mlops.process import ProcessSettings
from mlops.steps.execution import execute
from mlops.store import Store
from mlops.store_errors import DamagedObjectError

FIRST = datetime(2013, 2, 7, tzinfo=UTC)
NUM_DAYS = 3
SCHEMA_PATH = "include/flights/schema.pbtxt"
SCHEMA = """
feature { name: "departure" type: INT time_domain { integer_format: UNIX_SECONDS } }
feature { name: "carrier" type: BYTES domain: "carrier" }
feature { name: "distance" type: INT }
feature { name: "delay" type: FLOAT not_in_environment: "SERVING" }
string_domain { name: "carrier" value: "AA" value: "UA" }
"""
NEW_COLUMN = 'feature { name: "gate" type: INT }'
TIMEZONE = "UTC"
CONFIG = {
    "schema_path": SCHEMA_PATH,
    "volume": {"tolerance": 0.2, "against": 1},
    "drift": {"numbers": 0.1, "values": 0.1, "columns": {}},
    "unique": [],
    "max_age_hours": None,
    "slices": [],
    "slice_tolerance": 0.25,
    "serving_log": None,
}


def table(rows_per_day: Sequence[int], start: datetime = FIRST) -> pl.DataFrame:
    rows = [start + timedelta(days=day, minutes=row) for day, rows in enumerate(rows_per_day) for row in range(rows)]
    return pl.DataFrame(
        {
            "departure": rows,
            "carrier": [("AA", "UA")[row % 2] for row in range(len(rows))],
            "distance": [100 + row % 50 for row in range(len(rows))],
            "delay": [float(row % 30) for row in range(len(rows))],
        }
    )


class Nights:
    """A pipeline's ingested nights, each to be validated."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.store = Store(store)
        self.schema = self.home / SCHEMA_PATH
        self.schema.parent.mkdir(parents=True)
        self.schema.write_text(SCHEMA)

    def ingest(self, frame: pl.DataFrame, start: datetime = FIRST, calendar: AnyCalendar = EVERY_DAY) -> DatasetRef:
        window = Window.before(start + timedelta(days=NUM_DAYS), NUM_DAYS, TIMEZONE)
        manifest = write_snapshot(
            self.store,
            nw.from_native(frame.lazy()),
            name="flights",
            window=window,
            event_time="departure",
            sources={},
            split=RowSplit(rows="hash", validation=0.3, test=0.3),
            creator={},
            engine="polars",
            scratch=self.folder,
            calendar=calendar,
        )
        return self.commit(manifest)

    def commit(self, manifest: Manifest) -> DatasetRef:
        folder = place("flights", f"{manifest.interval_end[:10]}-{manifest.version[:6]}", "ingest")
        return manifest.ref(folder, self.store.put_artifact(folder, "manifest.json", manifest.to_json()))

    def validate(self, dataset: DatasetRef, baselines: Mapping[str, Ref] | None = None, **changes: Any) -> Any:
        end = datetime.fromisoformat(dataset.interval_end)
        run = RunIdentity(
            pipeline="flights",
            run_key=f"{end:%Y%m%dT%H%M%SZ}-{dataset.version[:6]}",
            interval_start=dataset.interval_start,
            interval_end=dataset.interval_end,
            timezone=TIMEZONE,
            dag_id="flights",
            task_id="validate",
            run_id="run",
            try_number=1,
        )
        document = StepInput(
            step="validate", run=run, config={**CONFIG, **changes}, ref=dataset, baselines=baselines or {}
        )
        commit_lineage(self.store, dataset, *document.baselines.values())
        deployment = ProcessSettings(
            home=self.home, store=self.store.uri, tracking_uri="", result_path=self.folder / "result.json", rank=0
        )
        return execute(StepInput.load(document.dump()), deployment)

    def report(self, ref: ValidationRef) -> str:
        return self.store.read(ref.artifacts["report"]).decode()


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path, f"file://{tmp_path}/store")


@pytest.fixture
def next_night(nights: Nights) -> Callable[..., Any]:
    """Validates a night's rows, after the night before has passed."""
    nights.validate(nights.ingest(table([100, 100, 100])))
    start = FIRST + timedelta(days=1)

    def validate(change: Callable[[pl.DataFrame], pl.DataFrame] = lambda frame: frame, **changes: Any) -> Any:
        return nights.validate(nights.ingest(change(table([100, 100, 100], start)), start), **changes)

    return validate


def test_data_that_fits_gives_a_ref_with_report_and_statistics(nights):
    dataset = nights.ingest(table([100, 100, 90]))
    ref = nights.validate(dataset)
    assert ref.parent == dataset
    assert ref.schema_sha256 == hashlib.sha256(SCHEMA.encode()).hexdigest()
    assert ref.num_checks > 0
    assert nights.report(ref).startswith("<!doctype html>")
    statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(nights.store.read(ref.artifacts["statistics"]))
    assert [(dataset.name, dataset.num_examples) for dataset in statistics.datasets] == [
        ("window", 290),
        ("2013-02-09", 90),
    ]


def test_anomalies_fail_at_once_with_a_line_each_and_the_report(nights):
    """The person on call reads the message; the link in the UI needs the report's key."""
    dataset = nights.ingest(table([100, 100, 70]).with_columns(carrier=pl.lit("ZZ")))
    with pytest.raises(BadDataError) as caught:
        nights.validate(dataset)
    message, details = str(caught.value), caught.value.details
    assert "- 2013-02-09 has 70 rows, 2013-02-08 had 100: ratio 0.700 is outside 0.8 .. 1.2" in message
    assert "- column carrier: unknown values in 270 of 270 rows, on every day (e.g. 'ZZ' 270x)" in message
    assert [anomaly["kind"] for anomaly in details["anomalies"]] == [
        "COMPARATOR_LOW_NUM_EXAMPLES",
        "ENUM_TYPE_UNEXPECTED_STRING_VALUES",
    ]
    json.dumps(details)  # it travels in the result document
    assert details["report"] in message
    report = nights.store.get(details["report"])
    assert hashlib.sha256(report).hexdigest() == details["report_sha256"]
    assert not caught.value.retryable
    assert nights.store.committed(place("flights", f"20130210T000000Z-{dataset.version[:6]}", "validate")) is None


def test_without_a_schema_the_first_night_passes_by_a_proposal_and_says_so(nights, caplog):
    """Accepted in silence, the first data's faults would be the norm, and nobody would know."""
    dataset = nights.ingest(table([100, 100, 100]))
    nights.schema.unlink()
    ref = nights.validate(dataset)
    proposal = nights.store.read(ref.artifacts["schema"])
    assert ref.schema_sha256 == hashlib.sha256(proposal).hexdigest()
    command = f"mlops schema propose flights --schema {SCHEMA_PATH} --label LABEL --write"
    assert command in caplog.text
    assert command in nights.report(ref)
    assert "a proposal that nobody has reviewed" in nights.report(ref)
    nights.schema.write_bytes(proposal)
    reviewed = nights.validate(nights.ingest(table([100, 100, 99])))
    assert set(reviewed.artifacts) == {"input", "report", "statistics"}
    assert "nobody has reviewed" not in nights.report(reviewed)


def test_a_proposal_stays_in_force_until_somebody_takes_it_over(nights):
    """Proposed anew each night it would fit anything."""
    nights.schema.unlink()
    first = nights.validate(nights.ingest(table([100, 100, 100])))
    start = FIRST + timedelta(days=1)
    rows = table([100, 100, 100], start)
    second = nights.validate(nights.ingest(rows.with_columns(distance=pl.col("distance") + 1), start))
    assert second.schema_sha256 == first.schema_sha256
    start += timedelta(days=1)
    with pytest.raises(BadDataError, match=r"(?s)unknown values .*ZZ.*nobody has decided on it.*mlops schema propose"):
        nights.validate(nights.ingest(table([100, 100, 100], start).with_columns(carrier=pl.lit("ZZ")), start))


def test_vectors_and_bytes_are_looked_at_by_how_long_they_are(nights):
    """A table of embeddings or images could not be validated at all."""
    nights.schema.unlink()

    def night(start: datetime, scale: float) -> DatasetRef:
        rows = table([100, 100, 100], start)
        numbers = range(rows.height)
        return nights.ingest(
            rows.with_columns(
                embedding=pl.Series([[scale * (row % 7), 1.0] for row in numbers]),
                image=pl.Series([b"x" * (10 + row % 5) for row in numbers]),
            ),
            start,
        )

    first = nights.validate(night(FIRST, 1.0))
    assert 'name: "embedding" type: FLOAT' in nights.store.read(first.artifacts["schema"]).decode()
    assert 'name: "image" type: INT' in nights.store.read(first.artifacts["schema"]).decode()
    with pytest.raises(BadDataError, match="column embedding: its distribution is not that of the previous snapshot"):
        nights.validate(night(FIRST + timedelta(days=1), 40.0))


def test_a_key_of_bytes_is_unique_by_its_bytes(nights):
    """Broken: keys of one length, such as those of 16 bytes, were all one."""
    nights.schema.unlink()
    rows = table([100, 100, 100])
    keyed = rows.with_columns(key=pl.Series([row.to_bytes(16, "big") for row in range(rows.height)]))
    nights.validate(nights.ingest(keyed), unique=[["key"]])
    start = FIRST + timedelta(days=1)
    rows = table([100, 100, 100], start)
    twice = rows.with_columns(key=pl.Series([(row // 2).to_bytes(16, "big") for row in range(rows.height)]))
    with pytest.raises(BadDataError, match=f"{rows.height // 2} keys occur more than once"):
        nights.validate(nights.ingest(twice, start), unique=[["key"]])


def test_another_try_at_the_same_night_proposes_anew(nights):
    """Who writes a pipeline changes its columns ten times on one day."""
    nights.schema.unlink()
    rows = table([100, 100, 100])
    first = nights.validate(nights.ingest(rows))
    assert nights.validate(nights.ingest(rows.drop("delay"))).schema_sha256 != first.schema_sha256


def test_a_schema_that_was_there_and_is_gone_is_not_replaced_by_a_proposal(nights):
    """Else a deleted file, or a mistyped path, would let everything pass that it kept out."""
    nights.validate(nights.ingest(table([100, 100, 100])))
    nights.schema.unlink()
    start = FIRST + timedelta(days=1)
    with pytest.raises(BadConfigError, match="Put that file back, or correct validate.schema_path"):
        nights.validate(nights.ingest(table([100, 100, 100], start), start))


def test_a_schema_beside_the_one_that_is_named_is_taken_for_a_mistyped_path(nights):
    with pytest.raises(BadConfigError, match=r"no schema include/flights/shcema.pbtxt, but schema.pbtxt in that"):
        nights.validate(nights.ingest(table([9, 9, 9])), schema_path="include/flights/shcema.pbtxt")


def test_an_empty_snapshot_never_passes(nights):
    """TFDV finds nothing wrong with no data."""
    manifest = Snapshot.open(nights.store, nights.ingest(table([9, 9, 9]))).manifest
    empty = nights.commit(replace(manifest, partitions=()))
    with pytest.raises(BadDataError, match="the snapshot is empty"):
        nights.validate(empty)
    nights.schema.unlink()
    with pytest.raises(BadDataError, match="no rows to propose one from"):
        nights.validate(empty)


def test_volume_is_checked_only_where_asked_for(nights):
    assert nights.validate(nights.ingest(table([100, 100, 20])), volume=None)


def test_a_deprecated_snapshot_is_refused(nights):
    """Somebody has found out that its data is wrong: no new work may start from it."""
    dataset = nights.ingest(table([100, 100, 100]))
    deprecate(nights.store, dataset.name, dataset.version, reason="the source sent test rows", by="ann")
    with pytest.raises(BadDataError, match="the source sent test rows"):
        nights.validate(dataset)


def test_the_first_night_says_that_there_is_nothing_to_compare_with(nights):
    """A check that was not made must not look like one that passed."""
    report = nights.report(nights.validate(nights.ingest(table([100, 100, 100]))))
    assert "No model is in production yet" in report
    assert "No snapshot of an earlier interval has passed validation" in report


def test_the_next_night_is_held_against_the_one_before(nights, next_night):
    report = nights.report(next_night())
    assert "2013-02-07 to 2013-02-09" in report
    assert "No snapshot of an earlier interval" not in report


def test_days_off_are_no_anomaly_and_the_newest_day_is_the_last_that_has_rows(nights):
    """2013-02-09 was a Saturday: every weekend would fail, or be looked at as a day on which everything is missing."""
    start = FIRST + timedelta(days=1)
    friday = nights.ingest(table([100, 100], FIRST), calendar=OpenDays())
    assert 'the data of <span class="day">2013-02-08</span> fits' in nights.report(nights.validate(friday))
    sunday = nights.ingest(table([100], start), start, calendar=GapDays(gaps=2))
    report = nights.report(nights.validate(sunday))
    assert 'the data of <span class="day">2013-02-08</span> fits' in report
    assert "were not compared" not in report, "Thursday has left the window, and had passed"


def test_a_day_that_the_calendar_expects_is_missed(nights):
    thursday_lost = nights.ingest(table([0, 100]), calendar=OpenDays())
    with pytest.raises(BadDataError, match="2013-02-07 has no rows"):
        nights.validate(thursday_lost)
    two_in_a_row = nights.ingest(table([0, 0, 100]), calendar=GapDays(gaps=1))
    with pytest.raises(BadDataError, match="2 days have no rows: 2013-02-07, 2013-02-08"):
        nights.validate(two_in_a_row)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(
            lambda frame: frame.with_columns(pl.col("distance") * 10),
            "- column distance: its distribution is not that of the previous snapshot",
            id="numbers",
        ),
        pytest.param(
            lambda frame: frame.with_columns(pl.lit("AA").alias("carrier")),
            "- column carrier: its distribution is not that of the previous snapshot",
            id="values",
        ),
        pytest.param(
            lambda frame: frame.with_columns(pl.when(pl.col("distance") < 120).then("delay")),
            "- column delay: its distribution is not that of the previous snapshot",
            id="missing values",
        ),
        pytest.param(
            lambda frame: frame.filter((pl.col("departure").dt.day() != 8) | (pl.col("distance") < 130)),
            "- 2013-02-08 has 60 rows, and had 100 in the previous snapshot",
            id="a day has lost rows",
        ),
        pytest.param(
            lambda frame: frame.filter(pl.col("distance") < 110),
            "in the previous snapshot (2 days changed so: 2013-02-08, 2013-02-09)",
            id="all days have lost rows",
        ),
    ],
)
def test_what_changed_since_the_previous_snapshot_is_found(next_night, change, line):
    with pytest.raises(BadDataError) as caught:
        next_night(change)
    assert line in str(caught.value)


def test_a_drift_is_drawn_and_has_its_fix(next_night):
    with pytest.raises(BadDataError) as caught:
        next_night(lambda frame: frame.with_columns(pl.col("distance") * 10))
    (anomaly,) = caught.value.details["anomalies"]
    assert anomaly["fix"].startswith("set validate.drift.columns.distance")
    assert sum(anomaly["distribution"]["expected"]) == pytest.approx(1)
    assert sum(anomaly["distribution"]["found"]) == pytest.approx(1)
    assert next_night(
        lambda frame: frame.with_columns(pl.col("distance") * 10),
        drift={"numbers": 0.1, "values": 0.1, "columns": {"distance": None}},
    )


def test_a_rerun_of_an_old_night_is_not_held_against_later_ones(nights, next_night):
    """A backfill would otherwise be compared with its future."""
    next_night()
    old = FIRST - timedelta(days=1)
    assert "No snapshot of an earlier interval" in nights.report(
        nights.validate(nights.ingest(table([100, 100, 100], old), old))
    )


def test_the_champions_snapshot_is_the_reference(nights):
    champion = nights.validate(nights.ingest(table([100, 100, 100])))
    later = FIRST + timedelta(days=30)
    drifted = table([100, 100, 100], later).with_columns(pl.col("delay") + 25)
    with pytest.raises(BadDataError) as caught:
        nights.validate(nights.ingest(drifted, later), {"champion": champion})
    # The previous snapshot is the same one: a mistake is told once.
    (anomaly,) = caught.value.details["anomalies"]
    assert (anomaly["column"], anomaly["kind"]) == ("delay", "COMPARATOR_JENSEN_SHANNON_DIVERGENCE_HIGH")
    assert "the champion's snapshot, 2013-02-07 to 2013-02-09" in anomaly["distribution"]["expected_name"]


def test_statistics_of_another_generator_are_not_compared_with(nights):
    """Their quantiles and bins differ: the comparison would find differences that are not in the data."""
    champion = nights.validate(nights.ingest(table([100, 100, 100])))
    statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(
        nights.store.read(champion.artifacts["statistics"])
    )
    for feature in statistics.datasets[0].features:
        del feature.custom_stats[:]
        feature.num_stats.ClearField("histograms")
    foreign = nights.store.put_artifact("foreign", "statistics.pb", statistics.SerializeToString())
    champion = replace(champion, place="foreign", artifacts={**champion.artifacts, "statistics": foreign})
    later = FIRST + timedelta(days=30)
    ref = nights.validate(nights.ingest(table([100, 100, 100], later), later), {"champion": champion})
    assert "statistics of two generators are not comparable" in nights.report(ref)


def test_a_column_that_a_reference_lacks_is_said_not_to_be_compared(nights):
    """As after a change of the schema. A check that was not made must not look like one that passed."""
    nights.validate(nights.ingest(table([100, 100, 100])))
    nights.schema.write_text(SCHEMA.replace('"distance" type: INT', '"distance" type: BYTES') + NEW_COLUMN)
    start = FIRST + timedelta(days=1)
    changed = table([100, 100, 100], start).with_columns(pl.col("distance").cast(pl.String), gate=pl.lit(3))
    report = nights.report(nights.validate(nights.ingest(changed, start)))
    assert "Not compared with the previous snapshot" in report
    assert "distance, gate" in report


def test_days_of_another_time_zone_are_not_compared(nights, monkeypatch):
    """The same rows are other days' there: a pipeline whose time zone was changed would fail for a week."""
    nights.validate(nights.ingest(table([100, 100, 100])))
    monkeypatch.setattr(f"{__name__}.TIMEZONE", "Pacific/Auckland")
    start = FIRST + timedelta(days=1, hours=11)
    report = nights.report(nights.validate(nights.ingest(table([150, 150, 150], start), start)))
    assert "days of UTC: their rows were not compared" in report


def test_a_damaged_reference_stops_the_step(nights, next_night):
    """To go on without it would be to pass over a check in silence."""
    (key,) = (key for key in nights.store.list("pipelines/flights/validate") if "/statistics." in key)
    nights.store.put(key, b"damaged")
    with pytest.raises(DamagedObjectError, match="statistics"):
        next_night()


def test_store_and_serving_log_may_lie_in_s3(tmp_path, s3):
    nights = Nights(tmp_path, f"{s3}/store")
    nights.store.put("log.parquet", _parquet(table([20, 20, 20]).drop("delay")))
    log = {"path": f"{s3}/store/log.parquet", "event_time": "departure", "null_values": []}
    first = nights.validate(nights.ingest(table([100, 100, 100])), serving_log=log)
    assert "60 requests of 3 days" in nights.report(first)
    start = FIRST + timedelta(days=1)
    with pytest.raises(BadDataError, match="distribution is not that of the previous snapshot"):
        nights.validate(nights.ingest(table([100, 100, 100], start).with_columns(pl.col("distance") * 10), start))


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


def test_stale_data_is_found(nights):
    dataset = nights.ingest(table([100, 100, 100]))
    assert nights.validate(dataset, max_age_hours=23.0)
    with pytest.raises(BadDataError, match="the newest row is of 2013-02-09 01:39 UTC, 22.4 hours before"):
        nights.validate(replace(dataset, place="other", version="9" * 64), max_age_hours=6.0)


def test_what_the_result_depends_on_is_typed_right(nights):
    """A mistyped column would be a check that is never made."""
    dataset = nights.ingest(table([100, 100, 100]))
    with pytest.raises(BadConfigError, match=r"validate\.slices names the column 'carier'.*did you mean 'carrier'"):
        nights.validate(dataset, slices=["carier"])


class TestServingLog:
    """What the model was asked, held against what it is trained on."""

    LOG = table([20, 20, 20]).drop("delay")

    @pytest.fixture
    def held_against(self, nights: Nights) -> Callable[..., Any]:
        def validate(log: pl.DataFrame, name: str = "log.parquet") -> Any:
            path = nights.home / name
            if name.endswith(".parquet"):
                log.write_parquet(path)
            elif name.endswith(".csv"):
                log.write_csv(path, datetime_format="%Y-%m-%dT%H:%M:%S%z", null_value="NA")
            else:
                log.with_columns(pl.col("departure").dt.strftime("%Y-%m-%dT%H:%M:%S%z")).write_ndjson(path)
            source = {"path": name, "event_time": "departure", "null_values": ["NA"]}
            return nights.validate(nights.ingest(table([100, 100, 100])), serving_log=source)

        return validate

    @pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.jsonl"])
    def test_a_log_like_the_training_data_passes_without_its_labels(self, nights, held_against, name):
        """CSV is text and JSON knows but one kind of number: neither is a change of type."""
        log = self.LOG.with_columns(pl.col("distance").cast(pl.Float64)) if name == "log.jsonl" else self.LOG
        report = nights.report(held_against(log, name))
        assert "60 requests of 3 days" in report

    def test_skew_is_found(self, held_against):
        with pytest.raises(BadDataError) as caught:
            held_against(self.LOG.with_columns(pl.col("distance") * 2))
        assert "- column distance: in the serving log, its distribution is not that of the training snapshot" in str(
            caught.value
        )

    @pytest.mark.parametrize(
        ("log", "line"),
        [
            pytest.param(LOG.drop("carrier"), "- column carrier: in the serving log, is not in the data", id="missing"),
            pytest.param(
                LOG.with_columns(carrier=pl.lit("ZZ")),
                "- column carrier: in the serving log, unknown values in 60 of 60 rows",
                id="unknown value",
            ),
            pytest.param(
                LOG.with_columns(pl.col("distance").cast(pl.Float64) + 0.5),
                "- column distance: in the serving log, ",
                id="type",
            ),
        ],
    )
    def test_the_log_is_held_against_the_schema(self, held_against, log, line):
        with pytest.raises(BadDataError) as caught:
            held_against(log)
        assert line in str(caught.value)

    def test_without_requests_of_these_days_it_is_said_that_nothing_was_checked(self, nights, held_against):
        old = self.LOG.with_columns(pl.col("departure") - timedelta(days=9))
        assert "log.parquet has no request from 2013-02-07 00:00" in nights.report(held_against(old))

    def test_further_columns_of_the_log_are_named(self, nights, held_against):
        report = nights.report(held_against(self.LOG.with_columns(score=0.5)))
        assert "does not have for serving: score." in report

    def test_a_log_that_cannot_be_read_says_why(self, nights):
        dataset = nights.ingest(table([100, 100, 100]))
        source = {"path": "missing.parquet", "event_time": "departure", "null_values": []}
        with pytest.raises(BadDataError, match=r"cannot read missing\.parquet"):
            nights.validate(dataset, serving_log=source)
        (nights.home / "log.csv").write_text("departure\nyesterday\n")
        with pytest.raises(BadDataError, match="holds yesterday, which is no instant"):
            nights.validate(dataset, serving_log={**source, "path": "log.csv"})
        with pytest.raises(BadDataError, match="no column 'at'"):
            nights.validate(dataset, serving_log={**source, "path": "log.csv", "event_time": "at"})
        with pytest.raises(BadConfigError, match=r"known are \.parquet"):
            nights.validate(dataset, serving_log={**source, "path": "log.xlsx"})

    def test_a_malformed_instant_is_found_behind_a_missing_one(self, nights):
        """Broken: one request without an instant, and the malformed ones after it are left out without a word."""
        (nights.home / "log.csv").write_text("departure,carrier\n,AA\n2013-02-07T10:00:00Z,AA\nyesterday,AA\n")
        log = {"path": "log.csv", "event_time": "departure", "null_values": []}
        with pytest.raises(BadDataError, match="holds yesterday, which is no instant"):
            nights.validate(nights.ingest(table([100, 100, 100])), serving_log=log)
