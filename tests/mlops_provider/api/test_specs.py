"""Whole pipelines in requests, before an Airflow of dictionaries."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from project import REPOSITORY
from rest_world import NAME, World

from mlops.contract.section import SpecError
from mlops_provider.experiments.request import Request
from mlops_provider.experiments.specs import refuse_changed, spec_settings, steps_digest
from mlops_provider.section_file import read_document, value_of
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import changed_pipeline

FILE = REPOSITORY / "dags" / f"{NAME}.pipeline.yaml"
SPEC = read_document(Pipeline, FILE, "a pipeline")
SOURCES = SPEC["ingest"]["sources"]


def changed(**sections: Any) -> dict[str, Any]:
    """The pipeline with other sections; None: without."""
    found = copy.deepcopy(SPEC) | sections
    return {name: value for name, value in found.items() if value is not None}


def settings_of(world: World, body: dict[str, Any]) -> Any:
    status, answer = world.ask("POST", "/runs", {"as_of": "2013-02-09", **body})
    assert status == 201, answer
    return world.triggered[-1]["conf"].get("settings", {})


def test_what_a_spec_changes_is_tried_out(world: World) -> None:
    """Broken: a whole pipeline would have to be deployed before anybody may know what comes out."""
    assert settings_of(world, {"spec": SPEC}) == {}
    train = SPEC["train"] | {"epochs": 5, "weight_decay": 0.1}
    assert settings_of(world, {"spec": changed(train=train)}) == {"train.epochs": 5, "train.weight_decay": 0.1}
    assert settings_of(world, {"spec": changed(tune=None)}) == {"tune": None}
    del train["seed"]
    assert settings_of(world, {"spec": changed(train=train)}) == {"train": train}, "what is left out has its default"
    rules = [{"improvement": 0.01, "seed_noise": SPEC["evaluate"]["rules"][0]["seed_noise"]}]
    rules += SPEC["evaluate"]["rules"][1:]
    found = settings_of(world, {"spec": changed(evaluate=SPEC["evaluate"] | {"rules": rules})})
    assert found == {"evaluate.rules.0.improvement": 0.01}
    only = {step: SPEC[step] for step in ("ingest", "validate", "features", "train", "evaluate")}
    assert settings_of(world, {"pipeline": NAME, "spec": only}) == {"tune": None}, "what no experiment does is left out"


def test_settings_count_on_top_of_a_spec(world: World) -> None:
    """Broken: one of two values would count, and nobody knows which."""
    train = SPEC["train"] | {"epochs": 5, "seed": 4}
    body = {"spec": changed(train=train, tune=None), "settings": {"train.epochs": 6, "train.learning_rate": 0.01}}
    wanted = {"tune": None, "train.epochs": 6, "train.seed": 4, "train.learning_rate": 0.01}
    assert settings_of(world, body) == wanted
    wider = changed(train=train | {"model_args": {"hidden": 7}}, tune=SPEC["tune"] | {"trials": 50})
    body = {"spec": wider, "settings": {"train.model_args": {"hidden": 9}, "tune": None}}
    assert settings_of(world, body) == {"train.epochs": 5, "train.seed": 4, **body["settings"]}
    sampled = changed(features=SPEC["features"] | {"sample": 0.5})
    assert settings_of(world, {"spec": sampled}) == {"features.sample": 0.5}
    assert settings_of(world, {"spec": sampled, "sample": 0.1}) == {}


def test_what_pods_ask_for_may_differ_and_nothing_else_of_them(world: World) -> None:
    """Broken: who needs more memory cannot say so in the file that is tried out; or reads another's secrets."""
    larger = {"spec": SPEC | {"pods": {"train": {"memory": "8Gi"}}}}
    assert settings_of(world, larger) == {"pods.train.memory": "8Gi"}
    for pods in ({"train": {"service_account": "root"}}, {"train": 7}, 7):
        status, said = world.ask("POST", "/runs", {"as_of": "2013-02-09", "spec": SPEC | {"pods": pods}})
        assert (status, said.startswith("spec.pods")) == (422, True), said


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"spec": changed(train=SPEC["train"] | {"epochs": -1})}, 422, "spec.train.epochs=-1: train.epochs must be"),
        ({"spec": changed(train=SPEC["train"] | {"epoch": 3})}, 422, "spec.train.epoch=3: unknown key 'train.epoch'"),
        ({"spec": changed(train=7)}, 422, "spec.train=7: train must be"),
        ({"spec": changed(features=None)}, 422, "spec.features is missing: a spec is a whole pipeline"),
        (
            {"spec": changed(schedule="0 5 * * *")}, 422,
            'spec.schedule="0 5 * * *": an experiment takes it from the pipeline\'s file, which says "0 0 * * *"',
        ),
        ({"spec": changed(retries=3)}, 422, "spec.retries=3: an experiment takes it from the pipeline's file"),
        ({"spec": changed(trian=SPEC["train"])}, 422, "a pipeline has no 'trian': did you mean train?"),
        ({"spec": changed(pipeline="flights")}, 404, "there is no pipeline 'flights' that may be tried out: there are"),
        ({"spec": changed(pipeline="My flights")}, 422, "spec.pipeline is 'My flights': give the name of a pipeline"),
        ({"spec": changed(pipeline=7)}, 422, "spec.pipeline is 7: give the name of a pipeline that Airflow has"),
        ({"spec": changed(pipeline=None)}, 422, "nothing says which pipeline: give pipeline, its name, or a spec"),
        ({}, 422, "nothing says which pipeline: give pipeline, its name, or a spec"),
        ({"spec": SPEC, "pipeline": "digits"}, 422, "pipeline is digits, and spec.pipeline is flight_ranking: leave"),
        ({"spec": "pipeline: flight_ranking"}, 422, "spec must be"),
        (
            {"spec": changed(train=SPEC["train"] | {"learning_rate": 1})}, 422,
            "spec.train.learning_rate=1: what tune finds would take its place",
        ),
        (
            {"spec": changed(features=SPEC["features"] | {"feature_set": "os:environ"})}, 422,
            "spec.features.feature_set=os:environ: in Airflow an experiment runs code of recipes only",
        ),
        (
            {"spec": changed(ingest=SPEC["ingest"] | {"sources": SOURCES | {"planes": {"path": "/etc/passwd"}}})}, 422,
            "spec.ingest.sources.planes.path: in Airflow an experiment reads what its pipeline reads",
        ),
        ({"spec": changed(ingest=SPEC["ingest"] | {"window": 60}), "dataset": "4f1f0c"}, 422, "spec.ingest.window"),
        ({"pipeline": NAME, "priority": "high"}, 422, "priority must be 'normal' or 'low', got 'high'"),
    ],
)  # fmt: skip
def test_mistakes_in_a_spec_are_told_by_their_places(
    world: World, body: dict[str, Any], status: int, said: str
) -> None:
    """Broken: it would be told of settings that nobody gave, or run with others than it says."""
    found, detail = world.ask("POST", "/runs", body if "dataset" in body else {"as_of": "2013-02-09", **body})
    assert (found, said in detail) == (status, True), detail
    assert world.triggered == []


def value(chance: random.Random, depth: int = 3) -> Any:
    """A value of JSON."""
    kind = chance.randrange(6 if depth else 4)
    if kind == 4:
        return [value(chance, depth - 1) for _ in range(chance.randrange(3))]
    if kind == 5:
        return {each: value(chance, depth - 1) for each in ("a", "b", "b.c", "0") if chance.random() < 0.6}
    return (None, chance.random() < 0.5, chance.randrange(2), chance.choice(["a", "1", ""]))[kind]


@pytest.mark.parametrize("seed", range(8))
def test_the_file_with_what_differs_is_the_spec(seed: int) -> None:
    """Broken: another pipeline than the one that was sent is trained, whatever its arguments are."""
    chance = random.Random(seed)
    for _ in range(60):
        # Alike, but for a part: else the whole of them differs.
        before = {name: value(chance) for name in "xyz"}
        after = {name: value(chance) if chance.random() < 0.4 else each for name, each in before.items()}
        own, other = (changed(tune=None, train=SPEC["train"] | {"model_args": each}) for each in (before, after))
        text = json.dumps(own)  # which is YAML
        settings = json.loads(json.dumps(spec_settings(text, other), sort_keys=True))  # as a database keeps it
        options = dict.fromkeys(("sample", "as_of", "dataset", "name")) | {"until": "train", "seeds": 1}
        request = Request.of_params({"settings": settings, **options})
        found = changed_pipeline(text, NAME, request.changes, "settings")
        wanted = changed_pipeline(json.dumps(other), NAME, {}, "settings")
        one, same = (json.dumps(each.model_dump(mode="json"), sort_keys=True) for each in (found, wanted))
        assert one == same


FILE_WITH_ALIASES = """
pipeline: toy
tune: &whole {space: {learning_rate: &range {low: 1e-4, high: 1e-2}, weight_decay: *range}}
"""


def test_what_an_alias_names_is_two_settings() -> None:
    """Broken: another value for one setting would be one for all that share the alias."""
    document = value_of(FILE_WITH_ALIASES, "file")
    document["tune"]["space"]["learning_rate"]["low"] = 1
    assert document["tune"]["space"]["weight_decay"]["low"] == "1e-4"


@pytest.mark.parametrize("text", ["train: {1: a, b: c}", "train: {1: a, true: b}"])
def test_keys_that_are_no_text_are_compared_as_json_has_them(text: str) -> None:
    spec = json.loads(json.dumps(value_of(text, "file")))
    assert spec_settings(text, spec) == {}


def test_a_file_that_has_changed_is_told(tmp_path: Path) -> None:
    """Broken: what differs from the old file is tried out with the new one, which is neither."""
    file = tmp_path / FILE.name
    file.write_text(FILE.read_text())
    digest = steps_digest(file.read_text())
    refuse_changed(file, None)
    refuse_changed(file, digest)
    file.write_text(FILE.read_text().replace("owner: travel-search", "owner: search"))
    refuse_changed(file, digest)
    file.write_text(FILE.read_text().replace("epochs: 3", "epochs: 20"))
    with pytest.raises(SpecError, match="has been changed since a whole pipeline was sent.* send it again"):
        refuse_changed(file, digest)


def test_a_key_is_one_request_whatever_the_file_says(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: what is sent again after a deployment is refused; or a wrong one is answered with the run of another."""
    key = {"headers": {"Idempotency-Key": "mine"}}
    body = {"spec": changed(train=SPEC["train"] | {"epochs": 5}), "as_of": "2013-02-09"}
    status, first = world.ask("POST", "/runs", body, **key)
    assert status == 201, first
    assert first["asked"] == {"as_of": "2013-02-09", "settings": {"train.epochs": 5}}
    (asked,) = world.triggered
    assert asked["conf"]["steps_sha256"] == steps_digest(FILE.read_text())
    world.runs[f"{NAME}.experiments", asked["dag_run_id"]] = asked["conf"]
    monkeypatch.setattr(world, "file", lambda dag_id: FILE.parent / "digits.pipeline.yaml")
    again = world.ask("POST", "/runs", body, **key)
    assert (again[0], again[1]["id"]) == (200, first["id"])
    for other in (body | {"spec": SPEC}, body | {"spec": changed(trian={})}, {"pipeline": NAME, "as_of": "2013-02-09"}):
        found = world.ask("POST", "/runs", other, **key)
        assert (found[0], "the Idempotency-Key was given with another request" in found[1]) == (422, True), found
    assert len(world.triggered) == 1
