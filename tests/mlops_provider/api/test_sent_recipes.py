"""Code that is sent with an experiment: whose, what and where it may run is decided before anything is kept."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from project import REPOSITORY
from rest_world import NAME, World

from mlops.contract.code_files import code_digest
from mlops.contract.recipe_bundles import MOST_BYTES, pack
from mlops.contract.section import SpecError
from mlops_provider.api import idempotency
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.experiments.asked import Experiment
from mlops_provider.experiments.dags import parameters
from mlops_provider.experiments.request import Request
from mlops_provider.experiments.sent_recipes import sent_recipes
from mlops_provider.spec_file import load_pipeline
from mlops_provider.submit import _recipes

RECIPE = f"include/{NAME}"
PLACE = f"experiments/ana/{NAME}"


def body(data: bytes, recipe: str = RECIPE, **more: Any) -> dict[str, Any]:
    return {"pipeline": NAME, "until": "ingest", "recipes": {recipe: base64.b64encode(data).decode()}, **more}


@pytest.fixture(autouse=True)
def may(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """What Airflow lets the asker trigger."""
    found = {f"{NAME}.experiments": True}

    def rights(dag_ids: list[str], user: Any, method: str) -> Callable[..., bool]:
        assert (dag_ids, user.get_name(), method) == ([f"{NAME}.experiments"], "ana", "POST")
        return lambda dag_id, what: what == "RUN" and found[dag_id]

    monkeypatch.setattr(idempotency, "rights", rights)
    return found


@pytest.fixture
def data() -> bytes:
    return pack(REPOSITORY / RECIPE)


def test_what_was_sent_is_where_its_run_looks_for_it(
    world: World, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_CODE", "always")
    status, answer = world.ask("POST", "/runs", body(data), headers={"Idempotency-Key": "mine"})
    assert status == 201, answer
    recipes = world.triggered[0]["conf"]["recipes"]
    assert answer["asked"]["recipes"] == recipes == {RECIPE: hashlib.sha256(data).hexdigest()}
    with sent_recipes(PLACE, recipes, Deployment.load()) as found:
        assert found is not None
        assert code_digest([found.home / RECIPE]) == code_digest([REPOSITORY / RECIPE])
        assert (found.home / "dags").resolve() == REPOSITORY / "dags"
        (artifact,) = found.recipes.values()
        assert (tmp_path / "store" / artifact.key).read_bytes() == data
    assert not found.home.exists(), "nothing of it stays with the worker"
    # The same request is one run; with other code it is another one.
    world.runs[f"{NAME}.experiments", world.triggered[0]["dag_run_id"]] = world.triggered[0]["conf"]
    assert world.ask("POST", "/runs", body(data), headers={"Idempotency-Key": "mine"})[0] == 200
    status, said = world.ask(
        "POST", "/runs", {"pipeline": NAME, "until": "ingest"}, headers={"Idempotency-Key": "mine"}
    )
    assert (status, "another request" in said) == (422, True)
    (tmp_path / "store" / artifact.key).write_bytes(data[:-1])
    with pytest.raises(StepFailedError, match=rf"{RECIPE} as it was sent, .* is damaged: send it again"):  # noqa: SIM117
        with sent_recipes(PLACE, recipes, Deployment.load()):
            pass


def test_a_whole_pipeline_is_sent_with_its_code(
    world: World, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: of the two that somebody has changed one would count."""
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_CODE", "always")
    spec = json.loads(json.dumps(yaml.safe_load(World.file(NAME).read_text()), default=str))
    spec["train"]["epochs"] = 9
    asked = body(data) | {"spec": spec}
    status, answer = world.ask("POST", "/runs", asked, headers={"Idempotency-Key": "whole"})
    assert status == 201, answer
    conf = world.triggered[0]["conf"]
    assert (conf["settings"], conf["recipes"]) == ({"train.epochs": 9}, {RECIPE: hashlib.sha256(data).hexdigest()})
    with sent_recipes(PLACE, conf["recipes"], Deployment.load()) as found:
        assert found is not None
    world.runs[f"{NAME}.experiments", world.triggered[0]["dag_run_id"]] = conf
    other = asked | {"recipes": {}}
    status, said = world.ask("POST", "/runs", other, headers={"Idempotency-Key": "whole"})
    assert (status, "another request" in said) == (422, True)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [NAME]),
        ({"train.epochs": 2}, [NAME]),
        ({"train.model": "include.digits.model:build_model"}, ["digits", NAME]),
        ({"ingest": None, "features.feature_set": "include.idea.features:F", "train": {"model": "a.b:c"}}, ["idea"]),
    ],
)
def test_what_is_sent_is_what_the_pipeline_runs_with_its_settings(settings: Any, expected: list[str]) -> None:
    """Broken: somebody's idea is left at home, and Airflow runs its own code, or fails."""
    options = argparse.Namespace(pipeline=NAME, home=REPOSITORY)
    assert _recipes(options, settings) == [REPOSITORY / "include" / each for each in expected]


@pytest.mark.parametrize(
    ("allowed", "change", "said"),
    [
        (
            "never",
            {},
            f"recipes.{RECIPE}: no code may be sent with experiments here ([mlops] experiment_code is never)",
        ),
        ("pods", {}, "([mlops] experiment_code is pods), and this pipeline's steps run by the launcher 'process'"),
        ("often", {}, "[mlops] experiment_code is 'often'; it must be never, pods or always"),
        ("always", {"recipe": "include/digits"}, f"recipes.include/digits: {NAME} runs code of {RECIPE}; send that"),
        ("always", {"recipe": "include/../plugins"}, "include/../plugins"),
        ("always", {"recipe": "plugins/mlops_provider"}, "plugins/mlops_provider"),
        ("always", {"data": b"no zip"}, "it is no zip"),
        ("always", {"settings": {"train.epochs": 0}}, "train.epochs"),
        ("always", {"data": bytes(MOST_BYTES + 3)}, "more than 8 MB of code"),
    ],
)
def test_what_may_not_run_is_refused_and_not_kept(
    world: World, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: str, change: Any, said: str
) -> None:
    """Broken: whoever may try a pipeline out would read Airflow's secrets, by code of their own."""
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_CODE", allowed)
    status, answer = world.ask("POST", "/runs", body(**({"data": data} | change)))
    assert status in (422, 500), answer
    assert said in str(answer)
    assert world.triggered == []
    assert not (tmp_path / "store/experiments").exists()


def test_who_may_not_trigger_keeps_nothing(
    world: World, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may: dict[str, bool]
) -> None:
    """Broken: a viewer could fill the store."""
    monkeypatch.setenv("AIRFLOW__MLOPS__EXPERIMENT_CODE", "always")
    may[f"{NAME}.experiments"] = False
    status, said = world.ask("POST", "/runs", body(data))
    assert (status, "you may not trigger" in said) == (403, True)
    assert not (tmp_path / "store/experiments").exists()


def test_code_that_is_no_base64_is_named(world: World) -> None:
    status, answer = world.ask("POST", "/runs", body(b"") | {"recipes": {RECIPE: "a*b"}})
    assert (status, "recipes" in answer) == (422, True), answer


def test_in_pods_only_means_by_which_launcher_the_steps_run() -> None:
    own = replace(Deployment.load(), experiment_code="pods")
    assert own.why_not_code("pod") is None
    assert replace(own, launcher="pod").why_not_code(None) is None
    for launcher in ("process", "package:Launcher"):
        assert f"by the launcher {launcher!r}" in str(own.why_not_code(launcher))
    assert replace(own, experiment_code="always").why_not_code("process") is None


def test_a_run_that_is_triggered_by_hand_is_checked_too(data: bytes) -> None:
    """Broken: Airflow's own form would run what REST refuses."""
    file = REPOSITORY / f"dags/{NAME}.pipeline.yaml"
    params = {name: param.value for name, param in parameters(load_pipeline(file)).items()}
    request = Request.of_params(params | {"recipes": {RECIPE: hashlib.sha256(data).hexdigest()}})
    with pytest.raises(SpecError, match="no code may be sent with experiments here"):
        Experiment.of(file, request, "ana", datetime.now(UTC))
