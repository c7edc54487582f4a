"""Estimators of scikit-learn that learn several labels by one estimator for each."""

from __future__ import annotations

from typing import Any

from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier


def each_label() -> Any:
    descent = SGDClassifier(loss="log_loss", eta0=0.001, learning_rate="constant", random_state=0)
    return MultiOutputClassifier(descent)


def chain() -> Any:
    return ClassifierChain(LogisticRegression())
