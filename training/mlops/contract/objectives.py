"""What each objective is measured by."""

from __future__ import annotations

OBJECTIVE_METRICS = {
    "ranking": ("ndcg@K", "mrr"),
    "binary": ("auc", "log_loss", "f1", "calibration_error"),
    "language_model": ("perplexity",),
}
"""Metrics by objective; the one to begin with first."""


def check_metric(metric: str, objective: str) -> None:
    """:raises ValueError: where the objective is not measured by it"""
    fitting = OBJECTIVE_METRICS[objective]
    if metric.partition("@")[0] not in {name.partition("@")[0] for name in fitting}:
        raise ValueError(f"measured by {' or '.join(fitting)}, for the objective is {objective}")
