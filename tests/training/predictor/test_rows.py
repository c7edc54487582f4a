from __future__ import annotations

import random
from collections.abc import Callable
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest
import torch
from feature_tables import fit

from mlops.data.shards.feature_table import FeatureTable
from mlops.features.feature_set import FeatureSet
from mlops.features.release import engine
from mlops.features.transforms import Passthrough
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import load_objective
from mlops.predictor.document import ModelDescription
from mlops.predictor.rows import RowsPredictor
from mlops.testing import no_recipe

ROWS = pl.DataFrame({"query": [1, 1, 1], "item": [9, 10, 100], "x": [0.5, 1.5, 2.5], "y": [0.0, 1.0, 2.0]})
ALONE = FeatureSet(label="y", order_by=("item",), transforms=[Passthrough("x")])
GROUPED = FeatureSet(label="y", group_by=("query",), order_by=("item",), transforms=[Passthrough("x")])


def predictor(
    features: FeatureSet, predict: Callable[[FeatureTable], Floats] = lambda table: table.features[:, 0]
) -> RowsPredictor:
    """A model that predicts x, of :data:`ROWS`."""
    description = ModelDescription(
        learner="toy", learner_settings={}, model=None, model_args={}, num_features=1, objective="regression",
        objective_settings={}, columns={}, metric="mae", metric_title="", loss=None, grouped=features.grouped,
    )  # fmt: skip
    return RowsPredictor(
        definition=features,
        stored={"engine": engine(), "state": fit(features, ROWS)},
        description=description,
        objective=load_objective("regression", {}, no_recipe),
        predict=predict,
        importance=lambda table: {},
        num_bytes=0,
        recipes=TemporaryDirectory(),
    )


@pytest.mark.parametrize("features", [ALONE, GROUPED], ids=["rows", "groups"])
def test_a_score_stays_with_its_row_where_a_key_has_become_text(features: FeatureSet) -> None:
    """Broken: as text 100 comes before 9, so that a champion's scores would be measured on other rows' labels."""
    model = predictor(features)
    for rows in (ROWS, ROWS.with_columns(pl.col("item").cast(pl.String))):
        scored = model.score(rows)
        assert dict(zip(scored.rows.tolist(), scored.predictions.predicted.tolist(), strict=True)) == {
            0: 0.5, 1: 1.5, 2: 2.5
        }  # fmt: skip
        assert scored.predictions.labels.tolist() == ROWS["y"][scored.rows].to_list()
        assert model.samples(rows)[0]["x"].to_list() == scored.predictions.predicted.tolist()


def test_a_model_that_draws_scores_rows_the_same_again() -> None:
    """Broken: the gate decides otherwise when an evaluation is made again."""

    def drawn(table: FeatureTable) -> Floats:
        noise = np.random.rand(table.num_rows) + torch.rand(table.num_rows).numpy() + random.random()
        return (table.features[:, 0] + noise).astype(np.float32)

    model = predictor(GROUPED, drawn)
    first = model.score(ROWS).predictions.predicted
    before = np.random.get_state()[2], torch.random.get_rng_state().tolist(), random.getstate()
    assert model.score(ROWS).predictions.predicted.tolist() == first.tolist()
    assert (np.random.get_state()[2], torch.random.get_rng_state().tolist(), random.getstate()) == before
    served = [model.serve(ROWS.drop("y").to_dicts()).tolist() for _ in range(2)]
    assert served[0] != served[1], "a server's threads share these numbers: it leaves them as they are"
