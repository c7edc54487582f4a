"""What a person asks for is checked before anything costs time, and the message says what would do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pytest
from project import REPOSITORY

from mlops.contract.section import SpecError
from mlops_provider.experiments.arguments import add_arguments
from mlops_provider.experiments.asked import Experiment, user

NOW = datetime(2026, 11, 26, 12, 30, tzinfo=UTC)
Asked = Callable[..., Experiment]


def asked(*arguments: str) -> Experiment:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return Experiment.of(parser.parse_args([*arguments], argparse.Namespace(home=REPOSITORY)), NOW)


def interval(*arguments: str) -> list[str]:
    return [instant.isoformat() for instant in asked(*arguments).interval]


def test_the_data_are_those_of_the_newest_interval_that_has_ended() -> None:
    """Broken: an experiment would not find what the nights have made, or hold another day against them."""
    new_york = ["2013-02-08T05:00:00+00:00", "2013-02-09T05:00:00+00:00"]
    for instant in ("2013-02-09", "2013-02-09T05:00:00Z", "2013-02-09 23:59", "2013-02-09T00:00:00-05:00"):
        assert interval("flight_ranking", "--as-of", instant) == new_york, instant
    assert interval("flight_ranking", "--as-of", "2013-02-09T04:59:59Z")[1] == "2013-02-08T05:00:00+00:00"
    assert interval("flight_ranking")[1] == "2014-01-01T05:00:00+00:00", "the pipeline's end_date"
    assert interval("digits") == ["2026-11-25T00:00:00+00:00", "2026-11-26T00:00:00+00:00"], "without a schedule"


def test_settings_take_the_place_of_those_of_the_file() -> None:
    experiment = asked(
        "flight_ranking", "--set", "train.learning_rate=3e-5", "--set", "train.model_args.hidden=16", "--set",
        "tune=null", "--set", "evaluate.rules.0.improvement=0.5", "--set", "train.schedule={kind: cosine}",
        "--set", "validate.newest.leave_out=[precip]",
    )  # fmt: skip
    train = experiment.pipeline.train
    assert (train.learning_rate, train.model_args, train.schedule.kind) == (3e-5, {"hidden": 16}, "cosine")
    assert experiment.pipeline.tune is None
    assert experiment.pipeline.model_dump(mode="json")["evaluate"]["rules"][0]["improvement"] == 0.5
    assert experiment.pipeline.validate_.newest is not None
    assert experiment.pipeline.validate_.newest.leave_out == ["precip"]
    assert experiment.dag.get_task("train").settings["learning_rate"] == 3e-5
    assert "tune" not in experiment.dag.task_ids


def test_a_pipeline_may_be_named_by_its_file_and_seeds_count_on() -> None:
    experiment = asked(str(REPOSITORY / "dags/digits.pipeline.yaml"), "--seeds", "3", "--name", "wider")
    assert experiment.name == f"{user()}/digits.wider"
    assert experiment.seeds == [0, 1, 2]
    assert asked("digits").name == f"{user()}/digits"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["digits", "--set", "evaluate.metrics.0.name=auc"],
            "evaluate.metrics.0 is 'macro_f1', and has no settings below",
        ),
        (["digits", "--set", "train.epochs.x=1"], "train.epochs is 8, and has no settings below it"),
        (["digits", "--set", "train.model_args.a={{ ds }}"], "the value is not valid YAML"),
        (["digits", "--sample", "2"], "^--set features.sample=2: features.sample must be .*1.*, got 2"),
        (["flight_rankin"], r"there is no pipeline 'flight_rankin' in \S+dags: did you mean flight_ranking\?"),
        (["other.pipeline.yaml"], "other.pipeline.yaml: there is no such file"),
        (["digits", "--as-of", "yesterday"], "--as-of yesterday: .*; write it as 2013-02-09 or 2013-02-09T05:00:00Z"),
        (["digits", "--as-of", "2030-01-01"], "--as-of 2030-01-01 is yet to come"),
        (["digits", "--until", "tune"], "--until tune: digits has no search"),
        (["digits", "--seeds", "2", "--until", "features"], "--seeds: with --until features nothing is trained"),
        (["digits", "--set", "train.epochs"], "--set train.epochs: write STEP.KEY=VALUE"),
        (["digits", "--set", "epochs=3"], "--set epochs=3: 'epochs' is no step of an experiment; these are ingest, "),
        (["digits", "--set", "promote.approval=null"], "'promote' is no step of an experiment"),
        (["digits", "--set", "train.epochs=1", "--set", "train.epochs=2"], "train.epochs is given twice"),
        (
            ["flight_ranking", "--set", "train.learning_rate=3e-4"],
            "--set train.learning_rate=3e-4: what tune finds would take its place; add --set tune=null",
        ),
        (["digits", "--set", "train.epochs=0"], "^--set train.epochs=0: train.epochs must be .*1.*, got 0"),
        (
            ["digits", "--set", "train.epoch=3"],
            "^--set train.epoch=3: unknown key 'train.epoch'; did you mean 'epochs'",
        ),
        (["digits", "--set", "train.model_args={a"], "--set train.model_args={a: the value is not valid YAML"),
        (["digits", "--set", "evaluate.metrics.7=auc"], "evaluate.metrics is a list of 2: name an entry by its number"),
        (["digits", "--set", "train.objective=regression"], r"digits\.pipeline\.yaml:\d+:\d+: "),
        (["digits", "--set", "train.model_args={a: '{{ ds }}'}"], "train.model_args.a is a template"),
    ],
)
def test_mistakes_are_named_with_their_fix(arguments: Sequence[str], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        asked(*arguments)


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--seeds", "x"], ["--name", "My run"], ["--until", "promote"]])
def test_options_that_are_no_such_value_are_refused(wrong: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        asked("digits", *wrong)
    assert wrong[1] in capsys.readouterr().err


@pytest.mark.parametrize(("login", "name"), [("Ana.Maria", "ana_maria"), ("7of9", "user_7of9"), ("ana", "ana")])
def test_users_have_a_name_that_the_store_takes(login: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", login)
    assert user() == name
