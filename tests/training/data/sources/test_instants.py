"""Instants as other people's tables have them: dates, local times, numbers since 1970; and rows that have none."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from pydantic import ValidationError

from mlops.contract.grain import Periods
from mlops.contract.step import BadDataError
from mlops.data.sources import csv_lines

from .conftest import Read, rows

NOON = datetime(2024, 1, 2, 12, tzinfo=UTC)


def written(folder: Path, kind: str, values: list[Any]) -> str:
    """Write a table with the column ``at``; return its name."""
    if kind == "csv":
        (folder / "t.csv").write_text("at,v\n" + "".join(f"{value},1\n" for value in values))
    elif kind == "jsonl":
        (folder / "t.jsonl").write_text("".join(json.dumps({"at": value, "v": 1}) + "\n" for value in values))
    else:
        pl.DataFrame({"at": values, "v": [1] * len(values)}).write_parquet(folder / "t.parquet")
    return f"t.{kind}"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("unit", "value"),
    [("s", 1704196800), ("ms", 1704196800000), ("us", 1704196800000000), ("ns", 1704196800000000000)],
)
def test_numbers_since_1970(read: Read, tmp_path: Path, kind: str, unit: str, value: int) -> None:
    found = rows(read(path=written(tmp_path, kind, [value]), event_time="at", epoch=unit))
    assert found["at"].to_list() == [NOON]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_fractions_of_seconds(read: Read, tmp_path: Path, kind: str) -> None:
    found = rows(read(path=written(tmp_path, kind, [1704196800.25]), event_time="at", epoch="s"))
    assert found["at"].to_list() == [NOON.replace(microsecond=250_000)]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("unit", "value"),
    [("s", 1704196800000), ("s", 9 * 10**18), ("ms", 2**62), ("us", 2**62), ("s", -(2**62)), ("s", 1e300)],
)
def test_numbers_that_are_no_instant_are_refused(
    read: Read, tmp_path: Path, kind: str, unit: str, value: int | float
) -> None:
    """Broken: modulo 2^64 a row of the far future is one of the past, and milliseconds pass for seconds."""
    with pytest.raises(BadDataError, match=rf"which is not an instant in {unit} since 1970; correct it, or ingest"):
        read(path=written(tmp_path, kind, [value]), event_time="at", epoch=unit)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Africa/Casablanca"])
def test_local_times_are_pythons(read: Read, tmp_path: Path, zone: str) -> None:
    """A year of half hours, of which some are there twice and some never."""
    there = ZoneInfo(zone)
    local = [datetime(2018, 1, 1) + timedelta(minutes=30 * step) for step in range(2 * 24 * 365)]
    expected = [each.replace(tzinfo=there).astimezone(UTC) for each in local]
    known = [u.astimezone(there).replace(tzinfo=None) == each for u, each in zip(expected, local, strict=True)]
    texts = [str(each) for each, is_there in zip(local, known, strict=True) if is_there]
    found = rows(read(path=written(tmp_path, "csv", texts), event_time="at", time_zone=zone))
    assert found["at"].to_list() == [each for each, is_there in zip(expected, known, strict=True) if is_there]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(
    "text", ["2024-01-02T13:00:00", "2024-01-02 13:00:00.000", "2024-01-02 13:00", "2024-01-02T12:00Z"]
)
def test_local_times_in_a_stated_zone(read: Read, tmp_path: Path, kind: str, text: str) -> None:
    found = rows(read(path=written(tmp_path, kind, [text]), event_time="at", time_zone="Europe/Berlin"))
    assert found["at"].to_list() == [NOON]


@pytest.mark.parametrize("value", ["2024-01-02", date(2024, 1, 2), datetime(2024, 1, 2)])
def test_a_date_begins_at_midnight_there(read: Read, tmp_path: Path, value: Any) -> None:
    path = written(tmp_path, "csv" if isinstance(value, str) else "parquet", [value])
    found = rows(read(path=path, event_time="at", time_zone="America/New_York"))
    assert found["at"].to_list() == [datetime(2024, 1, 2, 5, tzinfo=UTC)]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("America/Sao_Paulo", date(2018, 11, 4)),
        ("Africa/Cairo", date(2023, 4, 28)),
        ("Atlantic/Azores", date(2024, 3, 31)),
        ("Asia/Beirut", date(2024, 3, 31)),
    ],
)
def test_a_date_whose_midnight_is_skipped_begins_with_its_first_instant(
    read: Read, tmp_path: Path, kind: str, zone: str, day: date
) -> None:
    """Broken: a table of dates stops every night, for years, as it has the day on which clocks went forward."""
    path = written(tmp_path, kind, [day])
    found = rows(read(path=path, event_time="at", time_zone=zone, as_of=datetime(2024, 5, 1, tzinfo=UTC)))
    periods = Periods("day", zone)
    assert found["at"].to_list() == [periods.start(day.toordinal())]
    clock = f"{day} 00:00" if kind == "csv" else datetime(day.year, day.month, day.day)
    with pytest.raises(BadDataError, match="which is not an instant"):
        read(path=written(tmp_path, kind, [clock]), event_time="at", time_zone=zone)


def test_a_date_that_was_skipped_as_a_whole_is_refused(read: Read, tmp_path: Path) -> None:
    """Broken: a day that was none in Samoa would be the next one."""
    with pytest.raises(BadDataError, match="holds '2011-12-30', which is not an instant"):
        read(path=written(tmp_path, "csv", ["2011-12-30"]), event_time="at", time_zone="Pacific/Apia")


def test_the_hour_that_is_there_twice_is_the_first_and_the_skipped_one_is_refused(read: Read, tmp_path: Path) -> None:
    when = {"event_time": "at", "time_zone": "Europe/Berlin"}
    found = rows(read(path=written(tmp_path, "csv", ["2023-10-29T02:30:00"]), **when))
    assert found["at"].to_list() == [datetime(2023, 10, 29, 0, 30, tzinfo=UTC)]
    with pytest.raises(BadDataError, match="holds '2023-03-26T02:30:00', which is not an instant"):
        read(path=written(tmp_path, "csv", ["2023-03-26T02:30:00"]), **when)


def test_a_row_of_the_future_is_one_in_its_own_zone(read: Read, tmp_path: Path) -> None:
    """Broken: what happens tomorrow in New York would be learnt today."""
    path = written(tmp_path, "csv", ["2024-01-02T18:59:00", "2024-01-02T19:01:00"])
    as_of = datetime(2024, 1, 3, tzinfo=UTC)
    assert rows(read(path=path, event_time="at", time_zone="America/New_York", as_of=as_of)).height == 1
    assert rows(read(path=path, event_time="at", time_zone="UTC", as_of=as_of)).height == 2


def test_columns_beside_the_instant_take_the_zone_too(read: Read, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at,paid\n2024-01-02,2024-01-02 08:00\n")
    found = rows(read(path="t.csv", event_time="at", time_zone="America/New_York", types={"paid": "datetime"}))
    assert found["paid"].to_list() == [datetime(2024, 1, 2, 13, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1704196800, r"'at' is Int64, not an instant; set ingest\.sources\.s\.epoch to s, ms, us or ns"),
        (date(2024, 1, 2), r"'at' is Date, not an instant; set ingest\.sources\.s\.time_zone, such as Europe/Berlin"),
        (datetime(2024, 1, 2), r"is Datetime.*not an instant; set ingest\.sources\.s\.time_zone"),
        (
            True,
            r"is Boolean, not an instant; set ingest\.sources\.s\.event_time to a column of dates, times, or numbers",
        ),
    ],
)
def test_what_is_missing_is_named(read: Read, tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(BadDataError, match=message):
        read(path=written(tmp_path, "parquet", [value]), event_time="at")


def test_an_unknown_zone_is_refused_when_the_pipeline_is_parsed(read: Read) -> None:
    with pytest.raises(ValidationError, match="an IANA time zone such as America/New_York"):
        read(path="t.csv", event_time="at", time_zone="CET/Berlin")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_without_an_instant_are_counted(read: Read, tmp_path: Path, kind: str) -> None:
    """Broken: a fault at the source would make the table smaller, and nobody would know."""
    values = ["2024-01-01T00:00:00Z", None, None, "2024-01-01T01:00:00Z"]
    path = written(tmp_path, kind, ["" if value is None and kind == "csv" else value for value in values])
    table = read(path=path, event_time="at")
    assert rows(table).height == 2
    assert table.provenance["undated"] == {"at": 2}


def test_a_csv_file_that_was_cut_is_refused(read: Read, tmp_path: Path) -> None:
    """Broken: half of a row would be one with nulls."""
    whole = 'at,v,w\n2024-01-01T00:00:00Z,1,"a, b"\n2024-01-01T00:00:00Z,2,3'
    (tmp_path / "t.csv").write_text(whole)
    assert rows(read(path="t.csv", event_time="at")).height == 2
    (tmp_path / "t.csv").write_text(whole[:-2])
    with pytest.raises(
        BadDataError, match=r"t\.csv: its last line '2024-01-01T00:00:00Z,2' has 2 of 3 fields and no end"
    ):
        read(path="t.csv", event_time="at")


@pytest.mark.parametrize(
    ("text", "line", "row", "fields"),
    [
        pytest.param("at,x,y\nZ,1,2\nZ,3\nZ,5,6\n", 3, "Z,3", 2, id="plain"),
        pytest.param("at,x,y\r\nZ,1,2\r\nZ\r\nZ,5,6\r\n", 3, "Z", 1, id="one field"),
        pytest.param('at,x,y\nZ,"a,\n""b"",\n",2\nZ,"1,2"\n', 5, 'Z,"1,2"', 2, id="after a text of several lines"),
        pytest.param('at,x,y\nZ,"a\n,b"\nZ,5" or 6",7\n', 2, 'Z,"a\n,b"', 2, id="a text of several lines"),
        pytest.param('at,x,y\nZ,5" a,b 6"\n\nZ,5" or 6"\n', 4, 'Z,5" or 6"', 2, id="quotes inside a text"),
    ],
)
@pytest.mark.parametrize("separator", [",", "|"])
def test_a_csv_row_with_too_few_fields_is_refused(
    read: Read, tmp_path: Path, text: str, line: int, row: str, fields: int, separator: str
) -> None:
    """Broken: its last fields are nulls that nobody wrote, and the model learns from them."""
    text, row = (each.replace(",", separator).replace("Z", "2024-01-01T00:00:00Z") for each in (text, row))
    (tmp_path / "t.csv").write_text(text, newline="")
    message = f"the row in line {line}, {row!r}, has {fields} of 3 fields; have it written with all of them"
    with pytest.raises(BadDataError, match=re.escape(message)):
        read(path="t.csv", event_time="at", separator=separator)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('a,b\n"x\n,""y"", z",1\n,\n"",""\n', id="quotes"),
        pytest.param('a,b\n5" x,y 6"\n"a ""b""",2\n', id="quotes inside a text"),
        pytest.param("a,b\n1,2\n\n3,4\n\n", id="empty lines"),
        pytest.param("\ufeffa,b\r\n1,2\r\n\r\n3,4", id="no end"),
        pytest.param("a\n1\n\n2\n", id="one column"),
        pytest.param("a;b\n1,5;2\n", id="another separator"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 3, 1000])
def test_whole_csv_rows_are_not_refused(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, chunk_bytes: int
) -> None:
    """Broken: a good file would stop the night."""
    monkeypatch.setattr(csv_lines, "_CHUNK_BYTES", chunk_bytes)
    (tmp_path / "t.csv").write_text(text, newline="")
    assert rows(read(path="t.csv", separator=";" if ";" in text else ",")).height


def test_whole_numbers_written_as_floats(read: Read, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n\n180.0\n-3.\n7\n")
    assert rows(read(path="t.csv", types={"n": "int64"}))["n"].to_list() == [180, -3, 7]
    (tmp_path / "t.csv").write_text("n\n180.5\n")
    with pytest.raises(BadDataError, match=r"has '180\.5' in column 'n', which is no int64"):
        read(path="t.csv", types={"n": "int64"})


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(
    "values", [["2024-01-02 13:00:00", "2024-01-02T12:00:00Z"], ["2024-01-02 13:00", "2024-01-02T12:00:00.0+0000"]]
)
def test_times_with_and_without_an_offset_may_come_in_any_order(
    read: Read, tmp_path: Path, kind: str, values: list[str]
) -> None:
    """Broken: whether a night is ingested or refused depends on which row comes first."""
    for ordered in (values, values[::-1]):
        found = rows(read(path=written(tmp_path, kind, ordered), event_time="at", time_zone="Europe/Berlin"))
        assert found["at"].to_list() == [NOON, NOON]
