from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from measured import objective_of
from torch import nn

from mlops.contract.step import BadConfigError
from mlops.data.shards.loader import Batch, in_memory
from mlops.objectives.binary import binary_loss
from mlops.objectives.language_model import language_model_loss
from mlops.objectives.objective import no_predictions
from mlops.objectives.ranking import ranking_loss
from mlops.objectives.scoring import predict_table


class First(nn.Module):
    """Scores a row by its first feature."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features[..., 0]


def batch_of(*queries: list[tuple[float, float]]) -> Batch:
    """Queries of (score, relevance)."""
    rows = np.array([row for query in queries for row in query], np.float32)
    offsets = np.cumsum([0, *(len(query) for query in queries)])
    table = SimpleNamespace(features=rows[:, :1], labels=rows[:, 1], offsets=offsets)
    return in_memory(table, grouped=True).gather(np.arange(len(queries)))


def test_the_ranking_loss_is_the_cross_entropy_of_the_gains() -> None:
    loss = ranking_loss(First(), batch_of([(1.0, 2.0), (0.0, 1.0)], [(5.0, 0.0), (1.0, 1.0), (3.0, 0.0)]))
    log_softmax = np.log(np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum())
    assert loss[0].item() == pytest.approx(-(0.75 * log_softmax[0] + 0.25 * log_softmax[1]), rel=1e-6)
    assert loss[1].item() == pytest.approx(-np.log(np.exp(1) / np.exp([5, 1, 3]).sum()), rel=1e-6)


def test_padding_does_not_change_a_loss() -> None:
    """Broken: what a query teaches would depend on the longest query beside it."""
    short = [(0.5, 1.0), (0.1, 0.0)]
    alone, beside = batch_of(short), batch_of(short, [(0.0, 1.0)] * 9)
    assert ranking_loss(First(), alone)[0] == ranking_loss(First(), beside)[0]
    assert binary_loss(First(), alone)[0].item() == pytest.approx(binary_loss(First(), beside)[0].item(), rel=1e-6)


def test_a_query_without_relevant_documents_teaches_nothing() -> None:
    batch = batch_of([(0.5, 0.0), (0.1, 0.0)])
    features = batch.features.requires_grad_()
    ranking_loss(First(), batch).sum().backward()
    assert features.grad is not None
    assert features.grad.abs().sum() == 0


def test_scores_come_in_the_order_of_the_rows() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 7, 2500)
    features = rng.normal(size=(lengths.sum(), 2)).astype(np.float32)
    table = SimpleNamespace(
        features=features, labels=np.zeros(len(features), np.float32), offsets=np.concatenate([[0], np.cumsum(lengths)])
    )
    ranking = objective_of("ranking").functions
    found = predict_table(ranking, First(), table, torch.device("cpu"), grouped=True)
    np.testing.assert_array_equal(found, features[:, 0])


def test_a_model_with_a_superfluous_dimension_is_told_so() -> None:
    """Broken: [B, 1] against [B] broadcasts to [B, B], and the model learns nonsense in silence."""
    batch = Batch(
        features=torch.zeros(4, 2),
        labels=torch.zeros(4),
        mask=None,
        weights=torch.ones(4),
        samples=np.arange(4),
    )
    with pytest.raises(BadConfigError, match="squeeze"):
        binary_loss(nn.Linear(2, 1), batch)


def test_the_language_model_s_loss_is_the_mean_over_a_sequence() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[0, 4, 2], [1, 1, 3]])
    batch = Batch(features=labels, labels=labels, mask=None, weights=torch.ones(2), samples=np.arange(2))
    losses = language_model_loss(lambda _: logits, batch)  # type: ignore[arg-type]
    expected = [[-logits[b, c].log_softmax(0)[labels[b, c]] for c in range(3)] for b in range(2)]
    assert losses.tolist() == pytest.approx([float(sum(row)) / 3 for row in expected])


QUANTILES = {"loss": "quantile", "quantiles": [0.1, 0.5, 0.9]}


@pytest.mark.parametrize(
    ("objective", "settings", "shape", "message"),
    [
        ("binary", {}, (4, 1), r"\[4, 1\] for 4 rows; one number per row is needed for .*'binary', \[4\]: squeeze its"),
        ("binary", {}, (4, 2), r"\[4, 2\] for 4 rows; one number per row is needed"),
        ("binary", {}, (3,), r"\[3\] for 4 rows"),
        ("binary", {}, (), r"\[\] for 4 rows"),
        ("multiclass", {"classes": 3}, (4,), r"\[4\] for 4 rows; 3 numbers per row are needed .*\[4, 3\]"),
        ("multiclass", {"classes": 3}, (4, 2), "3 numbers per row are needed"),
        ("regression", QUANTILES, (4,), "3 numbers per row are needed"),
        ("language_model", {}, (4, 1), "one number per row is needed"),
    ],
)
def test_predictions_of_another_shape_are_refused(
    objective: str, settings: dict[str, Any], shape: tuple[int, ...], message: str
) -> None:
    """Broken: of one column of two classes the first is always the largest, and a metric would measure that."""
    with pytest.raises(BadConfigError, match=rf"^learner 'mine' predicted an array of shape .*{message}"):
        objective_of(objective, **settings).predictions(np.zeros(4), np.zeros(shape), np.arange(5), by="learner 'mine'")


def test_an_objective_of_ones_own_may_predict_one_of_several_outputs() -> None:
    """Broken: one that learns a mean and its variance could not say the mean alone."""
    several = replace(objective_of("regression"), functions=SimpleNamespace(num_outputs=2))
    for shape in ((4,), (4, 2)):
        assert several.predictions(np.zeros(4), np.zeros(shape), np.arange(5)).predicted.shape == shape
    with pytest.raises(BadConfigError, match="2 numbers per row are needed"):
        several.predictions(np.zeros(4), np.zeros((4, 1)), np.arange(5))


@pytest.mark.parametrize(
    ("objective", "settings"),
    [("binary", {}), ("ranking", {}), ("regression", {}), ("regression", QUANTILES), ("multiclass", {"classes": 3}),
     ("multilabel", {"labels": ["a", "b"]})],
)  # fmt: skip
def test_no_rows_have_an_answer(objective: str, settings: dict[str, Any]) -> None:
    """Broken: a server would answer with an error of NumPy where all groups of a request are too small."""
    loaded = objective_of(objective, **settings)
    none = loaded.predictions(np.empty(0), no_predictions(loaded.functions), np.zeros(1, np.int64))
    answer = loaded.functions.answer(none)
    assert list(answer) == list(loaded.functions.columns)
    assert {values.shape for values in answer.values()} == {(0,)}
