"""The metric of an evaluation, measured again."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from mlops.code import load_attribute
from mlops.contract.metrics import short_name
from mlops.contract.refs import INPUT, CheckpointRef, FeaturesRef, ReportRef
from mlops.contract.step import BadConfigError, StepInput
from mlops.features.fitted import held_out
from mlops.metrics.metric import load_metric
from mlops.predictor.packing import open_checkpoint
from mlops.store import Store


def compare_metric(
    store: Store, report: ReportRef, checkpoint: CheckpointRef, home: Path, scratch: Path
) -> tuple[str | None, str]:
    """
    Score the rows that were held out, and measure the metric that the model was judged by.

    :param checkpoint: the model as it was made again
    :param home: checkout that was evaluated with, for a metric of the recipe
    :param scratch: folder for the unpacked code
    :return: the difference, if any, and in a sentence what was compared
    """
    named = str(StepInput.load(store.read(report.artifacts[INPUT]).decode()).config["metric"])
    metric = short_name(named)
    try:
        measured = load_metric(named, partial(load_attribute, home=home))
        rows = held_out(store, checkpoint.ancestor(FeaturesRef))
        scored = open_checkpoint(store, checkpoint, scratch).score(rows)
    except BadConfigError as error:  # with another engine than then, features are not served at all
        return None, f"{metric} is not compared: {error}"
    num_rows = json.loads(store.read(report.artifacts["metrics"]))["num_rows"]
    if len(scored.rows) != num_rows:
        # Against a champion whose feature set keeps other rows.
        return None, f"{metric} is not compared: the report has it of {num_rows} of the {len(scored.rows)} rows"
    then, now = report.metrics[metric], measured.measure(scored.predictions)
    if then != now:
        return f"{metric} on the {num_rows} held-out rows was {then} then and is {now} now", metric
    return None, f"{metric} {now:.6g} on {num_rows} held-out rows, as in the report"
