"""What was committed and is gone: a cleared task makes it again to the same bits, or says that it cannot."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import toy_model
from committed_refs import chain
from mlflow import MlflowClient

from mlops.contract.refs import INPUT, Artifact, CheckpointRef, FeaturesRef, ModelVersionRef, Ref, ReportRef, named_in
from mlops.contract.step import Failure, StepInput
from mlops.data.snapshots.deprecation import deprecate
from mlops.process import ProcessSettings
from mlops.steps.execution import find_committed
from mlops.store import Store

FEATURES = {"feature_set": "include.toy.features:FEATURES", "online": None}


def cleared(document: StepInput) -> StepInput:
    """As Airflow tells a task that was cleared."""
    return dataclasses.replace(document, run=dataclasses.replace(document.run, try_number=3))


def contents(store: Store, place: str) -> dict[str, bytes]:
    return {key: store.get(key) for key in store.list(place)}


@pytest.fixture
def document(project: Any) -> StepInput:
    (project.home / "include/toy/features.py").write_text(toy_model.features(grouped=True))
    data = toy_model.snapshot(project.store, project.home, toy_model.rows())
    found: StepInput = project.step_input("features", FEATURES, data)
    return found


def all_of(store: Store, ref: Ref) -> list[Artifact]:
    manifest = store.read(ref.artifacts["manifest"])
    return [*ref.artifacts.values(), *named_in(manifest)]


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(lambda store, ref: named_in(store.read(ref.artifacts["manifest"]))[:1], id="a shard"),
        pytest.param(lambda store, ref: [ref.artifacts["manifest"]], id="the manifest"),
        pytest.param(lambda store, ref: [ref.artifacts[INPUT]], id="what it was told"),
        pytest.param(all_of, id="everything but ref.json"),
    ],
)
@pytest.mark.parametrize("cut", [False, True], ids=["gone", "cut short"])
def test_a_cleared_task_puts_back_what_is_gone(
    project: Any, run_step: Any, document: StepInput, chosen: Callable[[Store, Ref], Sequence[Artifact]], cut: bool
) -> None:
    """Broken: "already committed: nothing to do" would be said for ever, and every training fail on what is gone."""
    store: Store = project.store
    ref = run_step(project, document)
    assert isinstance(ref, FeaturesRef), ref
    before = contents(store, ref.place)
    dataset = ref.parent.parent
    deprecate(store, dataset.name, dataset.version, reason="doubled rows", by="someone")
    for artifact in chosen(store, ref):
        store.delete([artifact.key])
        if cut:
            store.put(artifact.key, before[artifact.key][:-1])
    assert run_step(project, cleared(document)) == ref
    assert contents(store, ref.place) == before
    assert find_committed(cleared(document), deployment(project)) == ref


def deployment(project: Any) -> ProcessSettings:
    return ProcessSettings(
        home=project.home, store=project.store.uri, tracking_uri="", result_path=project.home / "result.json", rank=0
    )


def test_another_result_replaces_nothing_and_is_said(project: Any, run_step: Any, document: StepInput) -> None:
    """Broken: who trained on the features that are gone would have trained on others, and nobody could tell."""
    store: Store = project.store
    ref = run_step(project, document)
    (shard, *_) = named_in(store.read(ref.artifacts["manifest"]))
    store.delete([shard.key])
    before = contents(store, ref.place)
    recipe = project.home / "include/toy/features.py"
    recipe.write_text(recipe.read_text().replace('Standardise("hour"), ', ""))
    failure = run_step(project, cleared(document))
    assert isinstance(failure, Failure)
    assert (failure.type, failure.retryable) == ("LostObjectsError", False)
    for said in (shard.key, shard.sha256, "manifest is now", f"delete {ref.place}/ref.json and clear this task"):
        assert said in failure.message
    assert failure.details["objects"] == [shard.key]
    assert {key: store.get(key) for key in before} == before
    assert store.committed(ref.place) == ref


@pytest.mark.parametrize("step", ["register", "promote"])
def test_what_acted_once_is_not_done_again(project: Any, run_step: Any, step: str) -> None:
    """Broken: the clear of an old night would put its version into production again."""
    store: Store = project.store
    parent = chain()[ReportRef if step == "register" else ModelVersionRef]
    document = project.step_input(step, {"action": "promote"}, parent)
    told = json.dumps(json.loads(document.dump()), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    artifact = store.put_artifact(document.place, "input.json", told)
    version = dataclasses.replace(chain()[ModelVersionRef], place=document.place, artifacts={INPUT: artifact})
    store.commit(version)
    store.delete([artifact.key])
    assert run_step(project, cleared(document)) == version
    assert store.read(artifact) == told

    store.delete([artifact.key])
    other = dataclasses.replace(document, run=dataclasses.replace(document.run, run_id="another"))
    failure = run_step(project, other)
    assert isinstance(failure, Failure)
    assert (failure.type, artifact.key in failure.message) == ("LostObjectsError", True)
    assert "not done again" in failure.message


def test_an_evaluation_is_taken_from_mlflow_and_not_done_again(
    project: Any, run_step: Any, toy_checkpoint: Any
) -> None:
    """Broken: with another champion, or on another machine, the report of a model would say something else."""
    store: Store = project.store
    section = {
        "registered_model": project.pipeline, "metric": "ndcg@10", "metrics": [],
        "rules": [{"metric": "ndcg@10", "at_least": 0.0, "at_most": None}], "slices": [], "fairness": [],
        "price_per_gpu_hour": None,
    }  # fmt: skip
    document = project.step_input("evaluate", section, toy_checkpoint())
    report = run_step(project, document)
    assert isinstance(report, ReportRef), report
    before = contents(store, report.place)
    store.delete([artifact.key for artifact in report.artifacts.values()])
    assert run_step(project, cleared(document)) == report
    assert contents(store, report.place) == before

    page = report.artifacts["report"]
    store.delete([page.key])
    MlflowClient(project.tracking_uri).log_text(report.parent.tracking_run, "a later one", "evaluation/report.html")
    failure = run_step(project, cleared(document))
    assert isinstance(failure, Failure)
    assert (failure.type, page.key in failure.message) == ("LostObjectsError", True)
    assert not store.exists(page.key)


@pytest.mark.parametrize("checkpoints", [True, False], ids=["from its checkpoints", "trained again"])
def test_lost_weights_are_made_again(
    project: Any, run_step: Any, toy_checkpoint: Any, config: Any, checkpoints: bool
) -> None:
    """Broken: a disk's damage would end a model whose training can be repeated, or is still in its checkpoints."""
    store: Store = project.store
    ref = toy_checkpoint()
    told = StepInput.load(store.read(ref.artifacts[INPUT]).decode())
    before = {artifact.key: store.get(artifact.key) for artifact in ref.artifacts.values()}
    store.delete([ref.artifacts["weights"].key])
    if not checkpoints:
        store.delete(list(store.list(f"{ref.place}/checkpoints")))
    assert run_step(project, cleared(told)) == ref
    assert {key: store.get(key) for key in before} == before


def test_a_gang_makes_its_lost_weights_again(project: Any, toy_features: FeaturesRef, config: Any) -> None:
    """Broken: torchrun, which looks before it starts workers, would say that there is nothing to do; or ranks part."""
    document = project.step_input("train", config(epochs=1), toy_features)
    ref = project.start(document, processes=2).result()
    assert isinstance(ref, CheckpointRef), ref
    before = {artifact.key: project.store.get(artifact.key) for artifact in ref.artifacts.values()}
    project.store.delete([ref.artifacts["weights"].key, ref.artifacts[INPUT].key])
    again = project.start(cleared(document), processes=2, name="again")
    assert again.result() == ref, again.log
    assert {key: project.store.get(key) for key in before} == before
