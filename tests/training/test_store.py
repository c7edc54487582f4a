"""The commit protocol, on a real folder, with real processes killed in the middle."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from busy_server import busy_server
from obstore.exceptions import AlreadyExistsError

from mlops.contract.refs import Artifact, DatasetRef
from mlops.contract.step import BadConfigError, Failure, python_path
from mlops.store import Store
from mlops.store_errors import DamagedObjectError, StoreError

WRITER = """
import sys
from mlops.store import Store
store = Store(sys.argv[1])
print("ready", flush=True)
number = 0
while True:
    number += 1
    data = bytes([number % 256]) * 3_000_000
    artifact = store.put_artifact("place", f"{number}.bin", data)
    store.put_new(f"marks/{number}", artifact.sha256.encode())
"""

RACER = """
import sys
from mlops.store import Store
print(Store(sys.argv[1]).put_new("key", sys.argv[2].encode()))
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path}/store")


def dataset(store: Store, version: str) -> DatasetRef:
    return DatasetRef(
        place="pipelines/p/ingest/k",
        artifacts={"manifest": store.put_artifact("pipelines/p/ingest/k", "manifest.json", version.encode())},
        name="p",
        version=version,
        schema_hash="",
        num_rows=1,
        num_bytes=1,
        interval_start="",
        interval_end="",
    )


def test_the_first_commit_wins_and_all_are_told(store: Store) -> None:
    """Two attempts at one step would otherwise hand their children different data."""
    first, second = dataset(store, "one"), dataset(store, "two")
    assert store.committed(first.place) is None
    assert store.commit(first) == first
    assert store.commit(second) == first
    assert store.committed(first.place) == first
    assert store.read(first.artifacts["manifest"]) == b"one", "the loser's file did not replace the winner's"


def test_of_many_processes_exactly_one_creates(store: Store) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, store.uri, str(number)], stdout=subprocess.PIPE, text=True, env=paths()
        )
        for number in range(6)
    ]
    told = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    assert sorted(told) == ["False"] * 5 + ["True"]
    assert store.get("key").decode() == str(told.index("True"))


@pytest.mark.parametrize("answer", [AlreadyExistsError, OSError], ids=["the client tried twice", "connection cut"])
@pytest.mark.parametrize(("there", "written"), [(b"mine", True), (b"another's", False)], ids=["mine", "another's"])
def test_a_write_whose_answer_is_lost_is_decided_by_what_is_there(
    store: Store, monkeypatch: pytest.MonkeyPatch, answer: type[Exception], there: bytes, written: bool
) -> None:
    """Broken: a commit would have no winner although its object is there, or two of them."""
    store.put("key", there)

    def put(*_: object, **__: object) -> None:
        raise answer("503 slow down")

    monkeypatch.setattr("mlops.store.obstore.put", put)
    assert store.put_new("key", b"mine") is written


def test_a_write_that_failed_and_left_nothing_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: whoever wrote nothing would believe that it has, or that another one has."""

    def put(*_: object, **__: object) -> None:
        raise OSError("503 slow down")

    monkeypatch.setattr("mlops.store.obstore.put", put)
    with pytest.raises(StoreError, match="503"):
        store.put_new("key", b"mine")


def test_killed_writer_leaves_nothing_half_written(store: Store, tmp_path: Path) -> None:
    chance = random.Random(5)
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, store.uri], stdout=subprocess.PIPE, text=True, env=paths()
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(chance.uniform(0.01, 0.15))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        marks = list(store.list("marks"))
        for mark in marks:
            number = int(mark.rpartition("/")[2])
            sha256 = store.get(mark).decode()
            data = store.get(f"place/{number}.{sha256[:12]}.bin")
            assert data == bytes([number % 256]) * 3_000_000, "an object that is named is whole"
    assert marks, "the writers came far enough to be tested"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda path: path.write_bytes(b"X" + path.read_bytes()[1:]), "is damaged", id="flipped"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-1]), "is damaged", id="truncated"),
        pytest.param(lambda path: path.unlink(), "is missing", id="missing"),
    ],
)
def test_damage_is_found_and_named(store: Store, tmp_path: Path, damage: object, message: str) -> None:
    artifact = store.put_artifact("place", "weights.pt", b"some weights")
    damage(tmp_path / "store" / artifact.key)  # type: ignore[operator]
    for read in (store.read, lambda artifact: store.local_file(artifact, tmp_path)):
        with pytest.raises(DamagedObjectError, match=message) as caught:
            read(artifact)
        assert artifact.key in str(caught.value)


def test_shared_content_is_stored_once(store: Store, tmp_path: Path) -> None:
    first, new = store.put_blob(b"the same day", ".parquet")
    inode = (tmp_path / "store" / first.key).stat().st_ino
    assert new
    assert store.put_blob(b"the same day", ".parquet") == (first, False)
    assert (tmp_path / "store" / first.key).stat().st_ino == inode


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\xff\xfe", b'{"kind": "dataset"}'])
def test_a_damaged_ref_is_named_and_not_retried(store: Store, tmp_path: Path, content: bytes) -> None:
    """Broken: after a power cut every try would end in a parser's error that names no file."""
    ref = store.commit(dataset(store, "v"))
    (tmp_path / "store" / ref.place / "ref.json").write_bytes(content)
    with pytest.raises(DamagedObjectError, match=r"pipelines/p/ingest/k/ref\.json .*delete it"):
        store.committed(ref.place)


def test_a_blob_cut_short_is_written_again(store: Store, tmp_path: Path) -> None:
    """Broken: the next night would share the damaged blob, and every night after it."""
    blob, _ = store.put_blob(b"rows of a day", ".parquet")
    (tmp_path / "store" / blob.key).write_bytes(b"")
    assert store.read(store.put_blob(b"rows of a day", ".parquet")[0]) == b"rows of a day"


def test_a_damaged_object_is_told_with_a_way_out(store: Store, tmp_path: Path) -> None:
    """Broken: nobody would know that the object can be made again, and how."""
    blob, _ = store.put_blob(b"rows of a day")
    (tmp_path / "store" / blob.key).write_bytes(b"rows of a dax")
    with pytest.raises(DamagedObjectError, match="mlops store verify --heal"):
        store.read(blob)
    with pytest.raises(DamagedObjectError, match="mlops store verify --heal"):
        store.local_file(blob, tmp_path)


def test_store_that_cannot_be_written_is_retried_with_a_clear_message(tmp_path: Path) -> None:
    """Stores come back; until then the user must read which place it was."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=f"cannot make the store's folder {tmp_path}/file/store"):
        Store(f"file://{tmp_path}/file/store")
    store = Store(f"file://{tmp_path}/store")
    (tmp_path / "store/pipelines").write_text("in the way")
    with pytest.raises(StoreError, match=f"cannot write pipelines/x in the store file://{tmp_path}/store.*may write"):
        store.put("pipelines/x", b"")
    assert StoreError.retryable


def test_unknown_kind_of_store_is_a_mistake() -> None:
    with pytest.raises(BadConfigError, match="'/tmp/x' is neither file:///folder nor s3://bucket/prefix"):
        Store("/tmp/x")


def paths() -> dict[str, str]:
    root = Path(__file__).parents[2]
    return {**os.environ, "PYTHONPATH": python_path(root)}


def test_no_name_leads_out_of_the_store(store: Store, tmp_path: Path) -> None:
    """Broken: an edited manifest has a step read any file of the machine, and put its content into a report."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"the key")
    digest = hashlib.sha256(b"the key").hexdigest()
    store.put("place/inside", b"inside")
    (tmp_path / "store/place/link").symlink_to(secret)
    for key in ("../secret", "place/../../secret", str(secret), "place/link"):
        with pytest.raises(DamagedObjectError, match="outside of the store"):
            store.local_file(Artifact(key=key, sha256=digest, num_bytes=7), tmp_path)
    inside = hashlib.sha256(b"inside").hexdigest()
    assert (
        store.local_file(Artifact(key="place/inside", sha256=inside, num_bytes=6), tmp_path).read_bytes() == b"inside"
    )
    with pytest.raises(DamagedObjectError, match="has no SHA-256"):
        store.local_file(Artifact(key="place/inside", sha256="../../secret", num_bytes=6), tmp_path)


@pytest.mark.parametrize(
    ("code", "retryable", "fix"),
    [
        ("ExpiredToken", True, "who renews AWS_ACCESS_KEY_ID"),
        ("RequestTimeTooSkewed", True, "both clocks"),
        ("AccessDenied", False, "may write to it"),
    ],
)
def test_a_refusal_says_whether_a_later_try_may_be_let_in(
    monkeypatch: pytest.MonkeyPatch, code: str, retryable: bool, fix: str
) -> None:
    """Broken: a training of days ends for good when its token runs out, and the message does not speak of tokens."""
    with busy_server() as server:
        server.status = 403
        server.body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code></Error>'.encode()
        settings = {"ENDPOINT_URL": server.url, "ALLOW_HTTP": "true", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
        for name, value in {**settings, "REGION": "r"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        with pytest.raises(StoreError) as caught:
            Store("s3://bucket/prefix").put("key", b"data")
    failure = Failure.of(caught.value)
    assert failure.retryable is retryable
    assert fix in failure.message
    assert "cannot write key in the store s3://bucket/prefix" in failure.message
