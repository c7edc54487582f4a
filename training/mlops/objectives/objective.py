"""An objective that is ready to be used, and the protocol of the class that implements one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from mlops.code import load_extension, resolved
from mlops.contract.objectives import OBJECTIVES, ObjectiveSpec
from mlops.contract.section import Section, check_section
from mlops.contract.step import BadConfigError
from mlops.metrics.predictions import Floats, IntArray, Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

    from mlops.data.shards.batch import Batch


_SEVERAL_NUMBERS: Final = ("classes", "labels", "quantiles")
"""Kinds of prediction that are several numbers for a row, where the objective has several outputs."""


class Objective(Protocol):
    """
    What a model learns, and what its outputs mean. A class that implements it is made of the objective's settings, an
    instance of :attr:`ObjectiveSpec.section`.

    Shapes are of B samples of a batch: rows ``[B, F]``; groups of rows ``[B, D, F]``, padded, with a mask ``[B, D]``;
    or sequences of tokens ``[B, C]``.
    """

    @property
    def num_outputs(self) -> int:
        """
        Numbers that the model returns for a row: with 1 its outputs are ``[B]`` or ``[B, D]``, with K > 1 they have one
        more dimension of K, and ``build_model`` gets ``config.num_outputs``.
        """

    @property
    def columns(self) -> Mapping[str, str]:
        """Columns of a served answer, with MLflow's types: ``{"score": "float"}``."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """
        Return a loss for each sample, ``[B]``.

        :raises BadConfigError: where the model's outputs have another shape
        """

    def predict(self, outputs: Tensor, batch: Batch) -> Floats:
        """
        Return the predictions of a batch's rows, without padding: ``[N]``, or ``[N, K]``. Of sequences ``[B]``.

        :param outputs: of the model, on its device
        :param batch: on the CPU
        :raises BadConfigError: where the outputs have another shape
        """

    def check_labels(self, labels: Floats) -> None:
        """
        Check labels of a split before they cost any time.

        :param labels: ``[N]``; or ``[N, L]``, where rows have several, and those of one of these

        :raises BadDataError: where the objective is not defined for one of them, with its value and what would do
        """

    def answer(self, predictions: Predictions) -> Mapping[str, npt.NDArray[Any]]:
        """
        Return the columns of a served answer, ``[N]`` each.

        :param predictions: of the rows of a request. Their labels are not known; of documents they are the numbers of
            tokens
        """


DrawFigures = Callable[[Mapping[str, Predictions], str], "list[tuple[str, Figure]]"]
"""
Predictions of the ``candidate`` and, if there is one, the ``champion``, and the metric that they are judged by; to the
title and the figure of each.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedObjective:
    """An objective as a pipeline names it, with its settings."""

    name: str
    spec: ObjectiveSpec
    settings: Section
    functions: Objective
    own: Callable[[str], object]
    """Loads code of the recipe by its import path."""

    @property
    def kind(self) -> str:
        """Kind of prediction; see :attr:`ObjectiveSpec.predicts`."""
        return self.spec.kind(self.settings)

    def predictions(
        self, labels: Floats, predicted: Floats, offsets: IntArray, *, by: str = "the model"
    ) -> Predictions:
        """
        Return predictions with the rows that they are of.

        :param by: what has predicted, for the message
        :raises BadConfigError: as :func:`check_shape`
        """
        check_shape(self, predicted, len(labels), by)
        return Predictions(labels=labels, predicted=predicted, offsets=offsets, settings=self.settings)

    def figures(self) -> DrawFigures | None:
        """
        Load what draws the figures of a report; None where the objective has none.

        :raises BadConfigError: where it cannot be imported
        """
        found: DrawFigures | None = None if self.spec.figures is None else resolved(self.spec.figures, self.own)
        return found


def check_shape(objective: LoadedObjective, predicted: Floats, rows: int, by: str) -> None:
    """
    Check predictions before they are measured or served: of one column of two classes the first would always be the
    most probable one, and a column less the labels is a table.

    :param rows: number of rows that they are of
    :param by: what has predicted, for the message
    :raises BadConfigError: where they are not one number for each row, ``[N]``, or ``[N, K]`` of an objective with
        K outputs
    """
    shape = list(np.shape(predicted))
    # A document's prediction is the sum of its tokens' losses, whatever the outputs are.
    several = 1 if objective.spec.inputs == "tokens" else objective.functions.num_outputs
    wanted = [rows, several] if several > 1 else [rows]
    # Somebody's objective may learn a mean and its variance, and predict the mean.
    if shape != wanted and not (shape == [rows] and objective.kind not in _SEVERAL_NUMBERS):
        each = f"{several} numbers per row are" if several > 1 else "one number per row is"
        fix = ": squeeze its last dimension" if shape == [*wanted, 1] else ""
        raise BadConfigError(
            f"{by} predicted an array of shape {shape} for {rows} rows; {each} needed for objective "
            f"{objective.name!r}, {wanted}{fix}"
        )


def no_predictions(objective: Objective) -> Floats:
    """Return the predictions of no rows, ``[0]`` or ``[0, K]``."""
    return np.empty((0, objective.num_outputs) if objective.num_outputs > 1 else 0, np.float32)


def load_objective(name: str, settings: Mapping[str, Any], own: Callable[[str], object]) -> LoadedObjective:
    """
    Load an objective.

    :param name: as a pipeline names it: ``ranking``, ``package.module:NAME``
    :param settings: ``train.objective_settings``
    :param own: loads code of a recipe by its import path
    :raises BadConfigError: where there is none of that name, it is something else, or its settings are wrong
    """
    spec = load_extension(OBJECTIVES, name, ObjectiveSpec, own)
    section = check_section(spec.section, settings, "train.objective_settings")
    functions: Objective = resolved(spec.implementation, own)(section)
    return LoadedObjective(name=name, spec=spec, settings=section, functions=functions, own=own)
