"""Small trainings of flight_delays that differ only in their seed, or in a planted feature too, and what they score."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, timedelta
from types import SimpleNamespace
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from include.flight_delays.features import FEATURES
from include.flight_delays.model import build_model
from mlops.contract.section import NoSettings
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.loader import Loader, in_memory
from mlops.features.applied import FittedFeatures
from mlops.features.batches import batches_of
from mlops.features.fitting import fit
from mlops.metrics.binary import auc
from mlops.objectives.binary import Binary
from mlops.objectives.scoring import predict_table

# The settings of dags/flight_delays.py.
WINDOW_DAYS, VALIDATION_DAYS, TEST_DAYS = 28, 3, 4
EPOCHS, GLOBAL_BATCH, LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM, HIDDEN = 2, 256, 3e-3, 0.01, 1.0, 32
CPU: Final = torch.device("cpu")
BINARY: Final = Binary(NoSettings())


@dataclass(frozen=True, kw_only=True, slots=True)
class Night:
    """The three splits of one night."""

    train: FeatureTable
    validation: FeatureTable
    test: FeatureTable


def night_of(rows: pl.DataFrame, last_day: date) -> Night:
    """
    Split and fit as the pipeline does, the newest days for test.

    :param rows: of the recipe's transform
    """

    def days(first: int, count: int) -> pl.DataFrame:
        newest = last_day - timedelta(days=first)
        return rows.filter(pl.col("day").is_between(newest - timedelta(days=count - 1), newest))

    held_out = TEST_DAYS + VALIDATION_DAYS
    train = days(held_out, WINDOW_DAYS - held_out)
    with batches_of(train, FEATURES.group_by) as batches:
        fitted = FittedFeatures(FEATURES, fit(FEATURES, batches))
    return Night(
        train=fitted.apply(train),
        validation=fitted.apply(days(TEST_DAYS, VALIDATION_DAYS)),
        test=fitted.apply(days(0, TEST_DAYS)),
    )


def planted(night: Night, strength: float) -> Night:
    """
    The same night with one feature more: the label times the strength, in standard normal noise. It is a better
    feature set, of a lift that we know to be real.
    """
    chance = np.random.default_rng(0)

    def widened(table: FeatureTable) -> FeatureTable:
        echo = strength * table.labels + chance.normal(size=table.num_rows)
        return replace(table, features=np.column_stack([table.features, echo.astype(np.float32)]))

    return Night(train=widened(night.train), validation=widened(night.validation), test=widened(night.test))


def train(night: Night, seed: int) -> npt.NDArray[np.float32]:
    """:return: logits of the test rows, by the epoch that is best on the validation rows"""
    torch.manual_seed(seed)
    model = build_model(SimpleNamespace(num_features=night.train.num_features, hidden=HIDDEN))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    source = in_memory(night.train, grouped=False)
    loader = Loader(source=source, global_batch=GLOBAL_BATCH, seed=seed, rank=0, world_size=1, prefetch=0)
    best, logits = -1.0, np.empty(0, np.float32)
    for epoch in range(1, EPOCHS + 1):
        for step in loader.epoch(epoch):
            optimizer.zero_grad()
            BINARY.loss(model, step.batches[0]).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
        value = auc(night.validation.labels, predict_table(BINARY, model, night.validation, CPU, grouped=False))
        if value > best:
            best, logits = value, predict_table(BINARY, model, night.test, CPU, grouped=False)
    return logits
