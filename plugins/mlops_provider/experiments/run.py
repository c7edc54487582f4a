"""``mlops run``: snapshot, validation, features, search, training and evaluation of a pipeline, in this terminal."""

from __future__ import annotations

import argparse
import logging
import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from rich.console import Console

from mlops_provider.connections import login_of
from mlops_provider.deployment import RUNTIMES, Deployment
from mlops_provider.exceptions import StepFailedError, StepLostError, StepOutageError, StepRetryableError
from mlops_provider.experiments.asked import Experiment, file_of, user
from mlops_provider.experiments.line import Line
from mlops_provider.experiments.request import Request
from mlops_provider.experiments.transcript import Transcript, tell
from mlops_provider.handed_over import aside, deployment_of, find_stack, print_json, python_of
from mlops_provider.operators.champion import asked
from mlops_provider.registry import champion_version


def run(options: argparse.Namespace, console: Console) -> int:
    """
    Do what of the pipeline is not done yet; whatever ends it, the same command goes on.

    :return: exit code: 0 where all ran, also where the model would not be registered; 1 where a step failed
    """
    begun = time.monotonic()
    # That a step starts in a new interpreter, for one.
    logging.getLogger("mlops_provider").setLevel(logging.WARNING)
    out = aside() if options.json else None
    find_stack(options)
    path = file_of(options.pipeline, options.home / "dags")
    experiment = Experiment.of(path, Request.of_options(options), user(), datetime.now(UTC))
    deployment = deployment_of(options, experiment.pipeline.team)
    for runtime in RUNTIMES if options.launcher == "process" else ():
        python_of(deployment, runtime)
    try:
        experiment = experiment.with_snapshot(deployment)
        console.print(_what(experiment), markup=False, soft_wrap=True)
        line = Line(experiment=experiment, deployment=deployment, listener=Transcript(console, deployment))
        check_tracking(experiment, deployment)
        results = line.run()
    except (StepFailedError, StepRetryableError, StepLostError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on from here", style="yellow")
        raise
    tell(results.trainings, deployment, console)
    if out is not None:
        document = {
            **results.document(experiment, deployment),
            "seconds": round(time.monotonic() - begun, 1),
        }
        print_json(document, out)
    return 0


def _what(experiment: Experiment) -> str:
    """Say what is tried out."""
    zone = ZoneInfo(experiment.pipeline.timezone)
    start, end = (f"{each.astimezone(zone):%Y-%m-%d %H:%M}" for each in experiment.interval)
    return (
        f"{experiment.pipeline.pipeline}, data interval {start} to {end} {zone.key}; what no run of the pipeline has "
        f"made yet lies in {experiment.place}"
    )


def check_tracking(experiment: Experiment, deployment: Deployment) -> None:
    """
    Check that MLflow answers: it is asked for the champion, and has the training's curves.

    :raises StepOutageError: where it does not
    """
    model, reader = experiment.pipeline.evaluate.registered_model, login_of("reader", deployment)
    try:
        asked(champion_version(deployment.tracking_uri, model, reader))
    except StepOutageError as error:
        raise StepOutageError(f"{error}\nStart one on this machine: mlops up", error.service) from error
