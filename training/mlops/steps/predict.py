"""
Predict: a snapshot in, what a registered model answers about its rows out.

The version was looked up when the step began first, and is in its input document: once it is committed, the interval
stays as it was predicted.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from mlops.contract.refs import (
    Artifact,
    DatasetRef,
    ModelVersionRef,
    PredictionsRef,
    Ref,
    ValidationRef,
    canonical_json,
    shorten,
)
from mlops.contract.section import check_section
from mlops.contract.sections.predict import Predict
from mlops.contract.step import BadConfigError, BadDataError, RunIdentity, StepInput
from mlops.data.sinks import COLUMNS, open_sink
from mlops.data.sinks.sink import INTERVAL_END, MODEL, PIPELINE, Origin
from mlops.data.snapshots.snapshot import Snapshot
from mlops.features.source_line import no_column
from mlops.predictor.document import read_document
from mlops.process import ProcessSettings
from mlops.serving.answered_periods import AnsweredPeriod, PeriodAnswers
from mlops.serving.archive import unarchived
from mlops.serving.registered_package import RegisteredPackage
from mlops.steps import StepContext
from mlops.store import Store

BASELINE: Final = "model"
"""Baseline of the step: the version that is asked."""
FORMAT: Final = 1

logger = logging.getLogger(__name__)


def run(context: StepContext) -> PredictionsRef:
    config, parent = context.section(Predict), context.input.ref
    assert isinstance(parent, DatasetRef | ValidationRef), "the operator's wiring was checked when the DAG was parsed"
    if BASELINE not in context.input.baselines:
        raise BadConfigError(
            f"there is no {config.version!r} of the model {config.registered_model!r} to ask; what there is: "
            f"mlops models history {config.registered_model}"
        )
    version = context.input.baselines[BASELINE].ancestor(ModelVersionRef)
    snapshot = Snapshot.open(context.store, parent.ancestor(DatasetRef))
    kept = _kept(config, snapshot)
    sink = None if config.output is None else open_sink(config.output, context.deployment.home)
    folder = unarchived(context.store, version.parent, context.scratch)
    package = RegisteredPackage.of(folder, context.scratch / "registered")
    document = read_document(package.data)
    described, group_by = document["model"], document["features"]["group_by"]
    if lacking := [name for name in group_by if name not in snapshot.manifest.schema]:
        raise BadDataError(
            f"the model's rows are grouped by {lacking[0]!r}: {no_column(lacking[0], snapshot.manifest.schema)}"
        )
    if taken := sorted({*kept} & {*described["columns"], *(COLUMNS if sink is not None and sink.tabular else ())}):
        raise BadConfigError(
            f"column {taken[0]!r} of the snapshot is called as one of the model's answer; leave it out by "
            "predict.columns"
        )
    origin = _origin(context.run, f"{version.name}/{version.version}")
    answers = PeriodAnswers(
        snapshot=snapshot,
        report=version.parent,
        columns=kept,
        place=context.place,
        metadata={PIPELINE: origin.pipeline, INTERVAL_END: origin.interval_end.isoformat(), MODEL: origin.model},
    )
    answered = list[AnsweredPeriod]()
    for each in answers.store(package, context.scratch):
        logger.info(
            "%s: %d rows answered by version %s of %s", each.period, each.num_rows, version.version, version.name
        )
        answered.append(each)
    if num_unanswered := sum(each.num_unanswered for each in answered):
        logger.info("%d rows have no answer: they are of groups below FeatureSet.min_group_size", num_unanswered)
    manifest = {
        "format": FORMAT,
        "dataset": snapshot.manifest.name,
        "version": snapshot.manifest.version,
        "model": {"name": version.name, "version": version.version, "sha256": version.parent.digest()},
        "columns": _columns(snapshot, kept, described["columns"]),
        "partitions": [
            {"period": each.period, "num_rows": each.num_rows, **asdict(each.artifact)} for each in answered
        ],
    }
    return PredictionsRef(
        place=context.place,
        artifacts={"manifest": context.publish("manifest.json", canonical_json(manifest))},
        model=version.name,
        model_version=version.version,
        model_sha256=version.parent.digest(),
        num_rows=sum(each.num_rows for each in answered),
        num_unanswered=num_unanswered,
        parent=parent,
    )


def hand_on(ref: Ref, document: StepInput, deployment: ProcessSettings) -> None:
    """Put what is committed where ``predict.output`` says, period by period."""
    config = check_section(Predict, document.config, document.step)
    if config.output is None:
        return
    assert isinstance(ref, PredictionsRef), "what this step commits"
    store, sink = Store(deployment.store), open_sink(config.output, deployment.home)
    origin, later = _origin(document.run, f"{ref.model}/{ref.model_version}"), list[str]()
    partitions = json.loads(store.read(ref.artifacts["manifest"]))["partitions"]
    for part in partitions:
        artifact = Artifact(key=part["key"], sha256=part["sha256"], num_bytes=part["num_bytes"])
        if not sink.put(part["period"], store.read(artifact), origin):
            later.append(part["period"])
    logger.info("%d periods are put into %s", len(partitions) - len(later), sink.place)
    if later:
        logger.info("what is there of %s is of a later interval, and stays", shorten(later))


def _origin(run: RunIdentity, model: str) -> Origin:
    return Origin(pipeline=run.pipeline, interval_end=datetime.fromisoformat(run.interval_end), model=model)


def _kept(config: Predict, snapshot: Snapshot) -> list[str]:
    known = list(snapshot.manifest.schema)
    if config.columns is None:
        return known
    if lacking := [name for name in config.columns if name not in known]:
        raise BadConfigError(
            f"predict.columns names {lacking[0]!r}, which the snapshot does not have; it has {', '.join(known)}"
        )
    return config.columns


def _columns(snapshot: Snapshot, kept: list[str], answer: dict[str, str]) -> dict[str, Any]:
    """Return the types: the snapshot's own as Polars writes them, the answer's as MLflow does."""
    schema = snapshot.manifest.schema
    return {"kept": {name: schema[name] for name in kept}, "answer": answer}
