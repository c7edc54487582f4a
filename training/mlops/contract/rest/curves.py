"""The curves of trainings, as the REST API has them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pydantic import BaseModel

MOST_POINTS: Final = 2500
"""Of a curve in one answer: MLflow gives no more, and leaves out points in between."""


class Curve(BaseModel):
    """A metric of one training; entries with one index belong together."""

    run: str
    """Of MLflow."""
    name: str
    metric: str
    steps: list[int]
    values: list[float | None]
    """Null where it was not finite."""
    at: list[int]
    """Unix time in milliseconds."""


class Value(BaseModel):
    """A point of a curve, as the stream tells it."""

    run: str
    name: str
    metric: str
    step: int
    value: float | None
    at: int


class Curves(BaseModel):
    """Of the trainings of a run."""

    curves: list[Curve]

    @classmethod
    def of(cls, values: Iterable[Value]) -> Curves:
        """
        Draw up the curves of points.

        :param values: of each curve by steps
        """
        found: dict[tuple[str, str], Curve] = {}
        for value in values:
            name = (value.run, value.metric)
            if name not in found:
                found[name] = Curve(run=value.run, name=value.name, metric=value.metric, steps=[], values=[], at=[])
            found[name].steps.append(value.step)
            found[name].values.append(value.value)
            found[name].at.append(value.at)
        return cls(curves=list(found.values()))
