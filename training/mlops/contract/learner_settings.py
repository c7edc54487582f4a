"""The settings of learners, ``train.learner_settings``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field, field_validator

from mlops.contract.section import ImportPath, Section, TextKeyed


class LightGbmSettings(Section):
    """
    Gradient-boosted trees by LightGBM. The names are LightGBM's own, but for ``rounds_per_epoch``.

    After each of ``train.epochs`` the metric is measured and the trees are saved: a training that was killed goes on
    from there.
    """

    rounds_per_epoch: int = Field(default=50, ge=1)
    """Boosting rounds, each a tree, of an epoch."""
    learning_rate: float = Field(default=0.1, gt=0, le=1)
    num_leaves: int = Field(default=31, ge=2, le=131_072)
    """LightGBM has no more than 131,072."""
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
    parameters: dict[str, TextKeyed] = Field(default={})
    """What it is called with. The keys of a ``class_weight`` are the numbers of classes: ``{0: 1, 1: 5}``."""

    @field_validator("parameters", mode="before")
    @classmethod
    def _classes_as_text(cls, value: Any) -> Any:
        """JSON has no other keys; :meth:`called_with` makes numbers of them again."""
        return _by_class(value, lambda key: str(key) if isinstance(key, int) and not isinstance(key, bool) else key)

    def called_with(self) -> dict[str, Any]:
        """Return the parameters as an estimator takes them: labels are whole numbers, and so are classes."""
        found: dict[str, Any] = _by_class(
            self.parameters, lambda key: int(key) if isinstance(key, str) and key.isdecimal() else key
        )
        return found


def _by_class(value: Any, change: Callable[[Any], Any], weights: bool = False) -> Any:
    """
    Return a value with the keys of each ``class_weight`` changed, be it of a Pipeline's step, or a list for several
    labels.

    :param weights: whether the value is of one
    """
    if isinstance(value, Mapping):
        return {
            (change(key) if weights else key): _by_class(each, change, weights or _are_weights(key))
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_by_class(each, change, weights) for each in value]
    return value


def _are_weights(name: object) -> bool:
    return isinstance(name, str) and name.rpartition("__")[2] == "class_weight"
