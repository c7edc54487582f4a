"""The settings of learners, ``train.learner_settings``."""

from __future__ import annotations

from pydantic import Field

from mlops.contract.section import ImportPath, Json, Section


class LightGbmSettings(Section):
    """
    Gradient-boosted trees by LightGBM. The names are LightGBM's own, but for ``rounds_per_epoch``.

    After each of ``train.epochs`` the metric is measured and the trees are saved: a training that was killed goes on
    from there.
    """

    rounds_per_epoch: int = Field(default=50, ge=1)
    """Boosting rounds, each a tree, of an epoch."""
    learning_rate: float = Field(default=0.1, gt=0, le=1)
    num_leaves: int = Field(default=31, ge=2)
    max_depth: int = Field(default=-1, ge=-1)
    """-1: as deep as ``num_leaves`` leaves allow."""
    min_data_in_leaf: int = Field(default=20, ge=1)
    min_sum_hessian_in_leaf: float = Field(default=1e-3, ge=0)
    lambda_l1: float = Field(default=0.0, ge=0)
    lambda_l2: float = Field(default=0.0, ge=0)
    min_gain_to_split: float = Field(default=0.0, ge=0)
    feature_fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of the features that each tree may use."""
    bagging_fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of the rows that each tree sees."""
    max_bin: int = Field(default=255, ge=2)


class SklearnSettings(Section):
    """
    An estimator of scikit-learn, or one that is like it.

    One that has ``partial_fit`` sees all rows once in each of ``train.epochs``; another one learns at once, in one.
    """

    estimator: ImportPath
    """Class, as ``sklearn.ensemble:RandomForestClassifier``, or a function of the recipe that returns an estimator,
    such as a Pipeline. A ``random_state`` that is not given is ``train.seed``."""
    parameters: dict[str, Json] = Field(default={})
    """What it is called with."""
