"""The step predict: a snapshot in, what a registered model answers about its rows out."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import toy_model
from committed_refs import commit_lineage
from polars.testing import assert_frame_equal
from turns import on_turn

from mlops.contract.refs import CheckpointRef, DatasetRef, ModelVersionRef, PredictionsRef
from mlops.contract.step import Failure
from mlops.data.snapshots.snapshot import Snapshot
from mlops.predictor.packing import open_checkpoint
from mlops.serving import answered_periods, registered_package

OVER_PERIODS = [(pl.col("query") % 40).alias("query")]
"""Queries that have rows in several periods."""


@pytest.fixture
def predicted(project: Any, run_step: Any) -> Any:
    """Asks a version about a snapshot, as an operator does that has looked the version up."""

    def predict(
        version: ModelVersionRef, dataset: DatasetRef, key: str = "night", *, interval_end: str = "", **changes: Any
    ) -> Any:
        section = {"registered_model": version.name, "version": "champion", "columns": None, "output": None, **changes}
        document = project.step_input("predict", section, dataset, key)
        commit_lineage(project.store, version)
        run = replace(document.run, interval_end=interval_end or document.run.interval_end)
        return run_step(project, replace(document, run=run, baselines={"model": version}))

    return predict


def read(project: Any, ref: PredictionsRef) -> pl.DataFrame:
    manifest = json.loads(project.store.read(ref.artifacts["manifest"]))
    return pl.concat(pl.read_parquet(io.BytesIO(project.store.get(part["key"]))) for part in manifest["partitions"])


def rows_of(project: Any, checkpoint: CheckpointRef) -> tuple[DatasetRef, pl.DataFrame]:
    dataset = checkpoint.ancestor(DatasetRef)
    return dataset, Snapshot.open(project.store, dataset).read()


@pytest.mark.parametrize("binary", [False, True], ids=["groups", "rows"])
def test_each_row_has_the_answer_of_the_server(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any, tmp_path: Path, binary: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """But for the last bits, which follow from the batch. Of a query of one item there is nothing to rank: null."""
    monkeypatch.setattr(answered_periods, "rows_of", lambda _: 17)
    checkpoint = toy_checkpoint(binary=binary)
    dataset, rows = rows_of(project, checkpoint)
    version = register(checkpoint)
    ref = predicted(version, dataset)
    assert isinstance(ref, PredictionsRef), ref
    assert (ref.model, ref.model_version, ref.model_sha256) == (version.name, version.version, version.parent.digest())
    found = read(project, ref)
    expected = open_checkpoint(project.store, checkpoint, tmp_path).answer(rows)
    assert found.columns == [*rows.columns, *expected]
    assert found.select(rows.columns).equals(rows)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].fill_null(np.nan), values, rtol=1e-5, atol=1e-6, err_msg=name)
    assert ref.num_rows == rows.height
    assert ref.num_unanswered == found["score"].null_count()
    assert (ref.num_unanswered > 0) == (not binary)


def test_an_interval_is_predicted_once_whoever_is_champion_then(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any
) -> None:
    """Broken: a retried task would overwrite what others have acted on, by another model."""
    first = toy_checkpoint(binary=True)
    dataset, _ = rows_of(project, first)
    before = predicted(register(first), dataset)
    second = register(toy_checkpoint(binary=True, key="second", seed=8))
    assert second.version != before.model_version
    assert predicted(second, dataset) == before
    assert predicted(second, dataset, key="next").model_version == second.version


def test_answers_go_to_a_folder_a_file_for_each_period(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any
) -> None:
    checkpoint = toy_checkpoint(binary=True)
    dataset, _ = rows_of(project, checkpoint)
    ref = predicted(register(checkpoint), dataset, columns=["day", "item"], output="data/answers")
    files = sorted((project.home / "data/answers").iterdir())
    assert len(files) == toy_model.DAYS
    assert files[0].name == "2013-01-09.parquet"
    assert pl.concat(map(pl.read_parquet, files)).equals(read(project, ref))
    assert pl.read_parquet(files[0]).columns == ["day", "item", "score", "probability"]


def test_killed_between_commit_and_folder_the_next_try_hands_on(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any
) -> None:
    """Broken: the folder would lack answers that the ref says are there, or hold some of no ref."""
    checkpoint = toy_checkpoint(binary=True)
    dataset, _ = rows_of(project, checkpoint)
    version = register(checkpoint)
    in_the_way = project.home / "data/answers/2013-01-11.parquet"
    in_the_way.mkdir(parents=True)
    failure = predicted(version, dataset, output="data/answers")
    assert isinstance(failure, Failure), failure
    in_the_way.rmdir()
    second = register(toy_checkpoint(binary=True, key="second", seed=8))
    ref = predicted(second, dataset, output="data/answers")
    assert isinstance(ref, PredictionsRef), ref
    assert ref.model_version == version.version, "committed by the first try, whoever is champion by now"
    files = sorted((project.home / "data/answers").iterdir())
    assert pl.concat(map(pl.read_parquet, files)).equals(read(project, ref))


def test_what_a_later_interval_says_stays(project: Any, toy_checkpoint: Any, register: Any, predicted: Any) -> None:
    """Broken: an old night that is cleared would put its answers back over those of the nights after it."""
    checkpoint = toy_checkpoint(binary=True)
    dataset, _ = rows_of(project, checkpoint)
    version = register(checkpoint)
    folder = project.home / "data/answers"
    old = predicted(version, dataset, output="data/answers")
    new = predicted(
        version, dataset, key="later", interval_end="2034-02-11T00:00:00+00:00", columns=["item"], output="data/answers"
    )
    assert isinstance(new, PredictionsRef), new
    assert predicted(version, dataset, output="data/answers") == old
    files = sorted(folder.iterdir())
    assert pl.concat(map(pl.read_parquet, files)).equals(read(project, new))


def test_a_folder_of_somebody_else_is_left_alone(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any
) -> None:
    """Broken: two pipelines with one folder would overwrite each other's files of the same day."""
    checkpoint = toy_checkpoint(binary=True)
    dataset, rows = rows_of(project, checkpoint)
    folder = project.home / "data/answers"
    folder.mkdir(parents=True)
    rows.write_parquet(folder / "2013-01-10.parquet")
    before = (folder / "2013-01-10.parquet").read_bytes()
    failure = predicted(register(checkpoint), dataset, output="data/answers")
    assert isinstance(failure, Failure), failure
    assert "2013-01-10.parquet was written by something else" in failure.message
    assert (folder / "2013-01-10.parquet").read_bytes() == before


def test_a_column_of_another_type_is_no_column_of_the_model(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any, tmp_path: Path
) -> None:
    """Broken: numbers would be read as words that the model never saw, and answered without a word."""
    version = register(toy_checkpoint(binary=True))
    for column, change, message in (
        ("city", pl.lit(7), "String, to which these features were fitted: it is Int"),
        (
            "seats",
            pl.col("at").dt.replace_time_zone(None),
            "Int64, to which these features were fitted: it is Date",
        ),
        ("day", pl.lit(datetime(2013, 1, 9, 12)), "Date: 2013-01-09 12:00:00 has a time of day"),
    ):
        rows = toy_model.rows(binary=True).with_columns(change.alias(column))
        other = toy_model.snapshot(project.store, tmp_path, rows, name=f"other_{column}").parent
        failure = predicted(version, other, key=column)
        assert isinstance(failure, Failure), failure
        assert f"2013-01-09: column {column!r} does not hold {message}" in failure.message


def test_an_interval_that_is_predicted_stays_though_no_version_is_left(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any, run_step: Any
) -> None:
    checkpoint = toy_checkpoint(binary=True)
    dataset, _ = rows_of(project, checkpoint)
    version = register(checkpoint)
    ref = predicted(version, dataset)
    section = {"registered_model": version.name, "version": "champion", "columns": None, "output": None}
    assert run_step(project, project.step_input("predict", section, dataset, "night")) == ref
    failure = run_step(project, project.step_input("predict", section, dataset, "next"))
    assert f"there is no 'champion' of the model '{version.name}' to ask" in failure.message


def test_a_group_is_whole_though_it_lies_in_several_periods(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Broken: its parts would be ranked each by itself, or left out as too small."""
    checkpoint = toy_checkpoint(columns=OVER_PERIODS)
    dataset, rows = rows_of(project, checkpoint)
    ref = predicted(register(checkpoint), dataset)
    assert isinstance(ref, PredictionsRef), ref
    expected = open_checkpoint(project.store, checkpoint, tmp_path).answer(rows)
    np.testing.assert_allclose(read(project, ref)["score"].fill_null(np.nan), expected["score"], rtol=1e-5, atol=1e-6)


@on_turn(1, 2)
@pytest.mark.server
@pytest.mark.parametrize("binary", [False, True], ids=["groups of several periods", "rows"])
def test_spark_answers_the_same(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any, tmp_path: Path, binary: bool
) -> None:
    """A table that outgrows its machine would get other answers."""
    pytest.importorskip("pyspark", reason="PySpark is not in this environment")
    checkpoint = toy_checkpoint(binary=binary, columns=[] if binary else OVER_PERIODS)
    dataset, rows = rows_of(project, checkpoint)
    version = register(checkpoint)
    here = predicted(version, dataset, output="data/here")
    of_spark = toy_model.snapshot(project.store, tmp_path, rows, name="of_spark", engine="spark").parent
    there = predicted(version, of_spark, key="spark", output="data/there")
    assert isinstance(there, PredictionsRef), there
    assert there.num_unanswered == here.num_unanswered
    assert_frame_equal(read(project, there), read(project, here), rel_tol=1e-5)
    assert [path.name for path in sorted((project.home / "data/there").iterdir())] == [
        path.name for path in sorted((project.home / "data/here").iterdir())
    ]


@on_turn(0, 2)
@pytest.mark.server
def test_what_fails_in_an_executor_is_said_as_here(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not in this environment")
    version = register(toy_checkpoint(binary=True))
    other = toy_model.rows(binary=True).with_columns(pl.lit(7).alias("city"))
    failure = predicted(
        version, toy_model.snapshot(project.store, tmp_path, other, name="other", engine="spark").parent
    )
    assert isinstance(failure, Failure), failure
    assert "2013-01-09: column 'city' does not hold String, to which these features were fitted" in failure.message
    assert not failure.retryable


def test_a_model_of_another_library_answers_in_a_process_of_its_own(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """To the same bytes, where the library is the same after all; in one for all periods, for each takes seconds."""
    caplog.set_level("INFO")
    printed = (
        "\nimport subprocess\n\nprint('a recipe may print')\nsubprocess.run(['cat'], check=True)  # reads its input\n"
    )
    model = project.home / "include/toy/model.py"
    model.write_text(printed + model.read_text())
    checkpoint = toy_checkpoint(binary=True)
    dataset, _ = rows_of(project, checkpoint)
    version = register(checkpoint)
    here = predicted(version, dataset)
    monkeypatch.setattr(registered_package, "_is_this_library", lambda _: False)
    site = project.home / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('welcome to this image')")
    monkeypatch.setenv("PYTHONPATH", str(site))
    apart = predicted(version, dataset, key="apart")
    assert isinstance(apart, PredictionsRef), apart
    assert read(project, apart).equals(read(project, here))
    assert caplog.text.count("working in a process with the library that the model was registered with") == 1


def test_a_process_that_is_killed_is_asked_again(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a night whose memory ran out would be said to be of a model that cannot be used."""
    checkpoint = toy_checkpoint(binary=True)
    dataset, _ = rows_of(project, checkpoint)
    version = register(checkpoint)
    monkeypatch.setattr(registered_package, "_is_this_library", lambda _: False)
    site = project.home / "site"
    site.mkdir()
    kill = "import os, sys\nif 'mlops.serving.answering' in sys.orig_argv:\n    os.kill(os.getpid(), 9)\n"
    (site / "sitecustomize.py").write_text(kill)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        failure = predicted(version, dataset)
    assert isinstance(failure, Failure), failure
    assert failure.retryable
    assert "was killed by SIGKILL" in failure.message
    assert isinstance(predicted(version, dataset), PredictionsRef)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"columns": ["day", "itme"]},
            "predict.columns names 'itme', which the snapshot does not have; it has at, day",
        ),
        ({"output": "ftp://x"}, "ftp"),
    ],
)
def test_a_mistake_is_said_before_anything_is_answered(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any, changes: dict[str, Any], message: str
) -> None:
    checkpoint = toy_checkpoint(binary=True)
    dataset, _ = rows_of(project, checkpoint)
    failure = predicted(register(checkpoint), dataset, **changes)
    assert isinstance(failure, Failure), failure
    assert message in failure.message


def test_a_column_called_as_the_answer_is_named(
    project: Any, toy_checkpoint: Any, register: Any, predicted: Any
) -> None:
    checkpoint = toy_checkpoint(binary=True, columns=[pl.lit(1.0).alias("score")])
    dataset, _ = rows_of(project, checkpoint)
    failure = predicted(register(checkpoint), dataset)
    assert isinstance(failure, Failure)
    assert "column 'score' of the snapshot is called as one of the model's answer" in failure.message
