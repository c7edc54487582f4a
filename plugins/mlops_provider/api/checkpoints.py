"""``/runs/{id}/checkpoints``: the checkpoints of a run's trainings; and experiments that go on from one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import obstore
from fastapi import APIRouter

from mlops.contract.checkpoint_listing import Listing
from mlops.contract.checkpoint_markers import Saved
from mlops.contract.metrics import short_name
from mlops.contract.rest import Checkpoint, Checkpoints, NewRun, Restored, RunSummary
from mlops.contract.resumption import Standing
from mlops.contract.section import SpecError
from mlops.contract.step import EXPERIMENTS, used_key
from mlops_provider.api.airflow import Airflow, AirflowDep
from mlops_provider.api.deployments import of_name
from mlops_provider.api.problems import DOCUMENTED, Problem
from mlops_provider.api.runs import find_run
from mlops_provider.api.submission import ASKED_BEFORE, SubmissionDep, made, text_of_pipeline
from mlops_provider.api.trainings import checkpoints_at, pipeline_of, places_of
from mlops_provider.connections import store_of
from mlops_provider.experiments.names import tried_out
from mlops_provider.gathering import gather
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import changed_pipeline

router = APIRouter(tags=["checkpoints"], responses=DOCUMENTED)

_BEGINNING: Final = frozenset({"initialise", "resume_from"})
"""Settings of ``train`` that say where it begins, which is the checkpoint then."""
_SETTLED: Final = ("train", "tune", "ingest")
"""Steps whose settings were settled when the checkpoint was saved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A checkpoint of a run's training."""

    run: Mapping[str, Any]
    place: str
    """Of the training in the store."""
    saved: Saved
    is_best: bool

    @property
    def id(self) -> str:
        key = self.place.rpartition("/")[2]
        return f"{self.run['dag_id']}@{self.run['dag_run_id']}:{key}:{self.saved.step}"

    standing: Standing

    def told(self) -> Checkpoint:
        validation, history = {}, self.standing.history
        if history:
            metric = short_name(str(self.standing.training.settings["metric"]))
            validation = {metric: history[-1].validation_metric, **history[-1].further_metrics}
        return Checkpoint(
            id=self.id,
            training=self.place,
            step=self.saved.step,
            epoch=len(history),
            is_end_of_epoch=not self.standing.is_mid_epoch,
            validation=validation,
            is_best=self.is_best,
            saved_at=datetime.fromtimestamp(self.saved.saved_at, UTC),
            num_bytes=self.saved.num_bytes,
        )


@router.get("/runs/{run}/checkpoints")
async def checkpoints(run: str, airflow: AirflowDep) -> Checkpoints:
    """The whole checkpoints that the store has of a run's trainings, also while they run."""
    found = await _checkpoints(await find_run(run, airflow), airflow)
    return Checkpoints(checkpoints=[each.told() for each in found])


@router.post("/checkpoints/{checkpoint}/restore", status_code=201, responses=ASKED_BEFORE)
async def restore(checkpoint: str, submission: SubmissionDep, asked: Restored | None = None) -> RunSummary:
    """
    `POST /runs`, with a training that goes on from a checkpoint: with its weights, its optimizer's state and its place
    in the data. Settings and data are those of the training that it is of, but for the `settings` that are given.
    """
    run_id, _, key = checkpoint.rpartition(":")[0].rpartition(":")
    step = checkpoint.rpartition(":")[2]
    run = await find_run(run_id, submission.airflow)
    found = await _checkpoints(run, submission.airflow)
    chosen = [each for each in found if each.id == f"{run_id}:{key}:{step}"]
    if not chosen:
        known = ", ".join(each.id for each in found) or "none"
        raise Problem(404, f"run {run_id} has no checkpoint {checkpoint!r}: it has {known}")
    if len(chosen) > 1:
        places = " and ".join(each.place for each in chosen)
        raise Problem(422, f"{checkpoint} may mean one of {places}: name it by train.resume_from of POST /runs")
    return await _go_on(chosen[0], asked or Restored(), submission, "../../runs")


async def restore_epoch(run_id: str, epoch: int, asked: Restored, submission: SubmissionDep, place: str) -> RunSummary:
    """
    As :func:`restore`, from the checkpoint of an epoch's end.

    :param place: see :meth:`Submission.start`
    :raises Problem: where there is none, or several trainings have one
    """
    found = await _checkpoints(await find_run(run_id, submission.airflow), submission.airflow)
    ends = [each for each in found if not each.standing.is_mid_epoch]
    chosen = [each for each in ends if len(each.standing.history) == epoch]
    if not chosen:
        known = ", ".join(sorted({str(len(each.standing.history)) for each in ends}, key=int)) or "none"
        raise Problem(
            404,
            f"run {run_id} has no checkpoint of the end of epoch {epoch}: it has those of {known}. The newest ones and "
            "the best one are kept, see train.checkpoint.keep_latest",
        )
    if len({each.place for each in chosen}) > 1:
        ids = ", ".join(each.id for each in chosen)
        raise Problem(422, f"run {run_id} has several trainings: POST /checkpoints/ID/restore for one of {ids}")
    return await _go_on(chosen[0], asked, submission, place)


async def _go_on(found: _Found, asked: Restored, submission: SubmissionDep, place: str) -> RunSummary:
    """:raises SpecError: where the settings that are given are part of what the checkpoint holds"""
    before, pipeline, run = found.standing.training.settings, pipeline_of(found.run), found.run
    if fixed := [name for name in asked.settings if name.split(".")[:2] in (["train", each] for each in _BEGINNING)]:
        raise SpecError(f"settings {fixed[0]}: the training begins at {found.id}; leave it out")
    text = await text_of_pipeline(pipeline, submission.airflow)
    own = await asyncio.to_thread(changed_pipeline, text, pipeline, {}, "settings")
    conf: Mapping[str, Any] = (run["conf"] or {}) if tried_out(run["dag_id"]) else {}
    start = {"training": found.place, "step": found.saved.step}
    settings = {
        **{name: each for name, each in (conf.get("settings") or {}).items() if name.split(".")[0] not in _SETTLED},
        **_of_training(before, own),
        "train.resume_from": start,
    }
    new = made(
        NewRun,
        pipeline=pipeline,
        settings=_with(settings, asked.settings),
        dataset=found.standing.training.dataset,
        sample=conf.get("sample"),
        name=asked.name or conf.get("name"),
    )

    def check(spec: Pipeline) -> None:
        now = spec.train.model_dump(mode="json")
        if now["resume_from"] != start:
            raise SpecError(f"settings train: the training begins at {found.id}; name what is to differ by train.KEY")
        if problems := found.standing.hindrances(now):
            raise SpecError(
                f"settings: {found.id} cannot be gone on from so: {'; '.join(problems)}. To learn something else from "
                "its weights, see train.initialise"
            )

    started = await submission.start(new, place, text, check=check)
    if found.place.startswith(f"{EXPERIMENTS}/"):  # until it is gone on with, `mlops runs expire` leaves it
        await obstore.put_async(await of_name(pipeline, store_of), used_key(found.place), b"")
    return started


def _of_training(before: Mapping[str, Any], own: Pipeline) -> dict[str, Any]:
    """Return what the settings of a training were that are others now in the pipeline's file."""
    now = own.train.model_dump(mode="json")
    changed = {f"train.{name}": value for name, value in before.items() if name not in _BEGINNING}
    fixed = {"train.logical_shards"} if before["elastic"] == "exact" else set()  # else they follow the processes
    changed = {
        name: value for name, value in changed.items() if now.get(name.partition(".")[2]) != value or name in fixed
    }
    if now["initialise"] is not None:
        changed["train.initialise"] = None
    # What it has found is among the settings of then.
    return changed | ({} if own.tune is None else {"tune": None})


def _with(settings: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """
    :param settings: by name, which may be a whole section
    :param given: likewise, and these count
    """
    found = {
        name: value
        for name, value in settings.items()
        if not any(f"{name}.".startswith(f"{other}.") for other in given)
    }
    for name, value in given.items():
        parts = name.split(".")
        above = next((".".join(parts[:n]) for n in range(1, len(parts)) if ".".join(parts[:n]) in found), None)
        if above is None or not isinstance(found[above], dict):
            found[name] = value
            continue
        found[above] = _replaced(found[above], parts[above.count(".") + 1 :], value)
    return found


def _replaced(section: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    first, *rest = keys
    inner = section.get(first)
    return {**section, first: _replaced(inner if isinstance(inner, dict) else {}, rest, value) if rest else value}


async def _checkpoints(run: Mapping[str, Any], airflow: Airflow) -> list[_Found]:
    """Find the whole checkpoints of a run's trainings, the newest of each first."""
    places = await places_of(run, airflow)
    store = await of_name(pipeline_of(run), store_of)
    listings = await gather(lambda place: checkpoints_at(store, place), places)
    return [
        each for place, listing in zip(places, listings, strict=True) for each in _of_training_at(run, place, listing)
    ]


def _of_training_at(run: Mapping[str, Any], place: str, listing: Listing) -> list[_Found]:
    # Of two process groups that saved one step the later one counts.
    whole = {saved.step: saved for saved in listing.complete if saved.folder not in listing.retired}
    best = whole[max(whole)].best_step if whole else None
    return [
        _Found(run=run, place=place, saved=saved, is_best=step == best, standing=standing)
        for step, saved in sorted(whole.items(), reverse=True)
        if (standing := Standing.of(saved.meta)) is not None
    ]
