"""What is proposed for tables of many kinds; that it trains is shown by ``tests/mlops_provider/experiments``."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import yaml

from mlops.contract.section import check_section
from mlops.contract.sections.ingest import Ingest
from mlops.contract.step import BadConfigError, BadDataError
from mlops.first_recipe.files import features_text, pipeline_text
from mlops.first_recipe.proposal import Proposal, propose
from mlops.first_recipe.table import MOST_ROWS, Table, read_table

NOW = datetime(2024, 6, 5, 12, tzinfo=UTC)  # a Wednesday
Propose = Callable[..., Proposal]


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Table]:
    def read_rows(rows: pl.DataFrame | str, name: str = "table.parquet") -> Table:
        path = tmp_path / name
        if isinstance(rows, pl.DataFrame):
            rows.write_parquet(path)
        elif name.endswith(".gz"):
            path.write_bytes(gzip.compress(rows.encode()))
        else:
            path.write_text(rows)
        return read_table(path, tmp_path, tmp_path / "scratch", NOW)

    return read_rows


def proposal(table: Table, **asked: Any) -> Proposal:
    return propose(
        table, **{"label": None, "objective": None, "event_time": None, "zone": "UTC", "today": NOW.date(), **asked}
    )


def pipeline(table: Table, found: Proposal) -> dict[str, Any]:
    """The pipeline's file as it is read again; its section ``ingest`` is sound."""
    document: dict[str, Any] = yaml.safe_load(pipeline_text("table", table, found, NOW.date()))
    for key in ("event_time",):  # PyYAML's dates and booleans are not ours
        assert isinstance(document["ingest"][key], str)
    check_section(Ingest, document["ingest"], "ingest")
    return document


def days(number: int, step: int = 1, until: date = date(2024, 3, 30)) -> list[date]:
    return [until - timedelta(days=step * each) for each in reversed(range(number))]


def dated(dates: list[date], **columns: list[Any]) -> pl.DataFrame:
    """Five rows of each day."""
    at = [day for day in dates for _ in range(5)]
    size = len(at)
    return pl.DataFrame(
        {"at": at, "x": [float(n % 7) for n in range(size)], "y": [n * 1.5 for n in range(size)], **columns}
    )


@pytest.mark.parametrize(
    ("values", "objective", "classes"),
    [
        ([0, 1], "binary", []),
        ([0.0, 1.0], "binary", []),
        ([True, False], "binary", []),
        (["no", "yes"], "binary", ["no", "yes"]),
        ([-1, 1], "binary", [-1, 1]),
        ([1.0, 2.0, 3.0], "multiclass", [1.0, 2.0, 3.0]),
        ([3, 1, 2], "multiclass", [1, 2, 3]),
        (["None", "Apnea", "Insomnia"], "multiclass", ["Apnea", "Insomnia", "None"]),
        ([0.5, 1.5], "regression", []),
        ([Decimal("0.5"), Decimal("1.5"), Decimal("2.5")], "regression", []),
        ([number * 10**18 for number in range(1, 19)], "multiclass", [number * 10**18 for number in range(1, 19)]),
        (list(range(50)), "regression", []),
        ([1e300, 2.0, -5.0, 0.25], "regression", []),
    ],
)
def test_what_is_learnt_follows_from_the_label(
    read: Callable[..., Table], values: list[Any], objective: str, classes: list[Any]
) -> None:
    labels = values * (60 // len(values) + 1)
    table = read(pl.DataFrame({"x": [n % 9 for n in range(len(labels))], "label": labels}))
    found = proposal(table)
    assert (found.label, found.objective, list(found.classes)) == ("label", objective, classes)
    settings = pipeline(table, found)["train"].get("objective_settings")
    assert settings == ({"classes": [str(each) for each in classes]} if objective == "multiclass" else None)
    compile(features_text("table", found), "features.py", "exec")


def test_a_missing_label_and_missing_values_are_provided_for(read: Callable[..., Table]) -> None:
    x = [1.0, float("nan"), None, 4.0] * 10
    table = read(pl.DataFrame({"x": x, "kind": ["a", None, "b", "b"] * 10, "target": [0, 1, None, 1] * 10}))
    found = proposal(table)
    assert found.where == "~nw.col('target').is_null()"
    assert found.transforms == {
        "x": "Passthrough('x', missing=\"indicator\")",
        "kind": 'Vocabulary(\'kind\', encoding="id", missing="indicator")',
    }
    assert "where=~nw.col('target').is_null()" in features_text("table", found)


def test_columns_that_say_nothing_or_cannot_be_used_are_left_out(read: Callable[..., Table]) -> None:
    size = 60
    table = read(
        pl.DataFrame(
            {
                "row": list(range(size)), "user_id": [7 * n % 61 for n in range(size)], "same": ["x"] * size,
                "none": pl.Series([None] * size, dtype=pl.String), "text": [f"note {n}" for n in range(size)],
                "sent": [datetime(2024, 1, 1, tzinfo=UTC)] * size, "long": [timedelta(days=1)] * size,
                "lists": [[1.0] * (n % 3) for n in range(size)], "record": [{"a": n} for n in range(size)],
                "vector": [[float(n), 1.0] for n in range(size)], "it's": [n % 3 for n in range(size)],
                "answer": ["yes", "no"] * 30,
            }
        )
    )  # fmt: skip
    found = proposal(table)
    assert list(found.transforms) == ["vector", "it's"]
    assert found.transforms["vector"] == "Vector('vector', size=2)"
    assert set(found.left_out) == {"row", "user_id", "same", "none", "text", "sent", "long", "lists", "record"}
    namespace: dict[str, Any] = {}
    exec(features_text("table", found), namespace)
    assert namespace["FEATURES"].label == "answer"


def test_a_column_that_tells_the_label_is_pointed_out(read: Callable[..., Table]) -> None:
    table = read(pl.DataFrame({"code": [1, 2] * 20, "x": [n % 7 for n in range(40)], "answer": ["no", "yes"] * 20}))
    assert proposal(table).notes == ["code alone tells the label: leave it out if it is known only afterwards"]


def test_local_dates_stay_the_days_that_they_are(read: Callable[..., Table]) -> None:
    """Broken: the last day would be lost, and the window would begin with a day that has no rows."""
    table = read(dated(days(30)))
    found = proposal(table, zone="America/New_York")
    document = pipeline(table, found)
    assert (document["timezone"], document["start_date"], document["end_date"]) == (
        "America/New_York", date(2024, 3, 1), date(2024, 3, 31),
    )  # fmt: skip
    assert document["ingest"]["window"] == 30
    assert document["ingest"]["sources"]["table"]["time_zone"] == "America/New_York"
    assert "calendar" not in document["ingest"]


def test_a_period_that_is_not_over_does_not_count(read: Callable[..., Table]) -> None:
    """Broken: the first run would look for rows in a day before the first."""
    table = read(dated(days(20, until=NOW.date())))
    document = pipeline(table, proposal(table))
    assert document["ingest"]["window"] == 19
    assert "end_date" not in document
    only = proposal(read(dated([NOW.date()])), event_time="at")
    assert only.time is None
    assert "they are taken as undated" in only.notes[0]


def test_sparse_days_hold_out_few_of_them(read: Callable[..., Table]) -> None:
    table = read(dated(days(12, step=5)))
    document = pipeline(table, proposal(table))
    assert document["ingest"]["calendar"] == {"gaps": 4}
    assert document["ingest"]["split"] == {"validation": 2, "test": 2}
    few = read(dated(days(5)))
    assert pipeline(few, proposal(few))["ingest"]["split"] == {"rows": "hash", "validation": 0.2, "test": 0.2}


@pytest.mark.parametrize(("step", "grain", "end"), [(7, "week", date(2024, 4, 1)), (31, "month", date(2024, 4, 1))])
def test_weeks_and_months_are_seen(read: Callable[..., Table], step: int, grain: str, end: date) -> None:
    table = read(dated(days(14, step=step)))
    document = pipeline(table, proposal(table))
    assert (document["ingest"]["grain"], document["end_date"]) == (grain, end)


def test_growth_over_the_year_is_allowed(read: Callable[..., Table]) -> None:
    """Broken: the first run would fail over a volume that is usual."""
    months = [date(2022 + n // 12, n % 12 + 1, 3) for n in range(28)]
    at = [month for n, month in enumerate(months) for _ in range(round(40 * 1.03**n))]
    table = read(pl.DataFrame({"at": at, "x": [n % 5 for n in range(len(at))], "y": [n * 0.5 for n in range(len(at))]}))
    tolerance = pipeline(table, proposal(table))["validate"]["volume"]["tolerance"]
    assert tolerance > 1.03**12 - 1


def test_how_a_file_is_written_is_found_out(read: Callable[..., Table]) -> None:
    lines = [f"{n};{n},5;{'?' if n % 9 == 0 else n};{n % 2}" for n in range(1, 60)]
    text = "\n".join(["a;b;c;target", *lines])
    for name in ("table.csv", "table.csv.gz"):
        table = read(text, name)
        assert table.source == {"path": name, "separator": ";", "decimal": ",", "null_values": ["NA", "?"]}
        assert [str(dtype) for dtype in table.rows.dtypes] == ["Int64", "Float64", "Int64", "Int64"]
        pipeline(table, proposal(table))


def test_other_kinds_of_files_are_read(read: Callable[..., Table], tmp_path: Path) -> None:
    table = read("".join(f'{{"x": {n % 7}, "kind": "{"ab"[n % 2]}", "y": {n / 2}}}\n' for n in range(40)), "t.jsonl")
    assert proposal(table).objective == "regression"
    assert {name: str(dtype) for name, dtype in table.rows.schema.items()} == {
        "x": "Int64", "kind": "String", "y": "Float64",
    }  # fmt: skip
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("t.csv", "x;y\n" + "".join(f"{n % 7};{n},5\n" for n in range(40)))
    table = read_table(tmp_path / "t.csv.zip", tmp_path, tmp_path / "scratch", NOW)
    assert table.source == {"path": "t.csv.zip", "separator": ";", "decimal": ","}


def test_odd_names_make_sound_files(read: Callable[..., Table]) -> None:
    table = read(
        '"Größe [kg]","on","a: b # c","it\'s x","read_at"\n'
        + "".join(f"{n % 7},{n % 3},{n % 5},{n % 2},1\n" for n in range(50)),
        "t.csv",
    )
    found = proposal(table, label="it's x")
    document = pipeline(table, found)
    assert document["ingest"]["event_time"] == "read_at_"
    assert document["description"] == "Learn it's x of table"
    exec(features_text("table", found), {})


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"label": "z"}, BadConfigError, "--label z: the table has no such column; it has at, x, y"),
        ({"label": "at"}, BadConfigError, "--label at: the column is Date; a label is a number, a class or a text"),
        ({"event_time": "x"}, BadConfigError, "--event-time x: its values are no dates or times of ISO 8601"),
        ({"objective": "multiclass"}, BadConfigError, "--objective multiclass: the label 'y' has fractions"),
        ({"label": "x", "objective": "binary"}, BadConfigError, "the label 'x' has 7 values, not two"),
    ],
)
def test_what_cannot_be_learnt_is_refused(
    read: Callable[..., Table], asked: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        proposal(read(dated(days(30))), **asked)


def test_tables_of_nothing_are_refused(read: Callable[..., Table], tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match="there is nothing to learn 'y' from"):
        proposal(read(pl.DataFrame({"same": [1] * 9, "y": [n / 3 for n in range(9)]})))
    with pytest.raises(BadDataError, match=r"the label 'text' has 200 different values, .*: more than the 100 classes"):
        proposal(read(pl.DataFrame({"x": [n % 4 for n in range(200)], "text": [f"t{n}" for n in range(200)]})))
    with pytest.raises(BadDataError):
        read("a,b\n", "t.csv")
    with pytest.raises(BadConfigError, match="there is no such file"):
        read_table(tmp_path / "none.csv", tmp_path, tmp_path, NOW)


def test_rows_behind_the_first_ones_decide_too(read: Callable[..., Table]) -> None:
    """Broken: a recipe of a large table would fail at the first row that is not like those that were looked at."""
    x = [float(number % 7) for number in range(MOST_ROWS)]
    table = read(
        pl.DataFrame(
            {
                "x": [*x, None, 1.0, 2.0], "z": [*x, float("nan"), 1.0, 2.0], "whole": [*x, 1.0, 2.0, 3.0],
                "label": [*(number % 2 for number in range(MOST_ROWS)), 2, None, 1],
            }
        )
    )  # fmt: skip
    found = proposal(table)
    assert (found.objective, list(found.classes)) == ("multiclass", [0, 1, 2])
    assert found.where == "~nw.col('label').is_null()"
    assert found.transforms == {
        "x": "Passthrough('x', missing=\"indicator\")", "z": "Passthrough('z', missing=\"indicator\")",
        "whole": "Passthrough('whole')",
    }  # fmt: skip


def test_features_of_two_columns_have_different_names(read: Callable[..., Table]) -> None:
    """Broken: the first run would fail for a name that the recipe, and not the person, has chosen."""
    size, columns = 60, dict[str, list[Any]]()
    columns["age"] = [None if n % 9 == 0 else float(n % 50) for n in range(size)]
    columns["age_missing"] = [n % 2 for n in range(size)]
    columns["kind"] = ["a", "b", "c"] * 20
    columns["kind_id"] = [n % 3 for n in range(size)]
    columns["v"] = [[float(n % 5), 1.0] for n in range(size)]
    columns["v_0"] = [n % 5 for n in range(size)]
    found = proposal(read(pl.DataFrame({**columns, "y": [n * 0.5 for n in range(size)]})))
    assert list(found.transforms) == ["age", "kind", "v"]
    assert found.left_out == {
        "age_missing": "the column 'age' has a feature 'age_missing' already: rename one of the two",
        "kind_id": "the column 'kind' has a feature 'kind_id' already: rename one of the two",
        "v_0": "the column 'v' has a feature 'v_0' already: rename one of the two",
    }


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("id", True),
        ("ID", True),
        ("user_id", True),
        ("userId", True),
        ("CUSTOMERID", True),
        ("Order ID", True),
        *((name, False) for name in ("paid", "humid", "Paid", "grid")),
    ],
)
def test_numbers_that_differ_in_each_row_are_ids_where_they_are_called_so(
    read: Callable[..., Table], name: str, *, is_id: bool
) -> None:
    """Broken: what was paid would not be learnt from, or the number of the row would be."""
    rows = {name: [7 * n % 61 for n in range(60)], "x": [1, 2] * 30, "y": [0.5, 1.5] * 30}
    found = proposal(read(pl.DataFrame(rows)))
    assert (name in found.left_out) == is_id


def test_packed_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Broken: a download that was cut off is answered by a traceback."""
    rows = "".join(f"{n % 7};{n}\n" for n in range(40))
    broken = {
        "plain.csv.gz": rows.encode(), "cut.csv.gz": gzip.compress(rows.encode())[:30], "plain.csv.zst": rows.encode(),
        "plain.csv.zip": rows.encode(), "empty.csv.zip": b"",
    }  # fmt: skip
    for name, data in broken.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(BadDataError, match=rf"{name}: cannot be read as \.(gz|zip|zst): .*pack it again"):
            read_table(tmp_path / name, tmp_path, tmp_path / "scratch", NOW)
    with zipfile.ZipFile(tmp_path / "none.csv.zip", "w"):
        pass
    with pytest.raises(BadDataError, match="none.csv.zip holds 0 files"):
        read_table(tmp_path / "none.csv.zip", tmp_path, tmp_path / "scratch", NOW)
    with pytest.raises(BadDataError, match="cannot be read: File name too long"):
        read_table(tmp_path / f"{'x' * 300}.csv", tmp_path, tmp_path / "scratch", NOW)


def test_the_separator_of_a_packed_file_is_found_out(tmp_path: Path) -> None:
    """Broken: the table would be one column, whose name has semicolons."""
    rows = "x;y\n" + "".join(f"{n % 7};{n}\n" for n in range(40))
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.mkdir("folder")
        archive.writestr("folder/t.csv", rows)
    with pa.output_stream(str(tmp_path / "t.csv.zst"), compression="zstd") as packed:
        packed.write(rows.encode())
    for name in ("t.csv.zip", "t.csv.zst"):
        table = read_table(tmp_path / name, tmp_path, tmp_path / f"scratch of {name}", NOW)
        assert (table.source, table.rows.columns) == ({"path": name, "separator": ";"}, ["x", "y"])
