"""
Predict: a snapshot in, what a registered model answers about its rows out.

The version was looked up when the step began first, and is in its input document: once it is committed, the interval
stays as it was predicted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import polars as pl

from mlops.contract.refs import DatasetRef, ModelVersionRef, PredictionsRef, ValidationRef, canonical_json
from mlops.contract.sections.predict import Predict
from mlops.contract.step import BadConfigError
from mlops.data.snapshots.canonical import encode
from mlops.data.snapshots.snapshot import Snapshot
from mlops.predictor.document import read_document
from mlops.serving.answered import Answer, answers_of, batches
from mlops.serving.archive import unarchived
from mlops.serving.registered_package import RegisteredPackage
from mlops.steps import StepContext
from mlops.store import Store

MODEL: Final = "model"
"""Baseline of the step: the version that is asked."""
BATCH_ROWS: Final = 131_072
"""Rows that are answered at once; of groups a whole period is, for a group may be anywhere in it."""
FORMAT: Final = 1

logger = logging.getLogger(__name__)


def run(context: StepContext) -> PredictionsRef:
    config, parent = context.section(Predict), context.input.ref
    assert isinstance(parent, DatasetRef | ValidationRef), "the operator's wiring was checked when the DAG was parsed"
    version = context.input.baselines[MODEL].ancestor(ModelVersionRef)
    snapshot = Snapshot.open(context.store, parent.ancestor(DatasetRef))
    kept = _kept(config, snapshot)
    folder = unarchived(context.store, version.parent, context.scratch)
    package = RegisteredPackage.of(folder, context.scratch / "registered")
    described = read_document(package.data)["model"]
    if taken := sorted(set(kept) & set(described["columns"])):
        raise BadConfigError(
            f"column {taken[0]!r} of the snapshot is called as one of the model's answer; leave it out by "
            "predict.columns"
        )
    answer = answers_of(package, context.scratch)
    output = None if config.output is None else _folder(config.output, context.deployment.home)
    partitions: list[dict[str, Any]] = []
    num_unanswered = 0
    for period in snapshot.periods:
        rows = snapshot.read([period])
        found = pl.concat(_answered(answer, rows, kept, grouped=bool(described["grouped"])))
        num_unanswered += found.select(pl.all_horizontal(pl.col(*described["columns"]).is_null()).sum()).item()
        data = encode(found)
        artifact = context.publish(f"{len(partitions):05d}.parquet", data)
        if output is not None:
            # Before the commit: whoever tries again puts the same file there, or that of what is committed then.
            output.put(f"{period}.parquet", data)
        partitions.append({"period": period, "num_rows": found.height, **asdict(artifact)})
        logger.info("%s: %d rows answered by version %s of %s", period, found.height, version.version, version.name)
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


def _kept(config: Predict, snapshot: Snapshot) -> list[str]:
    known = list(snapshot.manifest.schema)
    if config.columns is None:
        return known
    if lacking := [name for name in config.columns if name not in known]:
        raise BadConfigError(
            f"predict.columns names {lacking[0]!r}, which the snapshot does not have; it has {', '.join(known)}"
        )
    return config.columns


def _answered(answer: Answer, rows: pl.DataFrame, kept: list[str], *, grouped: bool) -> Iterator[pl.DataFrame]:
    for batch in batches(rows, BATCH_ROWS, grouped=grouped):
        yield batch.select(kept).hstack(answer(batch))


def _folder(output: str, home: Path) -> Store:
    if "://" in output:
        return Store(output)  # refuses what it is none of
    return Store(f"file://{home / output}")


def _columns(snapshot: Snapshot, kept: list[str], answer: dict[str, str]) -> dict[str, Any]:
    """Return the types: the snapshot's own as Polars writes them, the answer's as MLflow does."""
    schema = snapshot.manifest.schema
    return {"kept": {name: schema[name] for name in kept}, "answer": answer}
