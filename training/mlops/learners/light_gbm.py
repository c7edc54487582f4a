"""Gradient-boosted trees by LightGBM (Ke et al. 2017)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import lightgbm
import numpy as np
import numpy.typing as npt
import torch

from mlops.contract.learner_settings import LightGbmSettings
from mlops.contract.objective_settings import MulticlassSettings, MultilabelSettings, RegressionSettings
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.batch import rows_with
from mlops.data.shards.feature_table import FeatureTable
from mlops.learners.learner import FittedModel, Lesson
from mlops.metrics.predictions import Floats
from mlops.objectives.objective import LoadedObjective

Array = npt.NDArray[np.float64]
_REGRESSIONS: Final = {
    "mse": "regression",
    "mae": "regression_l1",
    "huber": "huber",
    "poisson": "poisson",
    "quantile": "quantile",
}
"""LightGBM's objective by the loss of ours."""
_WRITTEN: Final = {"binary": "binary sigmoid:1", "multiclass": "multiclass num_class:{num_class}"}
"""LightGBM's objectives as a model's text has them, where that is more than the name."""
_READ_ALIKE: Final = (
    frozenset({"regression", "regression_l1", "huber", "fair", "mape", "quantile"}),
    frozenset({"lambdarank", "rank_xendcg"}),
)
"""LightGBM's objectives whose sums are read in the same way: as the label's value, or as an order."""
_MOST_ROWS: Final = 10_000
"""Most rows of a group to be ranked: LightGBM refuses more."""
_TREE, _END = "\nTree=", "\nend of trees\n"
"""What stands before each tree, and after the last, in LightGBM's text of a model."""


class Trees:
    """
    Sums of trees, ``K`` of them where the objective has so many outputs: a booster for each, or one for all classes.

    Each booster is a text as LightGBM writes it, of all trees there are, in the order in which they were learnt:
    LightGBM adds their values in this order, to the same bits whether it has just learnt them or read them.
    """

    def __init__(
        self,
        objective: LoadedObjective,
        feature_names: Sequence[str],
        texts: Sequence[str] = (),
        known: Sequence[tuple[npt.NDArray[np.float32], Array]] = (),
    ) -> None:
        """
        :param texts: of the boosters, in the order of their outputs; none before the first epoch
        :param known: rows with their sums, ``[K, N]``, which are not made again
        """
        self.objective, self.feature_names, self.texts, self._known = objective, tuple(feature_names), texts, known

    @cached_property
    def _boosters(self) -> Sequence[lightgbm.Booster]:
        return [lightgbm.Booster(model_str=text) for text in self.texts]

    def check(self) -> None:
        """:raises ValueError: where a text is damaged"""
        num_outputs = sum(booster.num_model_per_iteration() for booster in self._boosters)
        if self.texts and num_outputs != self.objective.functions.num_outputs:
            raise ValueError(f"{num_outputs} outputs, the objective has {self.objective.functions.num_outputs}")
        for text, booster in zip(self.texts, self._boosters, strict=True):
            if booster.num_trees() != text.count(_TREE):
                raise ValueError(f"LightGBM reads {booster.num_trees()} of {text.count(_TREE)} trees")

    def raw(self, features: npt.NDArray[np.float32]) -> Array:
        """Return ``[K, N]``, the sums of the trees' values."""
        for rows, sums in self._known:
            if rows is features:
                return sums
        if not self.texts:
            return np.zeros((self.objective.functions.num_outputs, len(features)))
        return np.concatenate([_by_output(booster.predict(features, raw_score=True)) for booster in self._boosters])

    def predict(self, table: FeatureTable) -> Floats:
        return as_predictions(self.raw(table.features), self.objective)

    def save(self) -> bytes:
        return json.dumps({"feature_names": self.feature_names, "outputs": list(self.texts)}).encode()

    def importance(self, table: FeatureTable) -> Mapping[str, float]:
        """
        Return how far each feature moves a row's sums, on average: the mean of the absolute contributions by TreeSHAP
        (Lundberg et al. 2020), which add up to a row's sum.
        """
        moved = np.zeros(len(self.feature_names))
        for booster in self._boosters:
            found = np.asarray(booster.predict(table.features, pred_contrib=True))
            # For each output the features, and then what a row without any would have.
            parts = found.reshape(table.num_rows, -1, len(self.feature_names) + 1)[:, :, :-1]
            moved += np.abs(parts).mean(axis=0).sum(axis=0)
        return dict(zip(self.feature_names, moved.tolist(), strict=True))


class LightGbm:
    """Implements :class:`mlops.Learner`."""

    def __init__(self, settings: LightGbmSettings) -> None:
        self._settings = settings
        self._data: tuple[lightgbm.Dataset, lightgbm.Dataset] | None = None

    def begin(self, lesson: Lesson) -> Trees:
        """
        See :meth:`mlops.Learner.begin`.

        :raises BadDataError: where LightGBM learns the objective, but not from such labels or groups
        """
        self._objectives(lesson.objective)
        _check_rows(lesson)
        self._data = None  # it would go on from the sums of another training
        return Trees(lesson.objective, lesson.feature_names)

    def load(self, data: bytes, objective: LoadedObjective) -> Trees:
        """
        See :meth:`mlops.Learner.load`. Sums of trees mean what the objective says that they were learnt with: one that
        LightGBM names in the text must be ours, with the same parameters, or one whose sums are read alike. A text
        names none where the objective was a function of whoever has trained them. Nobody can tell then what the sums
        mean, and a function of one's own is a reason to train elsewhere: such trees are taken for ours, and what they
        are worth is measured.
        """
        try:
            document = json.loads(data)
            model = Trees(objective, document["feature_names"], document["outputs"])
            if not model.texts:
                raise ValueError("it has no trees")
            model.check()
        except (ValueError, KeyError, TypeError, RecursionError, lightgbm.basic.LightGBMError) as error:
            raise BadDataError(f"this is no model of gradient-boosted trees: {error}") from error
        parameters = self._objectives(objective)[0]
        ours = _WRITTEN.get(name := parameters["objective"], name).format(**parameters)
        alike = next((each for each in _READ_ALIKE if ours in each), {ours})
        for text in model.texts:
            if (theirs := _objective_of(text)) is not None and theirs not in alike:
                raise BadDataError(
                    f"these trees were learnt with LightGBM's objective {theirs!r}, and objective {objective.name!r} "
                    f"would read them as those of {ours!r}: set the objective, or its settings, that they were learnt "
                    "with"
                )
        return model

    def learn(self, model: FittedModel, lesson: Lesson, epoch: int) -> tuple[Trees, float]:
        assert isinstance(model, Trees)
        try:
            return self._learn(model, lesson, epoch)
        except lightgbm.basic.LightGBMError as error:
            if "alloc" in str(error):  # of memory a retry may have more
                raise
            raise BadDataError(
                f"LightGBM cannot learn objective {lesson.objective.name!r} from these rows, with these settings of "
                f"train.learner_settings: {error}; change what it names, or take another learner"
            ) from error

    def _learn(self, model: Trees, lesson: Lesson, epoch: int) -> tuple[Trees, float]:
        tables = (lesson.train.features, lesson.validation.features)
        before = [model.raw(features) for features in tables]
        texts, losses, sums, done = [], [], [], 0
        for number, objective in enumerate(self._objectives(lesson.objective)):
            outputs = slice(done, done := done + objective.get("num_class", 1))
            starts = [each[outputs] for each in before] if model.texts else None
            booster = self._boost(lesson, objective, starts, epoch, number)
            # Threads change no tree, but the text, which names their number, and the last bits of the loss, a sum.
            booster.reset_parameter({"num_threads": 1})
            text = booster.model_to_string(num_iteration=-1)
            texts.append(_joined(model.texts[number] if model.texts else None, text))
            _, _, loss, higher_is_better = booster.eval_train()[0][:4]
            # LambdaRank's gradients are those of no loss that has a value: what NDCG lacks of its best stands for it.
            losses.append(1 - loss if higher_is_better else loss)
            sums.append(_sums(booster))
        known = [
            (features, np.concatenate(each)) for features, each in zip(tables, zip(*sums, strict=True), strict=True)
        ]
        return Trees(lesson.objective, model.feature_names, texts, known), float(np.mean(losses))

    def _boost(
        self, lesson: Lesson, objective: Mapping[str, Any], starts: Sequence[Array] | None, epoch: int, number: int
    ) -> lightgbm.Booster:
        """
        Return the trees of one epoch.

        :param number: of the booster
        :param starts: sums of the trees before, for the rows to learn from and those of the validation, each ``[K, N]``
            of the booster's ``K`` outputs
        """
        settings = self._settings
        grouped = objective["objective"] == "lambdarank"
        parameters = {
            **settings.model_dump(exclude={"rounds_per_epoch"}),
            **objective,
            # A seed of the epoch's own, so that nothing depends on draws that came before it; but one for the bins.
            "seed": (lesson.seed * 1_000_003 + epoch) % (1 << 31),
            "data_random_seed": lesson.seed % (1 << 31),
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": lesson.num_threads,
            "verbose": -1,
            # Of rows also where they are groups: LightGBM 4.7 spoils the sums of groups that a tree does not see.
            "bagging_freq": 1 if settings.bagging_fraction < 1 else 0,
            "boost_from_average": starts is None,
        }
        train, validation = self._datasets(lesson, parameters, grouped=grouped)
        for data, start in zip((train, validation), starts or (None, None), strict=True):
            data.set_init_score(None if start is None else start.reshape(-1))
        if lesson.objective.spec.several_labels:
            for data, table in ((train, lesson.train), (validation, lesson.validation)):
                data.set_label(np.ascontiguousarray(table.labels[:, number]))
        booster = lightgbm.Booster(parameters, train)
        booster.add_valid(validation, "validation")
        for _ in range(settings.rounds_per_epoch):
            if booster.update():
                break  # no split is worth its price
        return booster

    def _datasets(
        self, lesson: Lesson, parameters: Mapping[str, Any], *, grouped: bool
    ) -> tuple[lightgbm.Dataset, lightgbm.Dataset]:
        """Return the rows to learn from and those of the validation in LightGBM's bins, made once."""
        if self._data is None:

            def binned(table: FeatureTable, reference: lightgbm.Dataset | None) -> lightgbm.Dataset:
                return lightgbm.Dataset(
                    table.features,
                    table.labels if table.labels.ndim == 1 else np.ascontiguousarray(table.labels[:, 0]),
                    reference=reference,
                    group=np.diff(table.offsets) if grouped else None,
                    categorical_feature=list(lesson.categorical),
                    params=dict(parameters),
                    free_raw_data=False,
                ).construct()

            train = binned(lesson.train, None)
            # LightGBM drops features that part too few samples; without any it ends with a check of its own code.
            if not any(train.feature_num_bin(number) for number in range(train.num_feature())):
                raise BadDataError(
                    f"none of the {train.num_feature()} features parts the {train.num_data():,} training samples into "
                    f"leaves of {self._settings.min_data_in_leaf} or more: learn from more rows, or set "
                    "train.learner_settings.min_data_in_leaf lower"
                )
            self._data = train, binned(lesson.validation, train)
        return self._data

    def _objectives(self, objective: LoadedObjective) -> Sequence[Mapping[str, Any]]:
        """
        Return LightGBM's parameters for each output of an objective.

        :raises BadConfigError: where LightGBM has no such objective
        """
        match objective.name, objective.settings:
            case "binary", _:
                return [{"objective": "binary", "metric": "binary_logloss"}]
            case "multiclass", MulticlassSettings() as settings:
                return [
                    {"objective": "multiclass", "metric": "multi_logloss", "num_class": len(settings.classes)},
                ]
            case "multilabel", MultilabelSettings() as settings:
                return [{"objective": "binary", "metric": "binary_logloss"} for _ in settings.labels]
            case "ranking", _:
                return [{"objective": "lambdarank", "metric": "ndcg", "eval_at": 10, "label_gain": _gains()}]
            case "regression", RegressionSettings() as settings:
                name = _REGRESSIONS[settings.loss]
                levels = settings.quantiles or [settings.delta]
                return [{"objective": name, "metric": name, "alpha": level} for level in levels]
        raise BadConfigError(
            f"learner 'lightgbm' learns the objectives binary, multiclass, multilabel, ranking and regression, "
            f"not {objective.name!r}; take learner: torch for it"
        )


def _check_rows(lesson: Lesson) -> None:
    """:raises BadDataError: where LightGBM refuses labels or groups that the objective allows"""
    for split, table in (("training", lesson.train), ("validation", lesson.validation)):
        if lesson.objective.name == "ranking":
            if len(parts := table.labels[table.labels % 1 != 0]):
                raise BadDataError(
                    f"learner 'lightgbm' ranks by whole grades, and the {split} split has the label {parts[0]:g}; make "
                    "whole numbers of the grades in ingest.transform, or take learner: torch"
                )
            if len(table.offsets) > 1 and (most := int(np.diff(table.offsets).max())) > _MOST_ROWS:
                raise BadDataError(
                    f"learner 'lightgbm' ranks groups of at most {_MOST_ROWS:,} rows, and one of the {split} split has "
                    f"{most:,}; name further columns in FeatureSet.group_by, or take learner: torch"
                )
    settings = lesson.objective.settings
    if isinstance(settings, RegressionSettings) and settings.loss == "poisson" and not lesson.train.labels.any():
        raise BadDataError(
            "learner 'lightgbm' learns no rate by loss poisson where all labels of the training split are 0; take more "
            "rows, or another loss"
        )


def as_predictions(raw: Array, objective: LoadedObjective) -> Floats:
    """
    Return what an objective makes of raw scores, which are the outputs of a model.

    :param raw: ``[K, N]``
    :return: ``[N]`` or ``[N, K]``
    """
    outputs = torch.from_numpy(np.ascontiguousarray(raw.T if len(raw) > 1 else raw[0], np.float32))
    return objective.functions.predict(outputs, rows_with(torch.zeros(len(outputs))))


def _sums(booster: lightgbm.Booster) -> Sequence[Array]:
    """
    Return the sums of all trees, for the rows that it learnt from and those of the validation, each ``[K, N]`` of the
    booster's ``K`` outputs.
    """
    # LightGBM shows them as its objective converts them. Its text and loss are made: it needs none any more.
    booster.reset_parameter({"objective": "none"})
    found = []

    def keep(sums: Array, _: lightgbm.Dataset) -> tuple[str, float, bool]:
        found.append(_by_output(sums.copy()))
        return "sums", 0.0, True

    booster.eval_train(keep)
    booster.eval_valid(keep)
    return found


def _by_output(values: Any) -> Array:
    """Return ``[K, N]`` of LightGBM's ``[N]``, or ``[N, K]`` of several classes."""
    found = np.asarray(values, np.float64)
    return found[None] if found.ndim == 1 else np.ascontiguousarray(found.T)


def _joined(text: str | None, more: str) -> str:
    """Return the text of one booster with the trees of two, of which the first may be none."""
    head, trees = _parted(more)
    if text is not None:
        head, before = _parted(text)
        trees = [*before, *trees]
    return head + "".join(f"{_TREE}{number}\n{tree}" for number, tree in enumerate(trees)) + _END


def _parted(text: str) -> tuple[str, Sequence[str]]:
    """Return what stands before the trees, and each tree."""
    head, *trees = text.partition(_END)[0].split(_TREE)
    # Sizes of trees, which LightGBM does without, would be those of one epoch.
    lines = [line for line in head.splitlines(keepends=True) if not line.startswith("tree_sizes=")]
    return "".join(lines), [tree.partition("\n")[2] for tree in trees]


def _objective_of(text: str) -> str | None:
    """Return what a booster's text says that it was learnt with; None where it names nothing that LightGBM has."""
    lines = text.partition(_TREE)[0].splitlines()
    named = next((line.removeprefix("objective=").strip() for line in lines if line.startswith("objective=")), "")
    return None if named in ("", "custom") else named


def _gains() -> list[int]:
    """Return the gain of each grade of relevance, ``2^grade - 1``."""
    return [2**grade - 1 for grade in range(25)]
