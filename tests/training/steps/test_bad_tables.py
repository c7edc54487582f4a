"""
Ways in which a table can be wrong, each with what the user is told: ``golden/bad_tables.txt``.

Each must be told by the step that first sees it, name the place, the value and what to do, and store nothing. What the
schema finds, such as a type that has changed, is told by the validation (``golden/bad_nights.txt``).
"""

from __future__ import annotations

import gzip
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mlops.contract.refs import ValidationRef
from mlops.contract.step import RunIdentity, StepError, StepInput
from mlops.process import ProcessSettings
from mlops.steps import StepContext, features, ingest
from mlops.store import Store

GOLDEN = Path(__file__).parents[1] / "golden/bad_tables.txt"
END = datetime(2024, 1, 11, tzinfo=UTC)
NUM_DAYS, PER_DAY = 10, 12

RECIPE = """
from mlops import FeatureSet, Standardise, Vocabulary

FEATURES = FeatureSet(
    label="bought", order_by=("at", "visit"), transforms=[Standardise("spent"), Vocabulary("shop")]
)
"""
Change = Callable[[pl.DataFrame], pl.DataFrame]
Write = Callable[[Path], object]


def visits() -> pl.DataFrame:
    """Ten days of visits to three shops."""
    numbers = range(NUM_DAYS * PER_DAY)
    start = datetime(2024, 1, 1, 9, tzinfo=UTC)
    return pl.DataFrame(
        {
            "at": [(start + timedelta(days=n // PER_DAY, minutes=n % PER_DAY)).isoformat() for n in numbers],
            "visit": list(numbers),
            "shop": [("north", "south", "west")[n % 3] for n in numbers],
            "spent": [n % 31 / 2 for n in numbers],
            "bought": [n % 2 for n in numbers],
        }
    )


@dataclass(frozen=True, slots=True)
class Case:
    change: Change = lambda rows: rows
    """Of the table that is written."""
    write: Write | None = None
    """Write something else."""
    name: str = "visits.csv"
    source: dict[str, Any] = field(default_factory=dict)
    ingest: dict[str, Any] = field(default_factory=dict)


def text(change: Callable[[str], str], encoding: str = "utf-8") -> Write:
    return lambda path: path.write_bytes(change(visits().write_csv()).encode(encoding))


def in_two_files(change: Change) -> Case:
    """The second of which is another."""

    def write(path: Path) -> None:
        visits().head(60).write_csv(path.with_name("visits-1.csv"))
        change(visits().tail(60)).write_csv(path.with_name("visits-2.csv"))

    return Case(name="visits-*.csv", write=write)


def at(value: pl.Expr) -> Change:
    return lambda rows: rows.with_columns(at=value)


INSTANT = pl.col("at").str.to_datetime(time_zone="UTC")
NAIVE = INSTANT.dt.strftime("%Y-%m-%d %H:%M:%S")
CASES = {
    "no file": Case(name="visit.csv", write=lambda path: None),
    "an empty file": Case(write=lambda path: path.touch()),
    "a header alone": Case(write=text(lambda lines: lines.partition("\n")[0] + "\n")),
    "no header": Case(write=text(lambda lines: lines.partition("\n")[2])),
    "semicolons": Case(write=text(lambda lines: lines.replace(",", ";"))),
    "semicolons that are meant": Case(write=text(lambda lines: lines.replace(",", ";")), source={"separator": ";"}),
    "Latin-1": Case(write=text(lambda lines: lines.replace("north", "Köln"), "latin-1")),
    "UTF-16": Case(write=text(lambda lines: lines, "utf-16")),
    "a BOM": Case(write=text(lambda lines: lines, "utf-8-sig")),
    "cut off": Case(write=text(lambda lines: lines[: len(lines) - 9])),
    "a row with a field too many": Case(write=text(lambda lines: lines.replace("north", "north,n", 1))),
    "a quote that is not closed": Case(write=text(lambda lines: lines.replace("north", '"north', 1))),
    "two columns of one name": Case(write=text(lambda lines: lines.replace("spent", "shop", 1))),
    "named .gz and is none": Case(name="visits.csv.gz", write=text(lambda lines: lines)),
    "a damaged .gz": Case(
        name="visits.csv.gz",
        write=lambda path: path.write_bytes(gzip.compress(visits().write_csv().encode(), mtime=0)[:-30]),
    ),
    "a Parquet file that is none": Case(name="visits.parquet", write=text(lambda lines: lines)),
    "an Excel file": Case(name="visits.xlsx", write=text(lambda lines: lines)),
    "a line that is no JSON": Case(
        name="visits.jsonl", write=lambda path: path.write_text(visits().write_ndjson() + '{"at": "2024-01-0')
    ),
    "times without a zone": Case(at(NAIVE)),
    "days first": Case(at(INSTANT.dt.strftime("%d/%m/%Y"))),
    "seconds since 1970": Case(at(INSTANT.dt.epoch("s"))),
    "milliseconds read as seconds": Case(at(INSTANT.dt.epoch("ms")), source={"epoch": "s"}),
    "one time that is none": Case(at(pl.when(pl.col("visit") == 7).then(pl.lit("soon")).otherwise("at"))),
    "an hour that the clocks skip": Case(
        at(pl.when(pl.col("visit") == 7).then(pl.lit("2024-03-31 02:30:00")).otherwise(NAIVE)),
        source={"time_zone": "Europe/Berlin"},
    ),
    "no time at all": Case(at(pl.lit(None, pl.String))),
    "all of it later": Case(at((INSTANT + timedelta(days=400)).dt.strftime("%Y-%m-%dT%H:%M:%SZ"))),
    "all of it long ago": Case(at((INSTANT - timedelta(days=400)).dt.strftime("%Y-%m-%dT%H:%M:%SZ"))),
    "the newest day is late": Case(lambda rows: rows.filter(~pl.col("at").str.starts_with("2024-01-10"))),
    "the newest business day is late": Case(
        lambda rows: rows.filter(~pl.col("at").str.starts_with("2024-01-10")), ingest={"calendar": "business_days"}
    ),
    "too few days": Case(lambda rows: rows.filter(pl.col("at") > "2024-01-06")),
    "no such event time": Case(ingest={"event_time": "when"}),
    "a name typed wrong": Case(lambda rows: rows.rename({"spent": "spend"})),
    "a column renamed between files": in_two_files(lambda rows: rows.rename({"shop": "store"})),
    "a column more in one file": in_two_files(lambda rows: rows.with_columns(paid=pl.lit("cash"))),
    "a column of another type in one file": in_two_files(lambda rows: rows.with_columns(spent=pl.lit("a lot"))),
    "decimal commas": Case(lambda rows: rows.with_columns(spent=pl.format("{},5", pl.col("spent").cast(pl.Int64)))),
    "one text among the numbers": Case(
        lambda rows: rows.with_columns(
            spent=pl.when(pl.col("visit") == 7).then(pl.lit("?")).otherwise(pl.col("spent").cast(pl.String))
        )
    ),
    "numbers that are missing": Case(
        lambda rows: rows.with_columns(spent=pl.when(pl.col("visit") % 7 > 0).then("spent"))
    ),
    "an infinite number": Case(
        lambda rows: rows.with_columns(spent=pl.when(pl.col("visit") == 7).then(float("inf")).otherwise("spent"))
    ),
    "a column of nulls": Case(lambda rows: rows.with_columns(spent=pl.lit(None, pl.String))),
    "one value in a column": Case(lambda rows: rows.with_columns(spent=pl.lit(3.5))),
    "a label that is text": Case(
        lambda rows: rows.with_columns(
            bought=pl.when(pl.col("bought") == 1).then(pl.lit("yes")).otherwise(pl.lit("no"))
        )
    ),
    "a label that is missing": Case(
        lambda rows: rows.with_columns(bought=pl.when(pl.col("visit") != 7).then("bought"))
    ),
    "rows twice": Case(lambda rows: pl.concat([rows, rows.head(5)])),
    "a key that is missing": Case(
        lambda rows: rows.with_columns(shop=pl.when(pl.col("visit") != 7).then("shop")),
        ingest={"split": {"key": "shop", "validation": 0.3, "test": 0.3}},
    ),
    "a key with a fraction": Case(ingest={"split": {"key": "spent", "validation": 0.3, "test": 0.3}}),
    "a split that nobody named": Case(
        lambda rows: rows.with_columns(fold=pl.lit("holdout")), ingest={"split": {"column": "fold"}}
    ),
    "too few keys for a split": Case(
        lambda rows: rows.with_columns(shop=pl.lit("north")),
        ingest={"split": {"key": "shop", "validation": 0.3, "test": 0.3}},
    ),
    "a column of the name of its as_of": Case(
        source={"event_time": None, "as_of": "at"}, ingest={"window": 1, "split": {"rows": "hash"}}
    ),
    "two thousand columns": Case(lambda rows: rows.with_columns(pl.lit(n % 7).alias(f"c{n}") for n in range(2_000))),
    "a value for each row": Case(lambda rows: rows.with_columns(shop=pl.format("shop {}", "visit"))),
    "a very long text": Case(
        lambda rows: rows.with_columns(
            shop=pl.when(pl.col("visit") == 7).then(pl.lit("x" * 20_000_000)).otherwise("shop")
        )
    ),
    "a column of lists": Case(
        name="visits.parquet",
        write=lambda path: visits().with_columns(spent=pl.concat_list("spent")).write_parquet(path),
    ),
}


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[[Case], str]]:
    """What a run says of a table, up to its features: warnings in its log, and its error."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    home = tmp_path / "project"
    recipe = home / "include/bad_tables"
    recipe.mkdir(parents=True)
    (recipe / "features.py").write_text(RECIPE)
    (home / "data").mkdir()
    store = Store(f"file://{tmp_path}/store")

    def context(step: str, config: dict[str, Any], ref: Any = None) -> StepContext:
        run = RunIdentity(
            pipeline="visits", run_key="k", interval_start=(END - timedelta(days=1)).isoformat(),
            interval_end=END.isoformat(), timezone="UTC", dag_id="visits", task_id=step, run_id="r", try_number=1,
        )  # fmt: skip
        deployment = ProcessSettings(
            home=home, store=store.uri, tracking_uri="", result_path=tmp_path / "result.json", rank=0
        )
        scratch = tmp_path / f"scratch-{step}"
        scratch.mkdir()
        document = StepInput(step=step, run=run, config=config, ref=ref)
        return StepContext(input=document, deployment=deployment, store=store, scratch=scratch)

    def run(case: Case) -> str:
        path = home / "data" / case.name
        if case.write is not None:
            case.write(path)
        else:
            case.change(visits()).write_csv(path)
        source = {"path": f"data/{case.name}", "event_time": "at", **case.source}
        settings = {
            "sources": {"visits": source}, "event_time": "at", "window": 10,
            "split": {"validation": 3, "test": 3}, **case.ingest,
        }  # fmt: skip
        try:
            dataset = ingest.run(context("ingest", settings))
        except StepError as error:
            assert list(store.list("pipelines")) == []
            return f"ingest: {type(error).__name__}: {error}"
        validation = ValidationRef(place="validate", schema_sha256="0" * 64, num_checks=1, parent=dataset)
        try:
            made = features.run(
                context("features", {"feature_set": "include.bad_tables.features:FEATURES"}, validation)
            )
        except StepError as error:
            return f"features: {type(error).__name__}: {error}"
        return f"{made.num_features} features of {sum(made.num_samples.values())} rows"

    def said(case: Case) -> str:
        outcome = run(case)
        warnings = [f"log: {record.getMessage()}" for record in caplog.records if record.levelno == logging.WARNING]
        return "\n".join([*warnings, outcome]).replace(str(home), "/project")

    yield said
    for name in [name for name in sys.modules if name.split(".")[0] == "include"]:
        del sys.modules[name]


def golden() -> dict[str, str]:
    sections = GOLDEN.read_text().split("## ")[1:]
    return {title: message.strip() for title, _, message in (section.partition("\n") for section in sections)}


@pytest.mark.parametrize("name", CASES)
def test_the_user_is_told(told: Callable[[Case], str], name: str) -> None:
    assert told(CASES[name]) == golden()[name], f"if the change is meant, write it to {GOLDEN}"


def test_the_golden_file_has_each_case() -> None:
    assert list(golden()) == list(CASES)
