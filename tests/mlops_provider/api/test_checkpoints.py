"""Checkpoints by REST: what is listed of a store, and what is asked for to go on from one."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from project import REPOSITORY
from rest_world import NAME, NIGHT, World

from mlops.contract.checkpoint_listing import copy_folder_of, folder_of
from mlops.contract.checkpoint_markers import RETIRED, RankFile, Saved
from mlops.contract.refs import Artifact, DatasetRef, ModelVersionRef
from mlops.contract.section import check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import RunIdentity, StepInput
from mlops.contract.training_events import TrainingEvent, events_of
from mlops_provider.curves import Tracked, Tracking
from mlops_provider.experiments.dags import TASK
from mlops_provider.spec_file import load_pipeline

PLACE = f"pipelines/{NAME}/train/20130209T050000Z-abc"
RUN = f"{NAME}@{NIGHT}"
OWN = load_pipeline(REPOSITORY / f"dags/{NAME}.pipeline.yaml").train.model_dump(mode="json")
STEPS = 10
"""Of an epoch."""


@pytest.fixture
def version(version_ref: ModelVersionRef, tmp_path: Path) -> str:
    """Of a snapshot that the pipeline has taken."""
    place = f"pipelines/{NAME}/ingest/20130209T050000Z-abc"
    told = Artifact(key=f"{place}/input.json", sha256="0" * 64, num_bytes=2)
    ref = version_ref.ancestor(DatasetRef)
    ref = replace(ref, place=place, name=NAME, artifacts={**ref.artifacts, "input": told})
    folder = tmp_path / "store" / place
    folder.mkdir(parents=True)
    (folder / "ref.json").write_text(json.dumps(ref.to_wire()))
    run = RunIdentity(
        pipeline=NAME, run_key="20130209T050000Z-abc", interval_start="2013-02-08T05:00:00+00:00",
        interval_end="2013-02-09T05:00:00+00:00", timezone="UTC", dag_id=NAME, task_id="ingest", run_id=NIGHT,
        try_number=1,
    )  # fmt: skip
    (folder / "input.json").write_text(StepInput(step="ingest", run=run, config={}).dump())
    return ref.version


@pytest.fixture
def save(tmp_path: Path) -> Any:
    """Puts a checkpoint into the store."""

    def save(
        step: int, *, place: str = PLACE, best: int | None = None, facts: Any = None, folder: str = "", **settings: Any
    ) -> Path:
        folder = folder or folder_of(place, step, 1)
        settings = {**OWN, **settings}
        ended = [
            {"epoch": n, "step": n * STEPS, "validation_metric": 0.5 + n / 100, "further_metrics": {"mrr": 0.25}}
            for n in range(1, step // STEPS + 1)
        ]
        of = {"settings": settings, "samples": "s", "dataset": "1" * 64, "code": "c", "optimizer": []}
        of = of if facts is None else of | facts
        saved = Saved(
            step=step,
            generation=1,
            meta={"history": ended, "training": of if settings else {}, "step": step},
            best_step=best,
            folder=folder,
            world_size=1,
            num_bytes=3,
            saved_at=1700000000.0,
            index=Artifact(key=f"{folder}/index.json", sha256="0" * 64, num_bytes=2),
            files=(RankFile(f"{folder}/rank-0000.bin", 3),),
        )
        path = tmp_path / "store" / folder
        path.mkdir(parents=True)
        (path / "index.json").write_bytes(b"{}")
        (path / "rank-0000.bin").write_bytes(b"abc")
        (path / "checkpoint.json").write_bytes(saved.dump())
        return path

    return save


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places of the trainings that MLflow knows of any run."""
    places = [PLACE]

    class Known:
        async def runs_of(self, *asked: str) -> list[Tracked]:
            return [
                Tracked(run_id=f"r{n}", name="", latest={}, place=place, progress=None)
                for n, place in enumerate(places)
            ]

    @asynccontextmanager
    async def opened(*login: Any) -> AsyncIterator[Known]:
        yield Known()

    monkeypatch.setattr(Tracking, "open", opened)
    return places


def test_whole_checkpoints_are_listed_the_newest_first(world: World, tracked: list[str], save: Any) -> None:
    """Broken: somebody goes on from one that is being written or removed, or is cut short."""
    for step in (10, 15, 20):
        save(step, best=10)
    (save(25) / "rank-0000.bin").write_bytes(b"ab")
    (save(30) / "checkpoint.json").unlink()
    (save(35) / RETIRED).write_text("{}")
    (save(40) / "checkpoint.json").write_text("{")
    save(10, folder=copy_folder_of(PLACE, 10, 1))
    tracked += [
        PLACE,
        "",
        f"pipelines/{NAME}/tune_trial/x",
        "../../train/x",
        "pipelines/other/train/x",
        f"{PLACE}/start",
    ]
    status, found = world.ask("GET", f"/runs/{RUN}/checkpoints")
    assert status == 200, found
    found = found["checkpoints"]
    assert [each["step"] for each in found] == [20, 15, 10]
    assert [each["id"] for each in found] == [f"{RUN}:20130209T050000Z-abc:{step}" for step in (20, 15, 10)]
    assert [(each["epoch"], each["is_end_of_epoch"], each["is_best"]) for each in found] == [
        (2, True, False), (1, False, False), (1, True, True)
    ]  # fmt: skip
    assert found[0]["validation"] == {"ndcg@10": 0.52, "mrr": 0.25}
    assert (found[0]["training"], found[0]["num_bytes"]) == (PLACE, 3)
    assert found[0]["saved_at"] == "2023-11-14T22:13:20Z"


def test_a_run_tells_what_happened_in_order(world: World, tracked: list[str], save: Any, tmp_path: Path) -> None:
    """Broken: who comes in the morning reads the logs of all tries of all tasks."""
    save(20)
    folder = tmp_path / "store" / events_of(PLACE)
    folder.mkdir(parents=True)
    for at, kind in ((1699999990, "started"), (1700000050, "hung"), (1700000060, "started")):
        event = TrainingEvent(kind=kind, said=f"{kind}!", node="n1", at=at)  # type: ignore[arg-type]
        (folder / f"g-{at}.json").write_bytes(event.dump())
    (folder / "other.json").write_text("{}")
    (folder / "more.json").write_text("no JSON")
    for number, at in enumerate(("null", "[1]", "1e400", "NaN", "1e15", "-1e12")):
        odd = f'{{"kind": "hung", "said": "", "node": "", "at": {at}}}'
        (folder / f"odd-{number}.json").write_text(odd)
    (folder / "deep.json").write_text("[" * 100_000)
    times = {"start_date": "2023-11-14T22:13:00Z", "end_date": "2023-11-14T22:15:00Z"}
    world.tasks = [
        World.task("train", "TrainOperator") | times,
        World.task("evaluate", "EvaluateOperator", "queued") | {"start_date": None, "end_date": None},
    ]
    gc.disable()  # deep.json reaches the limit of recursion, where finalizers of other tests' garbage would fail
    try:
        status, found = world.ask("GET", f"/runs/{RUN}/events")
    finally:
        gc.enable()
    assert status == 200, found
    told = [(each["kind"], each["said"], each["training"], each["node"]) for each in found["events"]]
    assert told == [
        ("task_started", "train, try 1", None, None),
        ("started", "started!", PLACE, "n1"),
        ("checkpoint", "step 20, 0.0 MB", PLACE, None),
        ("hung", "hung!", PLACE, "n1"),
        ("started", "started!", PLACE, "n1"),
        ("task_ended", "train: success", None, None),
    ]


@pytest.mark.parametrize("value", ["mine", [1], {"trainings": 7}, {"trainings": [{}]}], ids=str)
def test_what_somebody_has_put_in_place_of_a_result_hides_nothing(
    world: World, tracked: list[str], save: Any, value: Any
) -> None:
    """Broken: who edits an XCom could break the answers about a run for everybody."""
    save(20)
    run = f"{NAME}.experiments", "experiment__1"
    world.runs[run], world.xcoms[TASK], world.tasks = {}, value, []
    for path in ("checkpoints", "events"):
        status, found = world.ask("GET", f"/runs/{'@'.join(run)}/{path}")
        assert (status, len(found[path])) == (200, 1), found


def test_a_run_that_has_saved_nothing_has_none(world: World, tracked: list[str]) -> None:
    assert world.ask("GET", f"/runs/{RUN}/checkpoints") == (200, {"checkpoints": []})
    status, said = world.ask("POST", f"/checkpoints/{RUN}:k:7/restore", {})
    assert (status, said) == (404, f"run {RUN} has no checkpoint '{RUN}:k:7': it has none")


def restored(world: World, version: str, body: Any = None, step: int = 20, **more: Any) -> Any:
    status, found = world.ask("POST", f"/checkpoints/{RUN}:20130209T050000Z-abc:{step}/restore", body, **more)
    assert status == 201, found
    assert found["pipeline"] == NAME
    (run,) = world.triggered
    assert run["conf"].pop("dataset") == version
    return run["conf"]


def test_it_goes_on_as_the_training_was_whatever_the_file_says_now(
    world: World, tracked: list[str], save: Any, version: str
) -> None:
    """Broken: a search takes place again, or the file's newer settings are mixed in, and nothing can go on so."""
    facts = {"settings": {**OWN, "learning_rate": 0.5, "model_args": {"hidden": 3}}, "dataset": version}
    save(20, facts=facts)
    start = {"training": PLACE, "step": 20}
    wanted = {
        "train.learning_rate": 0.5,
        "train.model_args": {"hidden": 3},
        "train.resume_from": start,
        "tune": None,
    }
    assert restored(world, version) == {"settings": wanted}


def test_given_settings_take_the_place_of_those_of_then(
    world: World, tracked: list[str], save: Any, version: str
) -> None:
    schedule = {"kind": "cosine", "warmup_steps": 3, "final_fraction": 0.5}
    save(20, facts={"settings": {**OWN, "schedule": schedule}, "dataset": version})
    conf = restored(
        world, version, {"settings": {"train.epochs": 50, "train.schedule.warmup_steps": 9}, "name": "further"}
    )
    assert conf["name"] == "further"
    assert conf["settings"]["train.epochs"] == 50
    assert conf["settings"]["train.schedule"] == {**schedule, "warmup_steps": 9}


def test_an_experiment_is_gone_on_with_in_its_own_words(
    world: World, tracked: list[str], save: Any, version: str
) -> None:
    """Broken: its share of the samples is forgotten, and its checkpoint fits no longer."""
    run_id = f"{NAME}.experiments", "experiment__1"
    settings = {"train.epochs": 9, "features.online": None, "ingest.window": 3, "tune.trials": 4}
    world.runs[run_id] = {"settings": settings, "sample": 0.5, "as_of": "2013-02-09", "name": "mine"}
    world.state = "running"
    place = f"experiments/ana/{NAME}.mine/train/20130209T050000Z-abc"
    tracked[:] = [place]
    save(20, place=place, facts={"settings": {**OWN, "epochs": 9}, "dataset": version})
    name = "@".join(run_id)
    status, found = world.ask("POST", f"/training-runs/{name}/checkpoints/2/restore")
    assert status == 201, found
    assert found["run_id"] == found["id"]
    (run,) = world.triggered
    assert run["conf"] == {
        "settings": {
            "features.online": None, "train.epochs": 9, "tune": None,
            "train.resume_from": {"training": place, "step": 20},
        },
        "dataset": version, "sample": 0.5, "name": "mine",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"train.seed": 9}, "seed is 9 here and was"),
        ({"train.epochs": 1}, "epochs is 1, and 3 were begun: ask for more"),
        ({"train.epoch": 9}, "did you mean 'epochs'?"),
        ({"ingest.window": 20}, "is as it was taken"),
        ({"train.resume_from.step": 7}, "settings train.resume_from.step: the training begins at"),
        ({"train": {"model": OWN["model"], "objective": "ranking", "metric": "mrr"}, "tune": None}, "settings train: "),
        ({"train.epochs": 2}, "epochs is 2, and 3 were begun: ask for more"),
        ({"train.initialise": {"model": "a/1"}}, "settings train.initialise: the training begins at"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    world: World, tracked: list[str], save: Any, version: str, settings: Any, said: str
) -> None:
    save(25, facts={"settings": OWN, "dataset": version})
    status, found = world.ask("POST", f"/checkpoints/{RUN}:20130209T050000Z-abc:25/restore", {"settings": settings})
    assert (status, said in found) == (422, True), found
    assert not world.triggered


def test_an_epoch_that_is_not_kept_is_told_with_those_that_are(world: World, tracked: list[str], save: Any) -> None:
    for step in (10, 15, 30):
        save(step)
    status, said = world.ask("POST", f"/training-runs/{RUN}/checkpoints/2/restore", {})
    assert (status, "it has those of 1, 3." in said) == (404, True), said
    tracked.append(other := PLACE.replace("-abc", "-def"))
    save(10, place=other)
    status, said = world.ask("POST", f"/training-runs/{RUN}/checkpoints/1/restore", {})
    assert (status, "POST /checkpoints/ID/restore for one of" in said) == (422, True), said


def test_a_checkpoint_that_says_nothing_of_its_training_is_not_offered(
    world: World, tracked: list[str], save: Any
) -> None:
    save(20, facts={"settings": None})
    assert world.ask("GET", f"/runs/{RUN}/checkpoints") == (200, {"checkpoints": []})


def test_two_trainings_of_one_key_are_told_apart(world: World, tracked: list[str], save: Any) -> None:
    """Broken: one of them is taken without a word."""
    tracked.append(other := f"experiments/ana/{NAME}/train/20130209T050000Z-abc")
    for place in (PLACE, other):
        save(20, place=place)
    status, said = world.ask("POST", f"/checkpoints/{RUN}:20130209T050000Z-abc:20/restore", {})
    assert (status, f"may mean one of {PLACE} and {other}" in said) == (422, True), said


def test_the_same_request_is_one_run(world: World, tracked: list[str], save: Any, version: str) -> None:
    save(20, facts={"settings": OWN, "dataset": version})
    headers = {"Idempotency-Key": "again"}
    conf = restored(world, version, headers=headers)
    world.runs[f"{NAME}.experiments", world.triggered[0]["dag_run_id"]] = {**conf, "dataset": version}
    status, found = world.ask("POST", f"/checkpoints/{RUN}:20130209T050000Z-abc:20/restore", headers=headers)
    assert (status, len(world.triggered)) == (200, 1), found


@pytest.mark.parametrize(
    "training", ["pipelines/other/train/k", f"experiments/ana/other.{NAME}/train/k", "pipelines/../train/k"]
)
def test_trainings_of_other_pipelines_are_not_read(world: World, training: str) -> None:
    """Broken: who may try out one pipeline gets the weights of any other."""
    body = {"pipeline": NAME, "settings": {"tune": None, "train.resume_from": {"training": training, "step": 1}}}
    status, said = world.ask("POST", "/runs", body)
    assert status == 422, said
    assert "trainings of its own pipeline" in said or "must match" in said or "training" in said
    assert not world.triggered


def test_a_setting_of_a_training_names_its_checkpoint() -> None:
    section = OWN | {"resume_from": {"training": f"experiments/ana/{NAME}.x/train/k", "step": 3}}
    train = check_section(Train, section, "train")
    assert train.resume_from is not None
    assert train.resume_from.pipeline == NAME
