from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from mlops_provider.step import BadConfigError, BadDataError
from training.data import sources
from training.data.sources import SourceConfig, read_source

AS_OF = datetime(2024, 1, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        pytest.param("a.csv", ["a.csv"], id="one object"),
        pytest.param("*.csv", ["a.csv", "b.csv"], id="not in sub-folders"),
        pytest.param("day=*/a.csv", ["day=1/a.csv", "day=2/a.csv"], id="folders"),
    ],
)
def test_objects_of_a_store_are_found_by_pattern(tmp_path: Path, pattern: str, names: list[str]) -> None:
    """Otherwise a remote source would silently lack files, or mix in those of another table."""
    for name in ("a.csv", "b.csv", "c.txt", "day=1/a.csv", "day=2/a.csv"):
        path = tmp_path / "bucket" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "scratch").mkdir()

    # A folder behind the same interface as a bucket.
    files = sources._fetch("s", f"file://{tmp_path / 'bucket'}/{pattern}", tmp_path / "scratch")

    assert [file.read_text() for file in files] == names


def test_nothing_in_the_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadDataError, match=r"source 's': nothing at file://.*\.csv"):
        sources._fetch("s", f"file://{tmp_path}/*.csv", tmp_path)


@pytest.mark.parametrize("offset", ["Z", "+00:00", "+0100"])
def test_instants_keep_their_offset(tmp_path: Path, offset: str) -> None:
    """Otherwise rows of a source in another zone would become known too early."""
    (tmp_path / "t.csv").write_text(f"at\n2024-01-03T00:30:00{offset}\n2024-01-02T00:00:00{offset}\n")

    source = read_source(
        "s",
        SourceConfig(path="t.csv", event_time="at", null_values=[]),
        home=tmp_path,
        scratch=tmp_path,
        as_of=AS_OF,
    )

    assert source.provenance["num_rows"] == (2 if offset == "+0100" else 1)
    assert source.rows.collect_schema()["at"] == pl.Datetime("us", "UTC")


def test_an_instant_without_offset_is_refused(tmp_path: Path) -> None:
    """Otherwise a local time would be taken for UTC, and rows of the future could be seen."""
    (tmp_path / "t.csv").write_text("at\n2024-01-02T10:00:00\n")

    with pytest.raises(BadDataError, match="holds '2024-01-02T10:00:00', which is not an instant"):
        read_source(
            "s",
            SourceConfig(path="t.csv", event_time="at", null_values=[]),
            home=tmp_path,
            scratch=tmp_path,
            as_of=AS_OF,
        )


@pytest.mark.parametrize("suffix", ["csv.zip", "parquet"])
def test_a_file_that_is_no_such_file_is_named(tmp_path: Path, suffix: str) -> None:
    """A half-delivered file: the user must learn which one."""
    (tmp_path / f"t.{suffix}").write_text("not one")

    with pytest.raises(BadDataError, match=rf"source 's': cannot read .*t\.{suffix}"):
        read_source(
            "s",
            SourceConfig(path=f"t.{suffix}", event_time=None, null_values=[]),
            home=tmp_path,
            scratch=tmp_path,
            as_of=AS_OF,
        )


def test_a_folder_is_no_source(tmp_path: Path) -> None:
    """Retried as a passing fault of the disk, it would take minutes to say so."""
    (tmp_path / "table.parquet").mkdir()
    config = SourceConfig(path="table.parquet", event_time=None, null_values=[])
    with pytest.raises(BadConfigError, match=r"table\.parquet is a folder; name the files"):
        read_source("s", config, home=tmp_path, scratch=tmp_path, as_of=AS_OF)


@pytest.mark.parametrize("path", ["day [old].csv", "da*old?.csv"])
def test_names_with_brackets_are_found(tmp_path: Path, path: str) -> None:
    """As patterns they would match nothing, though the file is there."""
    home = tmp_path / "a [b] c"
    home.mkdir()
    (home / "day [old].csv").write_text("x\n1\n")
    config = SourceConfig(path=path, event_time=None, null_values=[])
    assert read_source("s", config, home=home, scratch=tmp_path, as_of=AS_OF).provenance["num_rows"] == 1
