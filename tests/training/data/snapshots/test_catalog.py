"""What people type at the command line must lead to the snapshot that they mean, or to a helpful message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from committed_snapshots import commit_snapshot, visits

from mlops.contract.refs import DatasetRef
from mlops.contract.step import BadConfigError
from mlops.data.snapshots.catalog import find_snapshot, read_catalog
from mlops.data.snapshots.deprecation import deprecate
from mlops.store import Store
from mlops.store_errors import DamagedObjectError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


@pytest.fixture
def nights(store: Store) -> list[DatasetRef]:
    """Two nights, and the second again with corrected rows."""
    return [
        commit_snapshot(store, visits(1, 2), last_day=2),
        commit_snapshot(store, visits(1, 2, 3), last_day=3),
        commit_snapshot(store, visits(1, 2, 3, per_day=5), last_day=3, key="b" * 12),
    ]


def test_snapshots_are_named_by_version_beginning_or_date(store: Store, nights: list[DatasetRef]) -> None:
    first, second, corrected = nights
    for text, meant in {
        f"visits@{first.version}": first,
        f"visits@{second.version[:6]}": second,
        "visits@2024-01-02": first,
        "visits@2024-01-03": corrected,
        "visits": corrected,
    }.items():
        assert find_snapshot(store, text).ref == meant, text


def test_the_day_is_that_of_the_datasets_own_zone(store: Store, nights: list[DatasetRef]) -> None:
    """In UTC its interval ends a day later."""
    assert nights[0].interval_end == "2024-01-03T05:00:00+00:00"
    assert find_snapshot(store, f"visits@{nights[0].version}").last == "2024-01-02"


def test_a_deprecated_snapshot_is_found_only_by_its_version(store: Store, nights: list[DatasetRef]) -> None:
    _, second, corrected = nights
    deprecate(store, "visits", corrected.version, reason="two clicks counted as one", by="ana")
    assert find_snapshot(store, "visits@2024-01-03").ref == second
    found = find_snapshot(store, f"visits@{corrected.version[:8]}")
    assert found.deprecation is not None
    assert found.deprecation.reason == "two clicks counted as one"


def test_the_first_deprecation_stays(store: Store, nights: list[DatasetRef]) -> None:
    """Steps failed with its reason."""
    first = deprecate(store, "visits", nights[0].version, reason="wrong prices", by="ana")
    assert deprecate(store, "visits", nights[0].version, reason="other", by="bob") == first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("visit", "no dataset 'visit' in .*; did you mean 'visits'?"),
        ("sales", "no dataset 'sales' in .*; it holds visits$"),
        ("visits@2024-01-09", r"no snapshot 'visits@2024-01-09' .* the newest are visits@[0-9a-f]{12} \(2024-01-03\)"),
        ("visits@abc", "'abc' in 'visits@abc' is neither a period .* nor the beginning of a version .at least 6"),
        ("visits@", "is neither a period"),
        ("visits@0000000", "there is no snapshot"),
    ],
)
def test_a_mistake_is_answered_with_what_there_is(
    store: Store, nights: list[DatasetRef], text: str, message: str
) -> None:
    with pytest.raises(BadConfigError) as caught:
        find_snapshot(store, text)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_a_beginning_that_two_versions_share_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking one of them would be a guess about which data to compare or deprecate."""
    monkeypatch.setattr("mlops.data.snapshots.catalog.SHORTEST_VERSION", 1)
    monkeypatch.setattr("mlops.data.snapshots.catalog.VERSION_PATTERN", "^[0-9a-f]+$")
    refs = [commit_snapshot(store, visits(1, per_day=n), last_day=1, key=f"{n:012d}") for n in range(1, 18)]
    beginnings = [ref.version[0] for ref in refs]
    shared = next(letter for letter in beginnings if beginnings.count(letter) > 1)
    with pytest.raises(BadConfigError, match=f"'visits@{shared}' may mean {shared}[0-9a-f]{{11,}} or {shared}"):
        find_snapshot(store, f"visits@{shared}")


def test_damage_of_one_snapshot_does_not_hide_the_others(store: Store, nights: list[DatasetRef]) -> None:
    first, second, corrected = nights
    root = Path(store.uri.removeprefix("file://"))
    (root / first.artifacts["manifest"].key).write_text("{}")
    (root / second.place / "ref.json").write_text("{")

    catalog = read_catalog(store)

    assert [item.ref for item in catalog.snapshots] == [corrected]
    told = sorted(str(error) for error in catalog.damaged)
    assert first.artifacts["manifest"].key in told[0]
    assert second.place in told[1]
    with pytest.raises(DamagedObjectError):
        find_snapshot(store, "visits@2024-01-02")


def test_an_empty_store_says_so(store: Store) -> None:
    with pytest.raises(BadConfigError, match="holds no dataset at all"):
        read_catalog(store, "visits")
    assert read_catalog(store).snapshots == []


def test_a_damaged_newest_snapshot_is_not_passed_over(store: Store, nights: list[DatasetRef]) -> None:
    """Broken: a schema is proposed from, or a diff made with, older data than everybody believes."""
    _, second, corrected = nights
    root = Path(store.uri.removeprefix("file://"))
    (root / corrected.artifacts["manifest"].key).write_text("{}")

    for text in ("visits", "visits@2024-01-03"):
        with pytest.raises(
            DamagedObjectError, match=rf"{corrected.place}/manifest.*name its version.*{second.version[:12]}"
        ):
            find_snapshot(store, text)
    assert find_snapshot(store, f"visits@{second.version}").ref == second
    assert find_snapshot(store, "visits@2024-01-02").ref == nights[0]

    deprecate(store, "visits", corrected.version, reason="damaged", by="ana")
    assert find_snapshot(store, "visits").ref == second


def test_damage_of_an_older_snapshot_is_nothing_to_the_newest(store: Store, nights: list[DatasetRef]) -> None:
    """Broken: one damaged night of last year, and no command takes the pipeline's name alone any more."""
    root = Path(store.uri.removeprefix("file://"))
    for older in nights[:2]:
        (root / older.artifacts["manifest"].key).write_text("{}")
    assert find_snapshot(store, "visits").ref == nights[2]
    assert find_snapshot(store, "visits@2024-01-03").ref == nights[2]

    (root / nights[0].place / "ref.json").write_text("{")
    with pytest.raises(DamagedObjectError, match="the newest of 'visits' may be a snapshot that cannot be read"):
        find_snapshot(store, "visits")
    assert find_snapshot(store, "visits@2024-01-03").ref == nights[2], "the damaged one is of another time, maybe"
