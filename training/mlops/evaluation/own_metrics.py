"""Metrics that a recipe's own function computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from pathlib import Path

from mlops.code import load_attribute
from mlops.contract.step import BadConfigError
from mlops.evaluation.bootstrap import MetricFunction
from mlops.trainer.metrics import Floats, IntArray


def load_own(import_path: str, home: Path) -> MetricFunction:
    """
    Load the recipe's function; its results are checked at each call.

    :raises BadConfigError: if it is not a function, or returns anything but numbers with the same names each time. Only
        the first values must be finite: some of the bootstrap's draws may not be measurable
    """
    function = load_attribute(import_path, home)
    if not callable(function):
        raise BadConfigError(f"evaluate.metric_function: {import_path} is a {type(function).__name__}, not a function")
    names: set[str] | None = None

    def checked(labels: Floats, scores: Floats, offsets: IntArray) -> Mapping[str, float]:
        nonlocal names
        try:
            found = function(labels, scores, offsets)
        except (AttributeError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise BadConfigError(
                f"evaluate.metric_function: {import_path} failed on {len(labels)} rows: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, Mapping) or not all(isinstance(each, Real) for each in found.values()):
            raise BadConfigError(f"evaluate.metric_function must return a dict of numbers, got {found!r}")
        if names is None:
            for name, each in found.items():
                if not math.isfinite(each):
                    raise BadConfigError(
                        f"evaluate.metric_function: {name} is {each} on the whole hold-out; leave out what cannot be "
                        "measured"
                    )
            names = set(found)
        if different := sorted(names ^ set(found)):
            raise BadConfigError(
                f"evaluate.metric_function must return the same names each time: {different[0]!r} is not always "
                "among them; return NaN where it cannot be measured"
            )
        return {name: float(each) for name, each in found.items()}

    return checked
