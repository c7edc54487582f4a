"""``mlops spin``: one step alone, on what an earlier run has made, again and again while its code is being written."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import Final

import obstore
from obstore.store import ObjectStore
from rich.console import Console

from mlops.contract.refs import CheckpointRef, FeaturesRef, Ref, StudyRef
from mlops.contract.section import SpecError
from mlops.contract.step import STEPS
from mlops_provider.committed import Committed
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepLostError, StepRetryableError
from mlops_provider.experiments.alone import alone_at
from mlops_provider.experiments.arguments import SPIN
from mlops_provider.experiments.asked import Experiment, file_of, user
from mlops_provider.experiments.attended import attended
from mlops_provider.experiments.inputs import Input, made_by
from mlops_provider.experiments.line import made
from mlops_provider.experiments.request import Request, as_instant, changes_of
from mlops_provider.experiments.results import Training
from mlops_provider.experiments.run import check_tracking
from mlops_provider.experiments.transcript import Transcript, tell
from mlops_provider.handed_over import aside, deployment_of, find_stack, print_json, python_of
from mlops_provider.launchers.base import Launch, Outcome
from mlops_provider.launchers.process import ProcessLauncher
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.runs import TERMINAL, Asked
from mlops_provider.patience import store_errors
from mlops_provider.spec_file import SUFFIX

_ASK_MLFLOW: Final = frozenset({"validate", "train", "evaluate"})
_MOST_NAMED: Final = 5
_LEFT: Final = timedelta(days=1)
"""Without a write, after which a spin that has not ended has been given up."""


def spin(options: argparse.Namespace, console: Console) -> int:
    """
    Run one step, whether it was run before or not.

    :return: exit code: 0 where it ran, 1 where it failed
    """
    # That a step starts in a new interpreter, for one.
    logging.getLogger("mlops_provider").setLevel(logging.WARNING)
    out = aside() if options.json else None
    find_stack(options)
    experiment = _experiment(options)
    deployment = deployment_of(options, experiment.pipeline.team)
    python_of(deployment, STEPS[options.step].runtime)
    _check_watching(options, deployment)
    with store_errors(deployment.store, "the input cannot be read"):
        store = store_of(deployment)
        taken = _input(store, experiment, options)
    if taken is not None:
        _refuse_found(taken.ref, options)
        console.print(f"input     {taken.ref.place}", markup=False, soft_wrap=True)
        experiment = replace(experiment, interval=taken.interval)
    transcript = Transcript(console, deployment)
    try:
        if options.step in _ASK_MLFLOW:
            check_tracking(experiment, deployment)
        with alone_at(f"{deployment.store}/{experiment.place}/{options.step}", _refuse):
            with store_errors(deployment.store, "what was spun before cannot be removed"):
                _remove_earlier(store, experiment, options.step)
            transcript.begins(options.step)
            launch = _launch(experiment, None if taken is None else taken.ref, deployment, options.step)
            outcome = _run(launch, deployment, transcript, options)
        ref = made(options.step, outcome, deployment)
    except (StepFailedError, StepRetryableError, StepLostError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return 1
    transcript.ended(options.step, ref)
    if isinstance(ref, CheckpointRef):
        tell([Training(checkpoint=ref, report=None)], deployment, console)
    if out is not None:
        print_json(ref.to_wire(), out)
    return 0


def _experiment(options: argparse.Namespace) -> Experiment:
    step, (pipeline, date) = options.step, _named(options)
    if date and options.input is not None:
        raise SpecError(f"--input {options.input} says of which data interval: leave out @{date}")
    # The keys of the one step may be given without its name.
    changes = [each if each.startswith(f"{step}.") else f"{step}.{each}" for each in options.set]
    request = Request(changes=changes_of(changes), as_of=date or None, until=step, name=SPIN, launcher="process")
    return Experiment.of(file_of(pipeline, options.home / "dags"), request, user(), datetime.now(UTC))


def _named(options: argparse.Namespace) -> tuple[str, str]:
    """Return the pipeline, by its name or file, and the date; empty where none is given."""
    if options.pipeline.endswith(SUFFIX) or "@" not in options.pipeline:
        return options.pipeline, ""
    pipeline, _, date = options.pipeline.rpartition("@")
    return pipeline, date


def _check_watching(options: argparse.Namespace, deployment: Deployment) -> None:
    """:raises SpecError: where the debugger or the profiler cannot be had"""
    if not (options.pdb or options.profile):
        return
    option = "--pdb" if options.pdb else "--profile"
    if deployment.run_as_user is not None:
        raise SpecError(
            f"{option}: steps run as the user {deployment.run_as_user!r} here, into whose processes nobody else can "
            "look: leave it out"
        )
    if options.pdb and not sys.stdin.isatty():
        raise SpecError("--pdb: the debugger needs a terminal, and standard input is none")
    if options.profile and not options.profile.resolve().parent.is_dir():
        raise SpecError(f"--profile {options.profile}: there is no such folder")
    if options.profile and _py_spy() is None:
        raise SpecError("--profile: there is no py-spy; install it beside the command, or anywhere on PATH")


def _py_spy() -> str | None:
    """Return the profiler's program: of this environment, or of the machine."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def _input(store: ObjectStore, experiment: Experiment, options: argparse.Namespace) -> Input | None:
    """
    Find what the step takes.

    :return: None for the first step
    :raises SpecError: where no run has made it, naming those that there are
    """
    step, pipeline = options.step, experiment.pipeline.pipeline
    if not STEPS[step].consumes:
        if options.input is not None:
            raise SpecError(f"--input {options.input}: {step} takes none; leave it out")
        return None
    if options.input is not None:
        return Input.at(store, options.input.strip("/"), step)
    (before,) = experiment.dag.get_task(step).upstream_task_ids
    every = made_by(store, before, pipeline, user())
    _, date = _named(options)
    found = [each for each in every if each.end == experiment.interval[1]] if date else every
    if date and experiment.pipeline.schedule is None:  # a run of any instant has its own
        found = [each for each in every if each.end <= as_instant(date, experiment.pipeline.timezone)][-1:]
    if not found:
        raise SpecError(_nothing(before, pipeline, date, every))
    return Input.at(store, found[-1].place, step)


def _refuse_found(taken: Ref, options: argparse.Namespace) -> None:
    """What a search has found takes the place of what is given."""
    if not isinstance(taken, StudyRef):
        return
    for each in options.set:
        if each.partition("=")[0].strip().removeprefix(f"{options.step}.") in taken.parameters:
            features = taken.ancestor(FeaturesRef).place
            raise SpecError(
                f"--set {each}: what the search {taken.place} has found takes its place; train on the features alone: "
                f"--input {features}"
            )


def _nothing(step: str, pipeline: str, date: str, every: Sequence[Committed]) -> str:
    if not every:
        as_of = f" --as-of {date}" if date else ""
        return f"no run of {pipeline} has done {step} yet: mlops run {pipeline}{as_of} --until {step}"
    ends = sorted({each.end.isoformat(timespec="minutes") for each in every})[-_MOST_NAMED:]
    return (
        f"no run of {pipeline} has done {step} for the data interval of {date}; the newest end at "
        f"{', '.join(ends)}. To do it: mlops run {pipeline} --as-of {date} --until {step}"
    )


def _refuse() -> None:
    raise SpecError("another terminal spins this step of the pipeline: end it first, or wait")


def _remove_earlier(store: ObjectStore, experiment: Experiment, step: str) -> None:
    """Remove what was spun before, but for what may be going on elsewhere: by another machine of the same user."""
    places: dict[str, list[obstore.ObjectMeta]] = {}
    for page in obstore.list(store, f"{experiment.place}/{step}"):
        for entry in page:
            places.setdefault("/".join(entry["path"].split("/")[:5]), []).append(entry)
    for place, entries in places.items():
        is_done = any(entry["path"] == f"{place}/ref.json" for entry in entries)
        if is_done or max(entry["last_modified"] for entry in entries) < datetime.now(UTC) - _LEFT:
            obstore.delete(store, [entry["path"] for entry in entries])


def _launch(experiment: Experiment, upstream: Ref | None, deployment: Deployment, step: str) -> Launch:
    operator = experiment.dag.get_task(step)
    assert isinstance(operator, StepOperator), "the pipeline's own"
    asked = Asked(
        upstream=None if upstream is None else upstream.to_wire(),
        interval=experiment.interval,
        run_id=f"{TERMINAL}{datetime.now(UTC).isoformat(timespec='milliseconds')}",
        experiment=experiment.name,
        params={},
    )
    launch = operator.launch(asked, deployment)
    run = launch.input.run
    # Not named by the work: what is committed of equal work is not asked for.
    fresh = f"{run.run_key.rpartition('-')[0]}-{token_hex(6)}"
    return replace(launch, input=replace(launch.input, run=replace(run, run_key=fresh)))


def _run(launch: Launch, deployment: Deployment, transcript: Transcript, options: argparse.Namespace) -> Outcome:
    if options.pdb:
        return attended(ProcessLauncher(deployment).order(replace(launch, processes=0, nodes="1")))
    around: Sequence[str] = ()
    if (flame := options.profile) is not None:
        flame.unlink(missing_ok=True)
        around = (str(_py_spy()), "record", "--subprocesses", "--output", str(flame.resolve()), "--")
    launcher = ProcessLauncher(deployment, around=around)
    outcome = launcher.run(launch, lambda line: transcript.line(launch.input.step, line))
    if flame is not None and flame.is_file():
        transcript.console.print(f"{'':<9}   flame graph {flame.resolve()}", markup=False, soft_wrap=True)
    return outcome
