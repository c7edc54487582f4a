from __future__ import annotations

import asyncio
import json
from pathlib import Path

import obstore
import pytest

from mlops_provider.committed import find_snapshot, open_store
from mlops_provider.refs import DatasetRef
from mlops_provider.step import deprecation_key, place


@pytest.mark.parametrize("name", ["plain", "a b", "50%20", "a#b", "a?b", "\u00fc"])
def test_the_store_is_the_folder_that_the_steps_write(tmp_path: Path, name: str) -> None:
    """Read as a URL, some names would mean another folder, and sensors would wait for ever."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "ref.json").write_text("here")
    store = open_store(f"file://{folder}")
    assert bytes(obstore.get(store, "ref.json").bytes()) == b"here"


def test_a_deprecated_snapshot_wakes_no_sensor(tmp_path: Path) -> None:
    """The one before it counts again; where there is none, the sensor waits."""
    store = open_store(f"file://{tmp_path}")
    for day, version in ((8, "a" * 64), (9, "b" * 64)):
        ref = DatasetRef(
            place=place("flights", f"201302{day:02d}T050000Z-000000000000", "ingest"),
            name="flights",
            version=version,
            schema_hash="0",
            num_rows=1,
            num_bytes=1,
            interval_start="2013-01-09T05:00:00+00:00",
            interval_end=f"2013-02-{day:02d}T05:00:00+00:00",
        )
        obstore.put(store, f"{ref.place}/ref.json", json.dumps(ref.to_wire()).encode())

    def found(interval_end: str | None = None) -> str | None:
        ref = asyncio.run(find_snapshot(store, "flights", interval_end))
        return ref and ref.version[0]

    assert found() == "b"
    obstore.put(store, deprecation_key("flights", "b" * 64), b"{}")
    assert found() == "a"
    assert found("2013-02-09T05:00:00+00:00") is None
    assert found("2013-02-08T05:00:00+00:00") == "a"
