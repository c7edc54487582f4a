"""How far a training is, by what it has told MLflow. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mlops.contract.durations import duration
from mlops.contract.progress import NUM_STEPS, TRAINING_SECONDS
from mlops.contract.rest import TrainingProgress

_LONG: Final = timedelta(minutes=3)
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_LOSSES: Final = ("loss", "train_loss")


def progress_of(run: Mapping[str, Any]) -> TrainingProgress | None:
    """
    Return how far a training is.

    :param run: as MLflow answers it
    :return: None where it is no training, one that does not say how long it is, or one that somebody has edited
    """
    with suppress(ValueError, OverflowError, KeyError, TypeError, OSError):
        return _progress_of(run)
    return None


def live_first(trainings: Sequence[TrainingProgress]) -> list[TrainingProgress]:
    """Put those last that have told nothing for long, as processes leave them that were killed."""
    newest = max((each.told_at for each in trainings if each.told_at is not None), default=None)
    return sorted(trainings, key=lambda each: each.told_at is not None and each.told_at + _LONG < (newest or _NEVER))


def how_far(training: TrainingProgress) -> str:
    """Say it in words."""
    # Who writes to MLflow may have named it: what would steer a terminal is left out.
    name = "".join(letter for letter in training.name if letter.isprintable())
    said = [f"{name}: {training.step:,} of {training.num_steps:,} steps"]
    if training.loss is not None:
        said.append(f"loss {training.loss:.4g}")
    if training.seconds_left is not None:
        said.append(f"up to {duration(training.seconds_left)} left")
    if training.goodput is not None:
        said.append(f"goodput {math.floor(100 * training.goodput)} %")
    return ", ".join(said)


def _progress_of(run: Mapping[str, Any]) -> TrainingProgress | None:
    num_steps = pairs_of(run, "params").get(NUM_STEPS, "")
    if not str(num_steps).isdecimal():
        return None
    info = run["info"]
    metrics = {each["key"]: each for each in run.get("data", {}).get("metrics", [])}
    told = metrics.get(TRAINING_SECONDS)
    step = 0 if told is None else int(told.get("step", 0))
    loss = next((float(metrics[name]["value"]) for name in _LOSSES if name in metrics), math.nan)
    seconds_left = goodput = told_at = None
    if told is not None and step > 0:
        # System metrics go on where a step takes long, or steps are done again.
        seconds, at = float(told["value"]), max(int(each["timestamp"]) for each in metrics.values())
        if not math.isfinite(seconds):
            return None
        seconds_left = seconds / step * max(0, int(num_steps) - step)
        since = (at - int(info["start_time"])) / 1000
        goodput = min(1.0, seconds / since) if since > 0 else None
        told_at = datetime.fromtimestamp(at / 1000, UTC)
    return TrainingProgress(
        run=info["run_id"],
        name=info.get("run_name", ""),
        step=step,
        num_steps=int(num_steps),
        loss=loss if math.isfinite(loss) else None,
        seconds_left=seconds_left,
        goodput=goodput,
        told_at=told_at,
    )


def pairs_of(run: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return the ``tags`` or ``params`` of a run, as MLflow answers it."""
    return {each["key"]: each["value"] for each in run.get("data", {}).get(kind, [])}
