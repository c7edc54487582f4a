"""The declaration of the learner: what the scheduler reads, without the libraries of the training runtime."""

from __future__ import annotations

from pydantic import Field

from mlops import LearnerSpec, Section


class XGBoost(Section):
    """Gradient-boosted trees by XGBoost, whose names these are, but for the first."""

    rounds_per_epoch: int = Field(default=50, ge=1)
    """Boosting rounds, each a tree, of an epoch."""
    learning_rate: float = Field(default=0.1, gt=0, le=1)
    max_depth: int = Field(default=6, ge=1)
    min_child_weight: float = Field(default=1.0, ge=0)


XGBOOST = LearnerSpec(implementation="mlops_xgboost_learner:XGBoostLearner", kinds=["logit", "value"], section=XGBoost)
