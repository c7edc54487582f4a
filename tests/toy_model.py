"""A small recipe with columns of every kind, and the snapshot that it is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from mlops.contract.refs import DatasetRef, ValidationRef
from mlops.contract.sections.ingest import TimeSplit
from mlops.contract.sections.train import Train
from mlops.data.engine.engines import Engine
from mlops.data.snapshots.snapshot import write_snapshot
from mlops.data.sources.window import Window
from mlops.store import Store

START = datetime(2013, 1, 9, tzinfo=UTC)
DAYS = 10
FEATURES = """
import narwhals as nw

from mlops import FeatureSet, Passthrough, Standardise, Vocabulary

FEATURES = FeatureSet(
    label="label", group_by={group_by}, min_group_size={min_group_size}, order_by=("at", "item"),
    derived={{"hour": nw.col("at").dt.hour(), "month": nw.col("day").dt.month()}},
    transforms=[
        Standardise("good", missing="indicator"), Standardise("seats", missing="indicator"),
        Passthrough("weekend", missing="indicator"), Vocabulary("city", missing="indicator"),
        Standardise("hour"), Passthrough("month"),
    ],
)
"""
PROGRAM = """
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from mlops import Program

program = Program.start()
torch.manual_seed(program.config.seed)
if program.world_size > 1:
    distributed.init_process_group("gloo")
model = program.build_model()
replica = DistributedDataParallel(model) if program.world_size > 1 else model
optimizer = torch.optim.AdamW(model.parameters(), lr=program.config.learning_rate)
for step in program.loader("train").epoch(1):
    for batch in step.batches:
        losses = program.loss(replica, batch) * batch.weights
        (losses.sum() * program.world_size / step.num_samples).backward()
    optimizer.step()
    optimizer.zero_grad()
program.finish(model.state_dict(), epoch=1, metrics=program.measure(model))
"""
"""A loop of the recipe's own, for any number of processes."""


def features(*, grouped: bool) -> str:
    """The recipe's ``features.py``."""
    group_by, size = ('("query",)', 2) if grouped else ("()", 1)
    return FEATURES.format(group_by=group_by, min_group_size=size)


def train_by(learner: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """
    The settings of a training by a learner beside torch, which take the place of all of the tests' own.

    :param settings: of the section ``train``; with objective and metric
    """
    # What is torch's own is as where nobody sets it.
    plain = Train.model_validate({"learner": learner, **settings})
    unset = {"model": None, "model_args": {}, "learning_rate": 1e-3, "global_batch": 32, "processes": 1, "schedule": {}}
    return {**plain.model_dump(mode="json"), **unset, **settings}


def snapshot(
    store: Store, scratch: Path, frame: pl.DataFrame, name: str = "toy", engine: Engine = "polars"
) -> ValidationRef:
    window = Window.before(START + timedelta(days=DAYS), DAYS, "UTC")
    manifest = write_snapshot(
        store, nw.from_native(frame.lazy()), name=name, window=window, event_time="at", sources={},
        split=TimeSplit(validation=2, test=3), creator={}, engine=engine, scratch=scratch,
    )  # fmt: skip
    dataset = DatasetRef(
        place=f"ingest/{name}-{manifest.version[:12]}",
        artifacts={"manifest": store.put_artifact(f"ingest/{name}", "manifest.json", manifest.to_json())},
        name=name,
        version=manifest.version,
        schema_hash=manifest.schema_hash,
        num_rows=manifest.num_rows,
        num_bytes=manifest.num_bytes,
        interval_start=START.isoformat(),
        interval_end=(START + timedelta(days=DAYS)).isoformat(),
    )
    return ValidationRef(
        place=f"validate/{name}-{manifest.version[:12]}", schema_sha256="0" * 64, num_checks=1, parent=dataset
    )


def rows(*, binary: bool = False) -> pl.DataFrame:
    """Queries of 1 to 5 items; of each kind of column some values are missing."""
    rng = np.random.default_rng(0)
    table = []
    for query in range(DAYS * 40):
        at = START + timedelta(days=query // 40, minutes=11 * (query % 40))
        for item in range(int(rng.integers(1, 6))):
            good = rng.normal()
            relevance = int(np.clip(round(2 + good + rng.normal() / 2), 0, 4))
            table.append(
                {
                    "at": at,
                    "day": at.date(),
                    "query": query,
                    "item": item,
                    "city": rng.choice(["A", "B", "Zürich", None]),
                    "seats": int(rng.integers(2, 9)) if rng.random() > 0.1 else None,
                    "weekend": bool(rng.random() > 0.5) if rng.random() > 0.1 else None,
                    "good": good if rng.random() > 0.1 else None,
                    "label": int(relevance > 2) if binary else relevance,
                }
            )
    schema = {"at": pl.Datetime("us", "UTC"), "day": pl.Date, "seats": pl.Int64, "weekend": pl.Boolean}
    return pl.DataFrame(table, schema_overrides=schema)
