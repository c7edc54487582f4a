from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import GenericError

from mlops.contract.refs import Artifact, DatasetRef
from mlops.contract.step import Failure, deprecation_key, failure_key, place
from mlops_provider.committed import find_snapshot, lacking, open_store, write_new
from mlops_provider.launchers.kubernetes.job import read_result_of
from mlops_provider.launchers.kubernetes.status import Ending


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


@pytest.mark.parametrize(
    ("there", "told"), [(b"mine", True), (b"another's", False), (None, None)], ids=["mine", "another's", "nothing"]
)
def test_a_decision_whose_answer_is_lost_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bytes | None, told: bool | None
) -> None:
    """Broken: an approval that was recorded would be asked for again; or one that was not would count."""
    store = open_store(f"file://{tmp_path}")
    if there is not None:
        obstore.put(store, "decision", there)

    async def cut(*_: object, **__: object) -> None:
        raise GenericError("connection closed before message completed")

    monkeypatch.setattr("mlops_provider.committed.obstore.put_async", cut)
    if told is None:
        with pytest.raises(GenericError):
            asyncio.run(write_new(store, "decision", b"mine"))
    else:
        assert asyncio.run(write_new(store, "decision", b"mine")) is told


def test_a_failed_job_is_not_answered_by_a_ref_whose_objects_are_gone(tmp_path: Path) -> None:
    """Broken: where a night of long ago cannot be made again, its task would be green all the same."""
    store = open_store(f"file://{tmp_path}")

    def put(key: str, data: bytes) -> Artifact:
        obstore.put(store, key, data)
        return Artifact(key=key, sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))

    blob = put("blobs/day.parquet", b"rows")
    named = {"key": blob.key, "sha256": blob.sha256, "num_bytes": blob.num_bytes, "num_rows": 1}
    manifest = json.dumps({"partitions": [{"day": "2013-02-08", "blobs": [named], "index": None}], "splits": {}})
    ref = DatasetRef(
        place="pipelines/flights/ingest/k", artifacts={"manifest": put("manifest.json", manifest.encode())},
        name="flights", version="0", schema_hash="0", num_rows=1, num_bytes=1, interval_start="", interval_end="",
    )  # fmt: skip
    put(f"{ref.place}/ref.json", json.dumps(ref.to_wire()).encode())
    failure = {"type": "SourceError", "message": "it is gone", "retryable": False, "details": {}}
    put(failure_key(ref.place, "uid"), json.dumps(failure).encode())

    def result(*, succeeded: bool) -> object:
        ending = Ending(succeeded=succeeded, status="", job="job", uid="uid", place=ref.place)
        return asyncio.run(read_result_of(store, ending))

    assert result(succeeded=True) == result(succeeded=False) == ref
    put(blob.key, b"row")
    assert asyncio.run(lacking(store, ref)) == [blob.key]
    assert result(succeeded=False) == Failure(**failure)
    obstore.delete(store, ref.artifacts["manifest"].key)
    assert asyncio.run(lacking(store, ref)) == [ref.artifacts["manifest"].key]
