from __future__ import annotations

import pytest
from measured import metric_of

from mlops.contract.sections.train import EarlyStopping
from mlops.trainer.state import Epoch, TrainingState


def state_of(metric: str, values: list[float]) -> TrainingState:
    history = [
        Epoch(
            epoch=number, step=number, train_loss=1.0, validation_metric=value, further_metrics={}, seconds=1.0,
            samples_per_second=1.0, finished_at=0.0,
        )
        for number, value in enumerate(values, start=1)
    ]  # fmt: skip
    return TrainingState(steps_per_epoch=1, direction=metric_of(metric).direction, history=history)


@pytest.mark.parametrize(
    ("metric", "values", "best"),
    [
        pytest.param("auc", [0.5, 0.7, 0.7, 0.6], 2, id="higher"),
        pytest.param("perplexity", [9.0, 4.0, 4.0, 6.0], 2, id="lower"),
        pytest.param("log_loss", [0.7, 0.5, 0.6], 2, id="log loss"),
    ],
)
def test_the_best_epoch_is_the_first_of_the_best_value(metric: str, values: list[float], best: int) -> None:
    epoch = state_of(metric, values).best
    assert epoch is not None
    assert epoch.epoch == best


@pytest.mark.parametrize(
    ("metric", "values", "finished"),
    [
        pytest.param("auc", [0.5, 0.6, 0.7], False, id="rises"),
        pytest.param("auc", [0.7, 0.6, 0.5], True, id="falls"),
        pytest.param("perplexity", [9.0, 8.0, 7.0], False, id="perplexity falls"),
        pytest.param("perplexity", [9.0, 8.95, 8.91], True, id="perplexity hardly falls"),
    ],
)
def test_a_training_ends_when_it_gets_no_better(metric: str, values: list[float], finished: bool) -> None:
    """Broken: a language model would end its training while it learns, or never."""
    early_stopping = EarlyStopping(patience=2, min_improvement=0.1 if metric == "perplexity" else 0.0)
    assert state_of(metric, values).finished(10, early_stopping) is finished
