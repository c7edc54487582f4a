"""Any estimator of scikit-learn, or one that is like it."""

from __future__ import annotations

import io
import pickle
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import sklearn.pipeline
import torch
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.multioutput import MultiOutputClassifier
from torch import Tensor, nn

from mlops.code import resolved
from mlops.contract.extensions import is_of_recipe
from mlops.contract.learner_settings import SklearnSettings
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.batch import rows_with
from mlops.data.shards.feature_table import FeatureTable
from mlops.learners.learner import FittedModel, Lesson
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import LoadedObjective, check_shape

Array = npt.NDArray[np.float64]
_LEAST: Final = 1e-7
"""Probabilities are taken for at least this, and of two classes for at most 1 less this: the logit of 0 is infinite."""

_LIKELY: Final = ("predict_proba", "decision_function")
"""What an estimator says of classes; margins stand for logits."""


class Fitted:
    """An estimator that has learnt, or has yet to."""

    def __init__(self, estimator: Any, objective: LoadedObjective, feature_names: Sequence[str]) -> None:
        self.estimator, self.objective, self.feature_names = estimator, objective, tuple(feature_names)

    def predict(self, table: FeatureTable) -> Floats:
        features = _numbers(table)
        match self.objective.kind:
            case "logit":
                classes = self._by_class(features, 2)
                return (classes[:, 1] - classes[:, 0]).astype(np.float32)
            case "classes":
                return self._by_class(features, self.objective.functions.num_outputs).astype(np.float32)
            case "labels":
                return self._by_label(features, self.objective.functions.num_outputs).astype(np.float32)
        return np.asarray(self.estimator.predict(features), np.float32)

    def save(self) -> bytes:
        data = _pickled(self.estimator, self.feature_names)
        # An object that was read again shares its strings otherwise than one that was made: saved twice it is one text.
        return _pickled(*self._read(data, self.objective))

    def importance(self, table: FeatureTable) -> Mapping[str, float]:
        """
        Return what the estimator itself says (``feature_importances_``), whatever the rows; empty where it says
        nothing.
        """
        last = self.estimator[-1] if isinstance(self.estimator, sklearn.pipeline.Pipeline) else self.estimator
        found = getattr(last, "feature_importances_", None)
        if found is None or len(found) != len(self.feature_names):
            return {}
        return dict(zip(self.feature_names, np.asarray(found, np.float64).tolist(), strict=True))

    @classmethod
    def load(cls, data: bytes, objective: LoadedObjective) -> Fitted:
        """:raises BadDataError: where they are no model, or one of another release of scikit-learn"""
        try:
            estimator, names = cls._read(data, objective)
            return cls(estimator, objective, names)
        except InconsistentVersionWarning as error:
            raise BadDataError(f"this model was saved by another release of scikit-learn: {error}") from error
        except Exception as error:  # what is no pickle may raise anything
            raise BadDataError(f"this is no model of scikit-learn: {type(error).__name__}: {error}") from error

    @staticmethod
    def _read(data: bytes, objective: LoadedObjective) -> tuple[Any, Sequence[str]]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", InconsistentVersionWarning)
            estimator, names = _Unpickler(data, objective.own).load()
        return estimator, names

    def _by_class(self, features: Array, num_classes: int) -> Array:
        """Return logits ``[N, K]``; a class that no row of the training had gets the logit of the least probability."""
        estimator = self.estimator
        if hasattr(estimator, "predict_proba"):
            known = np.log(np.clip(np.asarray(estimator.predict_proba(features), np.float64), _LEAST, 1.0))
            least = np.log(_LEAST)
        else:
            known = np.asarray(estimator.decision_function(features), np.float64)
            known = np.stack([-known / 2, known / 2], axis=1) if known.ndim == 1 else known
            least = known.min(axis=1, keepdims=True, initial=0.0) + np.log(_LEAST)
        if known.shape[1] != len(estimator.classes_):
            raise BadConfigError(
                f"{type(estimator).__name__} gives {known.shape[1]} numbers for {len(estimator.classes_)} classes, one "
                "for each pair of them; set decision_function_shape to ovr, or probability to true"
            )
        found: Array = np.full((len(features), num_classes), 0.0) + least
        found[:, np.asarray(estimator.classes_, np.int64)] = known
        return found

    def _by_label(self, features: Array, num_labels: int) -> Array:
        """Return logits ``[N, L]``."""
        estimator = self.estimator
        found = estimator.predict_proba(features)
        if isinstance(found, list):  # for each label the classes that the training had
            classes = getattr(estimator, "classes_", [[0, 1]] * num_labels)
            parts = zip(found, classes, strict=True)
            found = np.stack([_of_one(np.asarray(each), np.asarray(known)) for each, known in parts], axis=1)
        if found.shape != (len(features), num_labels):
            raise BadConfigError(
                f"{type(estimator).__name__} gives {list(found.shape[1:])} numbers for {num_labels} labels; take an "
                "estimator that learns several, such as sklearn.multioutput:MultiOutputClassifier"
            )
        shares = np.clip(np.asarray(found, np.float64), _LEAST, 1 - _LEAST)
        logits: Array = np.log(shares) - np.log1p(-shares)
        return logits


def _of_one(shares: Array, classes: npt.NDArray[Any]) -> Array:
    """Return the shares of class 1, ``[N]``: 0 where no row of the training had it."""
    one = np.flatnonzero(classes == 1)
    found: Array = shares[:, one[0]] if one.size else np.zeros(len(shares))
    return found


class ScikitLearn:
    """Implements :class:`mlops.Learner`."""

    def __init__(self, settings: SklearnSettings) -> None:
        self._settings = settings

    def begin(self, lesson: Lesson) -> Fitted:
        path, objective = self._settings.estimator, lesson.objective
        make = resolved(path, objective.own)
        try:
            estimator = make(**self._settings.called_with())
        except TypeError as error:
            raise BadConfigError(f"train.learner_settings.parameters do not fit {path}: {error}") from error
        kind, wanted = (is_regressor, "a regressor") if objective.kind == "value" else (is_classifier, "a classifier")
        try:
            fits, parameters = kind(estimator), estimator.get_params()
        except AttributeError as error:
            raise BadConfigError(
                f"{path} makes {type(estimator).__name__}, which is no estimator of scikit-learn: {error}; derive it "
                "from sklearn.base.BaseEstimator"
            ) from error
        if not fits:
            raise BadConfigError(
                f"objective {objective.name!r} needs {wanted}, and {path} makes {type(estimator).__name__}, which is "
                "none"
            )
        if lesson.epochs > 1 and not _learns_in_parts(estimator):
            raise BadConfigError(
                f"{type(estimator).__name__} learns from all rows at once; set train.epochs to 1, got {lesson.epochs}"
            )
        chance = {
            name: lesson.seed
            for name, value in parameters.items()
            if name.rpartition("__")[2] == "random_state" and value is None
        }
        return Fitted(estimator.set_params(**chance), objective, lesson.feature_names)

    def load(self, data: bytes, objective: LoadedObjective) -> Fitted:
        return Fitted.load(data, objective)

    def learn(self, model: FittedModel, lesson: Lesson, epoch: int) -> tuple[Fitted, float | None]:
        assert isinstance(model, Fitted)
        # What was given stays as it is.
        learnt = Fitted.load(model.save(), lesson.objective)
        table, estimator = lesson.train, learnt.estimator
        features = _numbers(table)
        labels = np.asarray(table.labels, np.float64 if lesson.objective.kind == "value" else np.int64)
        try:
            with _seeded(lesson.seed, epoch):
                if _learns_in_parts(estimator):
                    # In an order of the epoch's own, which depends on nothing that was drawn before.
                    order = np.random.default_rng([lesson.seed, epoch]).permutation(len(labels))
                    classes = {"classes": _classes(estimator, lesson)} if is_classifier(estimator) else {}
                    estimator.partial_fit(features[order], labels[order], **classes)
                else:
                    estimator.fit(features, labels)
        except ValueError as error:
            raise BadConfigError(f"{self._settings.estimator} cannot learn from these rows: {error}") from error
        # Some know it only now, such as a stack of estimators.
        said = {"value": ["predict"], "labels": ["predict_proba"]}.get(lesson.objective.kind, _LIKELY)
        if not any(hasattr(estimator, name) for name in said):
            raise BadConfigError(
                f"{self._settings.estimator} predicts no probabilities with these parameters, which "
                f"{lesson.objective.name!r} needs"
            )
        _forget_times(estimator)
        predicted = learnt.predict(table)
        check_shape(lesson.objective, predicted, table.num_rows, self._settings.estimator)
        return learnt, _loss(predicted, table, lesson.objective)


def _numbers(table: FeatureTable) -> Array:
    """
    Return features ``[N, F]`` in double precision: then a row alone is predicted as among others, to the bits of single
    precision, whatever path the linear algebra takes for so many rows.
    """
    return table.features.astype(np.float64)


@contextmanager
def _seeded(*seed: int) -> Iterator[None]:
    """Seed the generators of Python and of numpy, which an estimator may use where none of its parameters says so."""
    before = random.getstate(), np.random.get_state()
    mixed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _forget_times(estimator: Any) -> None:
    """Set how long a search took to 0, for equal models are equal bytes."""
    for part in (estimator, *(step for _, step in getattr(estimator, "steps", ()))):
        if hasattr(part, "refit_time_"):
            part.refit_time_ = 0.0
        for name, values in getattr(part, "cv_results_", {}).items():
            if name.endswith("_time"):
                values[:] = 0.0


def _learns_in_parts(estimator: Any) -> bool:
    return hasattr(estimator, "partial_fit")


def _classes(estimator: Any, lesson: Lesson) -> Any:
    """Return what an estimator that learns in parts must know of labels that come later."""
    num_outputs = lesson.objective.functions.num_outputs
    match lesson.objective.kind:
        case "logit":
            return np.arange(2)
        case "labels" if isinstance(estimator, MultiOutputClassifier):
            return [np.arange(2)] * num_outputs
    return np.arange(num_outputs)


class _Given(nn.Module):
    """A model whose outputs are known."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, features: Tensor) -> Tensor:
        return self.outputs


def _loss(predicted: Floats, table: FeatureTable, objective: LoadedObjective) -> float | None:
    """
    Return the objective's mean loss of predictions: what the estimator minimises is its own affair.

    An objective's loss is that of outputs, of which it makes predictions: as they are, or, as of counts and amounts,
    the outputs are their logarithms. Which outputs these predictions are made of is tried.

    :return: None where they are made of neither
    """
    rows = rows_with(torch.from_numpy(np.array(table.labels)))
    with np.errstate(all="ignore"):
        positive = np.maximum(predicted, np.float32(_LEAST))
        for outputs, wanted in ((predicted, predicted), (np.log(positive), positive)):
            given = torch.from_numpy(np.ascontiguousarray(outputs))
            if np.allclose(objective.functions.predict(given, rows), wanted, rtol=1e-4, atol=1e-6):
                return float(objective.functions.loss(_Given(given), rows).mean())
    return None


def _pickled(estimator: Any, feature_names: Sequence[str]) -> bytes:
    try:
        return pickle.dumps((estimator, tuple(feature_names)), protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadConfigError(
            f"{type(estimator).__name__} cannot be stored: {error}; give it functions of a module, no lambda"
        ) from error


class _Unpickler(pickle.Unpickler):
    """Reads an estimator, whose classes may be those of the recipe that is stored with it."""

    def __init__(self, data: bytes, own: Callable[[str], object]) -> None:
        super().__init__(io.BytesIO(data))
        self._own = own

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}:{name}"
        return self._own(path) if is_of_recipe(path) and "." not in name else super().find_class(module, name)
