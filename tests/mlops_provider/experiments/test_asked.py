"""What a person asks for is checked before anything costs time, and the message says what would do."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store, from_url
from project import REPOSITORY
from turns import SEED

from mlops.contract.section import SpecError
from mlops_provider.experiments.arguments import add_arguments
from mlops_provider.experiments.asked import Experiment, file_of, user
from mlops_provider.experiments.names import person_of
from mlops_provider.experiments.request import Request
from mlops_provider.spec_file import load_pipeline

NOW = datetime(2026, 11, 26, 12, 30, tzinfo=UTC)
Asked = Callable[..., Experiment]


def asked(*arguments: str) -> Experiment:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(arguments)
    return Experiment.of(file_of(options.pipeline, REPOSITORY / "dags"), Request.of_options(options), user(), NOW)


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


def test_an_experiment_may_ask_for_other_resources() -> None:
    experiment = asked(
        "flight_ranking", "--set", "pods.train.memory=64Gi", "--set", "pods.train.gpus=4", "--set", "pods.all.cpu=2",
        "--launcher", "pod",
    )  # fmt: skip
    train, ingest = experiment.pipeline.pods_of("train"), experiment.pipeline.pods_of("ingest")
    assert (train["memory"], train["gpus"], train["cpu"], ingest["cpu"]) == ("64Gi", 4, "2", "2")
    assert "memory" not in ingest


def test_a_pipeline_may_be_named_by_its_file_and_seeds_count_on() -> None:
    experiment = asked(str(REPOSITORY / "dags/digits.pipeline.yaml"), "--seeds", "3", "--name", "wider")
    assert experiment.name == f"{user()}/digits.wider"
    assert [*experiment.seeds] == [0, 1, 2]
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
        (
            ["digits", "--dataset", "abcdef", "--as-of", "2020-01-01"],
            "--as-of 2020-01-01: --dataset abcdef is of an int",
        ),
        (
            ["digits", "--dataset", "abcdef", "--until", "ingest"],
            "--until ingest: with --dataset abcdef nothing is left",
        ),
        (
            ["digits", "--dataset", "abcdef", "--set", "ingest.window=1"],
            "--set ingest.window: --dataset abcdef is as it",
        ),
        (["digits", "--set", "train.epochs"], "--set train.epochs: write STEP.KEY=VALUE"),
        (["digits", "--set", "epochs=3"], "--set epochs=3: 'epochs' is no step of an experiment; these are ingest, "),
        (["digits", "--set", "promote.approval=null"], "'promote' is no step of an experiment"),
        (
            ["digits", "--set", "pods.train.service_account=x"],
            "pods.train.service_account=x: of pods an experiment has cpu, ",
        ),
        (["digits", "--set", "pods.train={gpus: 1}"], "of pods an experiment has cpu, "),
        (["digits", "--set", "pods.promote.cpu=1"], "of pods an experiment has cpu, "),
        (["digits", "--set", "pods.train.memory=lots"], "pods.train.memory"),
        (["digits", "--set", "train.epochs=1", "--set", "train.epochs=2"], "train.epochs is given twice"),
        (
            ["flight_ranking", "--set", "train.learning_rate=3e-4"],
            "--set train.learning_rate=3e-4: what tune finds would take its place; add --set tune=null",
        ),
        (["digits", "--set", "train.epochs=-1"], "^--set train.epochs=-1: train.epochs must be .*0.*, got -1"),
        (
            ["digits", "--set", "train.epochs=0"],
            "^--set train.epochs=0: .* takes the weights of initialise as they are",
        ),
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


ASKED = {
    "settings": {}, "sample": None, "as_of": None, "dataset": None, "until": "evaluate", "seeds": 1, "name": None
}  # fmt: skip


def in_airflow(pipeline: str, **params: Any) -> Experiment:
    return Experiment.of(REPOSITORY / f"dags/{pipeline}.pipeline.yaml", Request.of_params(ASKED | params), "ana", NOW)


def test_airflow_takes_settings_as_the_command_line_does() -> None:
    settings = {
        "train.epochs": 2, "train.model_args": {"hidden": 16}, "tune": None, "evaluate.rules.0.improvement": 0.5
    }  # fmt: skip
    experiment = in_airflow("flight_ranking", settings=settings, sample=0.5, name="wider", seeds=2)
    train = experiment.pipeline.train
    assert (train.epochs, train.model_args, experiment.pipeline.tune) == (2, {"hidden": 16}, None)
    assert experiment.pipeline.features.sample == 0.5
    assert (experiment.name, [*experiment.seeds]) == ("ana/flight_ranking.wider", [2013, 2014])
    assert in_airflow("digits", settings={"train.model": "include.digits.model:build_model"}).pipeline.train.model


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ingest.sources.flights.path": "/etc/passwd"}, "settings ingest.sources.flights.path: in Airflow an experi"),
        ({"ingest.sources.x": {"path": "/etc/x.csv"}}, "settings ingest.sources.* reads what its pipeline"),
        (
            {"validate.serving_log": {"path": "s3://others/log", "event_time": "at"}},
            "settings validate.serving_log",
        ),
        ({"train.initialise": {"path": "s3://others/w", "sha256": "0" * 64}}, "settings train.initialise.path"),
        ({"train.initialise": {"model": "other@champion"}}, "settings train.initialise.model: in Airflow an experim"),
        (
            {
                "train.initialise": {
                    "model": "other/1",
                    "found": {"key": "models/x", "sha256": "0" * 64, "num_bytes": 1, "version": "1"},
                }
            },
            "settings train.initialise.found",
        ),
        ({"evaluate.metrics": ["subprocess:getoutput@10"]}, "settings evaluate.metrics.*runs code of recipes only"),
        ({"ingest.transform": "include/flight_ranking/../../x.sql"}, "ingest.transform must be an import path such"),
        ({"train.model": "torch.nn:Linear"}, "settings train.model=torch.nn:Linear: .* runs code of recipes only"),
        ({"validate.schema_path": "/etc/passwd"}, "settings validate.schema_path: in Airflow"),
        ({"ingest.transform": "/srv/others.sql"}, "ingest.transform must be an import path such as include"),
        ({"train": {"epochs": 1}}, "settings train={epochs: 1}: "),
        ({"epochs": 1}, "settings epochs=1: 'epochs' is no step of an experiment"),
        ({"train.epochs": "many"}, "settings train.epochs="),
    ],
)
def test_airflows_rights_are_not_for_everything(settings: dict[str, Any], message: str) -> None:
    """Broken: whoever may try a pipeline out could read what Airflow may read, or run any code as its steps do."""
    with pytest.raises(SpecError, match=message):
        in_airflow("flight_ranking", settings={"tune": None} | settings)


@pytest.mark.parametrize(
    ("path", "is_below"),
    [
        ("s3://data/fraud/2024/rows.parquet", True),
        ("s3://data/fraud", True),
        ("/srv/deliveries/a/*.csv", True),
        ("s3://data/fraudulent/rows.parquet", False),
        ("s3://data/fraud/../secret/rows.parquet", False),
        ("s3://data/fraud/%2e%2e/secret/rows.parquet", False),
        ("s3://data/fraud/.\t./secret/rows.parquet", False),
        ("s3://data/fraud/.. /*/*.csv", False),
        ("s3://data/fraud/..#/rows.parquet", False),
        ("file:///srv/deliveries/x\\..\\..\\secret/rows.csv", False),
        ("/srv/deliveries/./x.csv", False),
        ("/srv/x.csv", False),
    ],
)
def test_sources_may_be_those_that_the_deployment_names(
    path: str, is_below: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: an experiment could read any bucket that the deployment can."""
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_SOURCES", "s3://data/fraud/ /srv/deliveries")
    settings = {"tune": None, "ingest.sources.flights.path": path}
    if is_below:
        sources = in_airflow("flight_ranking", settings=settings).pipeline.ingest.sources
        assert sources["flights"].model_dump()["path"] == path
        return
    with pytest.raises(SpecError, match=r"what lies below s3://data/fraud/, /srv/deliveries: these are experiment_so"):
        in_airflow("flight_ranking", settings=settings)
    # Nothing else of what is read is theirs to name.
    for other in ({"ingest.sources.flights": {"path": path}}, {"validate.schema_path": "/srv/deliveries/x"}):
        with pytest.raises(SpecError):
            in_airflow("flight_ranking", settings={"tune": None} | other)


SPELLINGS = [
    ".", "..", "/", "%2e", "%2E", "\t", "\\", "#", "?", " ", "a", "%2f", "\n", "%5c", "*", "@", ":", "%00", "%09",
    "%252e", "é", "\u2028", "[.]", ";",
]  # fmt: skip


def test_no_spelling_of_a_place_leads_out_of_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: what reads an object store takes a place for a URL, whose parser knows more dots than one sees."""
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_SOURCES", "s3://data/fraud/")
    chance, taken = random.Random(SEED), 0
    digits = REPOSITORY / "dags/digits.pipeline.yaml"
    before = load_pipeline(digits)
    for _ in range(200):
        place = "s3://data/fraud/" + "".join(chance.choices(SPELLINGS, k=chance.randint(1, 9)))
        request = Request(changes={("ingest", "sources", "images", "path"): json.dumps(place)}, is_remote=True)
        try:
            request.checked(lambda changes: load_pipeline(digits, changes) if changes else before)
        except SpecError:
            continue
        taken += 1
        folders = ["/".join(place.split("/")[:number]) for number in range(4, place.count("/") + 2)]
        for opened in filter(None, map(_opened, folders)):
            assert f"{opened}/".startswith("data/fraud/"), place
    assert taken > 20


def _opened(folder: str) -> str | None:
    """What a source's reader would list; None where it cannot be opened."""
    try:
        store = from_url(folder, region="us-east-1", access_key_id="x", secret_access_key="y")
    except (BaseError, ValueError):
        return None
    assert isinstance(store, S3Store)
    return f"{store.config['bucket']}/{store.prefix or ''}"


def test_airflow_runs_no_class_of_any_package() -> None:
    """Broken: an estimator may be any class, such as one that starts a process."""
    settings = {
        "train.learner": "sklearn", "train.learner_settings": {"estimator": "subprocess:Popen"}, "train.metric": "mae",
        "train.objective_settings": {}, "train.metrics": [], "train.early_stopping": None, "train.epochs": 1,
        "evaluate.metric": "mae", "evaluate.metrics": [], "evaluate.rules": [{"improvement": 0.1}],
    }  # fmt: skip
    with pytest.raises(SpecError, match="settings train.learner_settings.estimator=subprocess:Popen: in Airflow an"):
        in_airflow("flight_arrival", settings=settings)


VALUES = [
    1e-5, 1e16, 0.1, -3, True, None, "on", "1e-5", "2013-02-09", "", "~", "null", "a: b", " x ", "two\nlines",
    "ö😀\x01", [1, [2.5, "x"]], {"a": {"b": []}}, "%", "{", "0x1F", "1_000", "x" * 500,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_a_value_arrives_as_it_was_given(value: object) -> None:
    """Broken: 1e-05, as JSON writes it, would be a text, and nobody would be told."""
    args = in_airflow("digits", settings={"train.model_args.given": value}).pipeline.train.model_args
    assert args["given"] == value
    assert type(args["given"]) is type(value)


def test_a_sample_is_given_once() -> None:
    with pytest.raises(SpecError, match=r"settings features.sample=0.1: features.sample is given twice"):
        in_airflow("digits", settings={"features.sample": 0.5}, sample=0.1)


@pytest.mark.parametrize("wrong", [["--seeds", "0"], ["--seeds", "x"], ["--name", "My run"], ["--until", "promote"]])
def test_options_that_are_no_such_value_are_refused(wrong: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        asked("digits", *wrong)
    assert wrong[1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("login", "name"),
    [
        ("Ana.Maria", "ana_maria885da115"),
        ("7of9", "user_7of97f5ddf87"),
        ("ana", "ana"),
        ("ana_maria", "ana_maria"),
        ("анна", "user_____80e29e9a"),
    ],
)
def test_users_have_a_name_that_the_store_takes(login: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", login)
    assert user() == name


def test_no_two_logins_have_one_name() -> None:
    """Broken: two people find each other's results, and remove them."""
    logins = ("ana.b", "ana-b", "ana_b", "Ana_B", "ana@b", "ANA_B", "user_7", "7", "ánáb", "ana b")
    assert len({*map(person_of, logins)}) == len(logins)
