"""
Predict: a snapshot in, what a registered model answers about its rows out.

The version was looked up when the step began first, and is in its input document: once it is committed, the interval
stays as it was predicted.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

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
from mlops.data.snapshots.canonical import encode
from mlops.data.snapshots.snapshot import Snapshot
from mlops.features.batches import rows_of
from mlops.features.source_line import no_column
from mlops.predictor.document import read_document
from mlops.process import ProcessSettings
from mlops.serving.answered import Answer, answers_of
from mlops.serving.archive import unarchived
from mlops.serving.registered_package import RegisteredPackage
from mlops.steps import StepContext
from mlops.store import Store

BASELINE: Final = "model"
"""Baseline of the step: the version that is asked."""
FORMAT: Final = 1
_PLACE: Final = "__place"

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
    metadata = {PIPELINE: origin.pipeline, INTERVAL_END: origin.interval_end.isoformat(), MODEL: origin.model}
    partitions: list[dict[str, Any]] = []
    num_unanswered = 0
    with answers_of(package, context.scratch) as answer:
        for periods in _together(snapshot, group_by, context.scratch):
            parts = [snapshot.read([period]) for period in periods]
            most = None if group_by else rows_of(described["num_features"])
            try:
                found = pl.concat(_answered(answer, pl.concat(parts), kept, most))
            except BadDataError as error:
                raise BadDataError(f"{periods[0]}: {error}") from error
            num_unanswered += found.select(pl.all_horizontal(pl.col(*described["columns"]).is_null()).sum()).item()
            ends = itertools.accumulate(part.height for part in parts)
            for period, part, end in zip(periods, parts, ends, strict=True):
                data = encode(found[end - part.height : end], metadata)
                artifact = context.publish(f"{len(partitions):05d}.parquet", data)
                partitions.append({"period": period, "num_rows": part.height, **asdict(artifact)})
                logger.info(
                    "%s: %d rows answered by version %s of %s", period, part.height, version.version, version.name
                )
    if num_unanswered:
        logger.info("%d rows have no answer: they are of groups below FeatureSet.min_group_size", num_unanswered)
    manifest = {
        "format": FORMAT,
        "dataset": snapshot.manifest.name,
        "version": snapshot.manifest.version,
        "model": {"name": version.name, "version": version.version, "sha256": version.parent.digest()},
        "columns": _columns(snapshot, kept, described["columns"]),
        "partitions": partitions,
    }
    return PredictionsRef(
        place=context.place,
        artifacts={"manifest": context.publish("manifest.json", canonical_json(manifest))},
        model=version.name,
        model_version=version.version,
        model_sha256=version.parent.digest(),
        num_rows=sum(partition["num_rows"] for partition in partitions),
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


def _together(snapshot: Snapshot, group_by: Sequence[str], cache: Path) -> Iterator[Sequence[str]]:
    """Return the periods, those together which a group has rows in."""
    periods = snapshot.periods
    last = list(range(len(periods)))
    if group_by and len(periods) > 1:
        groups = [
            snapshot.scan([period], cache=cache).select(group_by).unique().with_columns(pl.lit(place).alias(_PLACE))
            for place, period in enumerate(periods)
        ]
        found = pl.concat(groups).group_by(group_by).agg(pl.min(_PLACE).alias("first"), pl.max(_PLACE).alias("last"))
        for first, end in found.select("first", "last").unique().collect().iter_rows():
            last[first] = max(last[first], end)
    start = 0
    for place, end in enumerate(itertools.accumulate(last, max)):
        if end == place:
            yield periods[start : place + 1]
            start = place + 1


def _kept(config: Predict, snapshot: Snapshot) -> list[str]:
    known = list(snapshot.manifest.schema)
    if config.columns is None:
        return known
    if lacking := [name for name in config.columns if name not in known]:
        raise BadConfigError(
            f"predict.columns names {lacking[0]!r}, which the snapshot does not have; it has {', '.join(known)}"
        )
    return config.columns


def _answered(answer: Answer, rows: pl.DataFrame, kept: list[str], most: int | None) -> Iterator[pl.DataFrame]:
    """
    Answer rows in batches.

    :param most: rows of a batch; None: all at once, for a group may be anywhere among them
    """
    for batch in rows.iter_slices(most) if most else [rows]:
        yield batch.select(kept).hstack(answer(batch))


def _columns(snapshot: Snapshot, kept: list[str], answer: dict[str, str]) -> dict[str, Any]:
    """Return the types: the snapshot's own as Polars writes them, the answer's as MLflow does."""
    schema = snapshot.manifest.schema
    return {"kept": {name: schema[name] for name in kept}, "answer": answer}
