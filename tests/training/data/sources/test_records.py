"""Late and corrected records: which of them count, as of an instant."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mlops.contract.step import BadDataError

from .conftest import Read, rows

ORDERS = """id,at,written,amount
1,2024-01-01T00:00:00Z,2024-01-01T01:00:00Z,10
1,2024-01-01T00:00:00Z,2024-01-02T01:00:00Z,11
1,2024-01-01T00:00:00Z,2024-01-03T01:00:00Z,12
2,2024-01-01T00:00:00Z,2024-01-03T00:00:00Z,20
3,2024-01-01T00:00:00Z,2024-01-01T00:00:00Z,30
3,2024-01-05T00:00:00Z,2024-01-02T00:00:00Z,31
"""


@pytest.mark.parametrize(
    ("day", "amounts"),
    [
        pytest.param(2, [10, 30], id="before the correction"),
        pytest.param(3, [11], id="corrected, the late one not yet there, one moved into the future"),
        pytest.param(4, [12, 20], id="corrected again, and the late one"),
        pytest.param(6, [12, 20, 31], id="the moved one's time has come"),
    ],
)
def test_corrections_count_from_when_they_were_written(
    read: Read, tmp_path: Path, day: int, amounts: list[int]
) -> None:
    """A run of an old night must see the records of that night, not what became of them."""
    (tmp_path / "orders.csv").write_text(ORDERS)
    as_of = datetime(2024, 1, day, tzinfo=UTC)
    source = read(path="orders.csv", event_time="at", created_time="written", key=["id"], as_of=as_of)
    assert sorted(rows(source)["amount"].to_list()) == amounts


def test_late_records_are_invisible_without_a_key_too(read: Read, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text(ORDERS)
    source = read(path="orders.csv", event_time="at", created_time="written", as_of=datetime(2024, 1, 3, tzinfo=UTC))
    assert rows(source)["amount"].to_list() == [10, 11, 30]


def test_history_is_cut(read: Read, tmp_path: Path) -> None:
    """Otherwise years are read for a window of days."""
    (tmp_path / "t.csv").write_text("at,n\n" + "".join(f"2024-01-0{day}T00:00:00Z,{day}\n" for day in range(1, 9)))
    source = read(path="t.csv", event_time="at", history_days=2, as_of=datetime(2024, 1, 8, tzinfo=UTC))
    assert rows(source)["n"].to_list() == [5, 6, 7]


def test_a_record_delivered_twice_counts_once_and_a_tie_is_refused(read: Read, tmp_path: Path) -> None:
    """Which of two counted would otherwise be left to chance."""
    again = ORDERS + ORDERS.splitlines()[1] + "\n"
    (tmp_path / "orders.csv").write_text(again)
    settings = {"path": "orders.csv", "event_time": "at", "created_time": "written", "key": ["id"]}
    source = read(**settings, as_of=datetime(2024, 1, 2, tzinfo=UTC))
    assert sorted(rows(source)["amount"].to_list()) == [10, 30]
    (tmp_path / "orders.csv").write_text(
        again.replace(
            "3,2024-01-01T00:00:00Z,2024-01-01",
            "1,2024-01-01T00:00:00Z,2024-01-01T01:00:00Z,99\n3,2024-01-01T00:00:00Z,2024-01-01",
            1,
        )
    )
    with pytest.raises(BadDataError, match="2 different records with id = '1' have the same 'written'"):
        read(**settings, as_of=datetime(2024, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"created_time": "when"}, "no column 'when', which its created_time names; it has id,", id="created"
        ),
        pytest.param({"key": ["order"]}, "no column 'order', which its key names", id="key"),
        pytest.param({"created_time": "id"}, "created_time 'id' holds '1', which is not an instant", id="no instant"),
    ],
)
def test_columns_that_are_not_there_are_named(
    read: Read, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    (tmp_path / "orders.csv").write_text(ORDERS)
    with pytest.raises(BadDataError, match=message):
        read(**{"path": "orders.csv", "created_time": "written", **settings})


def test_a_null_key_is_refused(read: Read, tmp_path: Path) -> None:
    """Records of nothing in particular would be merged into one, or lost."""
    (tmp_path / "orders.csv").write_text(ORDERS + ",2024-01-01T00:00:00Z,2024-01-01T00:00:00Z,1\n")
    with pytest.raises(BadDataError, match=r"orders\.csv has 1 rows whose key 'id' is null"):
        read(path="orders.csv", created_time="written", key=["id"])


def test_keys_are_told_apart_as_they_are_written(read: Read, tmp_path: Path) -> None:
    """Broken: 0123 and 123 become one number, and the row of one of them is dropped without a word."""
    lines = ["0123,2024-01-01T00:00:00Z,1", "123,2024-01-01T01:00:00Z,2", "123,2024-01-01T02:00:00Z,3"]
    (tmp_path / "t.csv").write_text("sku,written,n\n" + "\n".join(lines) + "\n")
    settings = {"path": "t.csv", "created_time": "written", "key": ["sku"]}
    assert sorted(rows(read(**settings)).select("sku", "n").rows()) == [("0123", 1), ("123", 3)]
    assert rows(read(**settings, types={"sku": "int64"})).select("sku", "n").rows() == [(123, 3)]
