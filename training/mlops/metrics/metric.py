"""A metric that is ready to be used: its declaration, its number, and the function that computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlops.code import load_extension, resolved
from mlops.contract.metrics import METRICS, MetricSpec, parameter_of, parts_of, short_name, title_of
from mlops.contract.step import BadConfigError, BadDataError, StepError
from mlops.metrics.predictions import Predictions, num_not_finite
from mlops.metrics.weighted import Weighted


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A metric as a pipeline names it."""

    name: str
    """As it stands in the pipeline, or the short name of an import path: ``ndcg@10``."""
    spec: MetricSpec
    parameter: float | None
    function: Callable[[Predictions, Any], Weighted]

    @property
    def direction(self) -> int:
        """1 where a higher value is better, -1 where a lower one is."""
        return self.spec.direction

    @property
    def title(self) -> str:
        """Name for people: ``NDCG@10``."""
        return title_of(self.name, self.spec)

    def weighted(self, predictions: Predictions) -> Weighted:
        """
        Return the metric as a function of the samples' weights.

        :raises BadDataError: where there are no rows, or predictions that are not finite
        :raises BadConfigError: where the function of a recipe or a package fails
        """
        if not predictions.num_rows:
            raise BadDataError(f"{self.name} cannot be measured: the split has no rows")
        # Sorting would take NaN for just another score.
        if num_wrong := num_not_finite(predictions.predicted):
            raise BadDataError(
                f"{self.name} cannot be measured: {num_wrong} of {predictions.num_rows} scores are not finite"
            )
        try:
            found = self.function(predictions, self.parameter)
        except StepError:
            raise
        except Exception as error:  # the code of others may raise anything
            raise BadConfigError(
                f"metric {self.name!r} failed on {predictions.num_rows} rows: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, Weighted):
            raise BadConfigError(f"metric {self.name!r} must return a Weighted, got {found!r}")
        return found

    def measure(self, predictions: Predictions) -> float:
        """
        Measure a whole split.

        :raises BadDataError: where the metric is not defined on it: no rows, no relevant document, one class only
        """
        return self.measured(self.weighted(predictions), predictions)

    def measure_with(self, others: Iterable[Metric], predictions: Predictions) -> tuple[float, dict[str, float]]:
        """
        Measure a whole split by this metric and by others.

        :return: its value, and theirs by name
        :raises BadDataError: as :meth:`measure`
        """
        return self.measure(predictions), {each.name: each.measure(predictions) for each in others}

    def measured(self, weighted: Weighted, predictions: Predictions) -> float:
        """
        Return the value of all samples.

        :param weighted: what :meth:`weighted` returned for these predictions
        :raises BadDataError: where it is not finite
        """
        value = self.values(weighted, np.ones((1, predictions.num_samples)))[0]
        if not np.isfinite(value):
            reason = weighted.undefined or f"it is {value} on {predictions.num_rows} rows"
            raise BadDataError(f"{self.name} cannot be measured: {reason}")
        return float(value)

    def values(self, weighted: Weighted, weights: Any) -> Any:
        """
        Return the values ``[R]`` for weights ``[R, S]``.

        :raises BadConfigError: where the function of a recipe or a package fails, or returns something else
        """
        try:
            found = np.asarray(weighted.values(weights), np.float64)
        except StepError:
            raise
        except Exception as error:  # the code of others may raise anything
            raise BadConfigError(f"metric {self.name!r} failed: {type(error).__name__}: {error}") from error
        if found.shape != (len(weights),):
            raise BadConfigError(
                f"metric {self.name!r} must return one number for each of {len(weights)} weightings, got an array of "
                f"shape {list(found.shape)}"
            )
        return found


def load_metric(name: str, own: Callable[[str], object]) -> Metric:
    """
    Load a metric.

    :param name: as a pipeline names it
    :param own: loads code of a recipe by its import path
    :raises BadConfigError: where there is none of that name, or it is something else
    """
    spec = load_extension(METRICS, parts_of(name)[0], MetricSpec, own)
    try:
        parameter = parameter_of(name, spec)
    except ValueError as error:
        raise BadConfigError(f"metric must be {error}, got {name!r}") from None
    return Metric(name=short_name(name), spec=spec, parameter=parameter, function=resolved(spec.weighted, own))
