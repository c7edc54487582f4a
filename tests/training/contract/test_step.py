from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlops.contract.code_files import MOST_FILES, code_digest, files_told
from mlops.contract.refs import DatasetRef, ModelVersionRef, ValidationRef
from mlops.contract.step import (
    BadConfigError,
    BadDataError,
    Failure,
    RunIdentity,
    StepInput,
    place,
    read_result,
    run_key,
    write_result,
)

IDENTITY = RunIdentity(
    pipeline="p",
    run_key="k",
    interval_start="2013-02-07T05:00:00+00:00",
    interval_end="2013-02-08T05:00:00+00:00",
    timezone="America/New_York",
    dag_id="p",
    task_id="validate",
    run_id="manual",
    try_number=3,
)


def test_input_document_round_trip(version_ref: ModelVersionRef) -> None:
    document = StepInput(step="validate", run=IDENTITY, config={"a": 1}, ref=version_ref.ancestor(DatasetRef))
    assert StepInput.load(document.dump()) == document


def test_baselines_travel_with_the_document_and_change_no_key(version_ref: ModelVersionRef) -> None:
    """What is committed stays committed when another model becomes the champion."""
    dataset = version_ref.ancestor(DatasetRef)
    plain = StepInput(step="validate", run=IDENTITY, config={}, ref=dataset)
    held = StepInput(
        step="validate",
        run=IDENTITY,
        config={},
        ref=dataset,
        baselines={"champion": version_ref.ancestor(ValidationRef)},
    )
    assert StepInput.load(held.dump()) == held
    assert held.place == plain.place
    document = json.loads(plain.dump())
    del document["baselines"]
    assert StepInput.load(json.dumps(document)) == plain


def test_input_of_another_contract_version_is_refused() -> None:
    text = StepInput(step="ingest", run=IDENTITY, config={}).dump().replace('"v": 1', '"v": 2')
    with pytest.raises(BadConfigError, match="version 2"):
        StepInput.load(text)


def test_place_does_not_depend_on_the_try() -> None:
    assert place("p", "k", "train") == "pipelines/p/train/k"


def test_equal_work_has_an_equal_key(version_ref: ModelVersionRef) -> None:
    """A retry would otherwise repeat finished work."""
    arguments = ("train", "2013-02-08T05:00:00+00:00", "UTC", {"epochs": 3}, version_ref, "code")
    assert run_key(*arguments) == run_key(*arguments)
    assert run_key(*arguments).startswith("20130208T050000Z-")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(("evaluate", "2013-02-08T05:00:00+00:00", "UTC", {"epochs": 3}, None, "code"), id="step"),
        pytest.param(("train", "2013-02-09T05:00:00+00:00", "UTC", {"epochs": 3}, None, "code"), id="night"),
        pytest.param(("train", "2013-02-08T05:00:00+00:00", "Etc/GMT+5", {"epochs": 3}, None, "code"), id="timezone"),
        pytest.param(("train", "2013-02-08T05:00:00+00:00", "UTC", {"epochs": 4}, None, "code"), id="parameter"),
        pytest.param(("train", "2013-02-08T05:00:00+00:00", "UTC", {"epochs": 3}, None, "other code"), id="code"),
    ],
)
def test_other_work_has_another_key(other: tuple) -> None:
    """A changed parameter or model would otherwise be answered with the old result."""
    work = ("train", "2013-02-08T05:00:00+00:00", "UTC", {"epochs": 3}, None, "code")
    assert run_key(*work) != run_key(*other)


def test_code_digest_sees_every_change(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("a = 1")
    before = code_digest([tmp_path])
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/model.pyc").write_bytes(b"x")
    assert code_digest([tmp_path]) == before, "byte code is not code"
    (tmp_path / "query.sql").write_text("select 1")
    with_sql = code_digest([tmp_path])
    assert with_sql != before
    (tmp_path / "model.py").write_text("a = 2")
    assert code_digest([tmp_path]) != with_sql
    for name in ("zones.yml", "zones.tsv", "zones.jsonl", "zones.parquet"):
        before = code_digest([tmp_path])
        (tmp_path / name).write_bytes(b"1")
        assert code_digest([tmp_path]) != before, name
    before = code_digest([tmp_path])
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints/model-checkpoint.py").write_text("a = 3")
    assert code_digest([tmp_path]) == before, "a notebook's copy is not code"
    assert code_digest([tmp_path / "missing.pbtxt"]) != code_digest([tmp_path / "model.py"])


def test_result_document_round_trip(tmp_path: Path, version_ref: ModelVersionRef) -> None:
    assert read_result(tmp_path / "result.json") is None, "no document is an infrastructure failure"
    assert write_result(tmp_path / "result.json", version_ref)
    assert read_result(tmp_path / "result.json") == version_ref


def test_first_result_wins(tmp_path: Path) -> None:
    """Of several ranks the one that failed first knows why; the others only lost their peer."""
    path = tmp_path / "result.json"
    assert write_result(path, Failure.of(BadDataError("the cause", column="x")))
    assert not write_result(path, Failure.of(RuntimeError("connection reset by peer")))
    assert read_result(path) == Failure("BadDataError", "the cause", False, {"column": "x"})
    assert list(tmp_path.iterdir()) == [path], "no temporary file stays behind"


def test_unknown_errors_are_retryable() -> None:
    assert Failure.of(OSError("disk")).retryable
    assert not Failure.of(BadConfigError("x")).retryable


def test_a_module_that_is_not_installed_is_not_tried_again() -> None:
    failure = Failure.of(ModuleNotFoundError("No module named 'exotic'", name="exotic"))
    assert not failure.retryable
    assert "No module named 'exotic': install it in the runtime of the step's process" in failure.message


def test_files_are_told_one_by_one_unless_they_are_many(tmp_path: Path) -> None:
    """Broken: whoever asks what was changed since the last good night is told that something in the recipe was."""
    for name in ("taxi/model.py", "taxi/sub/rows.sql", "taxi/notes.md", "schema.pbtxt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    before = files_told(tmp_path, ["taxi", "schema.pbtxt", "gone.py"])
    assert list(before) == ["schema.pbtxt", "taxi/model.py", "taxi/sub/rows.sql"]
    (tmp_path / "taxi/model.py").write_text("other")
    now = files_told(tmp_path, ["taxi", "schema.pbtxt", "gone.py"])
    assert [name for name in now if now[name] != before[name]] == ["taxi/model.py"]
    for number in range(MOST_FILES):
        (tmp_path / f"taxi/{number}.json").write_text("1")
    assert list(files_told(tmp_path, ["taxi", "schema.pbtxt"])) == ["taxi/", "schema.pbtxt"]
