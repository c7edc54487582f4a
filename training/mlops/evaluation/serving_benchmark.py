"""The model's behaviour as a server: how quickly it answers, how large it is, and what it makes of odd requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import polars as pl

from mlops.contract.step import BadConfigError, BadDataError
from mlops.evaluation.stopwatch import own_seconds
from mlops.metrics.predictions import Floats
from mlops.predictor.predictor import Predictor
from mlops.predictor.scored import Scored

NUM_REQUESTS: Final = 300
NUM_ALONE: Final = 64
"""Number of requests whose answers are compared with those of evaluation."""
NUM_ODD: Final = 8
"""Number of requests that each have one value made odd."""
_FAR: Final = 10
"""Distance of an odd number from a column's largest or smallest value, in ranges of the column."""

_TOLERANCE: Final = 0.01
"""Two predictions are the same where they differ by less than this share of their size and of their spread: at another
place of a batch linear algebra gives other last bits, which are few where a model computes in half precision."""

SCORED, REFUSED, NOT_FINITE = "scored", "refused", "not finite"

Request = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Disturbance:
    """The result of requests in which one raw column had a value that it never has."""

    column: str
    value: str
    num_requests: int
    num_refused: int
    """Number of requests refused with a message that says what is wrong."""
    num_not_finite: int
    num_failed: int
    """Number of requests that failed with any other error, as a server would answer 500."""
    error: str = ""
    """The first of the errors that ``num_failed`` counts."""

    @property
    def is_bad(self) -> bool:
        return bool(self.num_not_finite or self.num_failed)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingBenchmark:
    """
    Latency of features and model on one request, warm, in this process; no network, no queue, and without what other
    programs on the machine cost it (:func:`mlops.evaluation.stopwatch.own_seconds`).
    """

    latency_p50_ms: float
    latency_p99_ms: float
    num_requests: int
    rows_per_request: float
    num_bytes: int
    disturbances: Sequence[Disturbance]


def measure_serving(model: Predictor, rows: pl.DataFrame, scored: Scored) -> ServingBenchmark:
    """
    Measure the latency of held-out samples one by one (the rows of a query, a row, a document), and ask odd requests.

    :param rows: raw rows, at least one of which the feature set keeps
    :param scored: these rows as the model scores them all at once
    :raises BadConfigError: where it answers otherwise about a sample alone
    """
    known, offsets = model.samples(rows)
    known = known.select(model.columns.names())
    picked = np.linspace(0, len(offsets) - 2, min(NUM_REQUESTS, len(offsets) - 1), dtype=np.int64)
    bounds = list(pairwise(offsets.tolist()))
    requests = [known[slice(*bounds[index])].to_dicts() for index in picked]
    # Not measured: the first ones load and compile.
    some, predicted = slice(None, None, max(1, len(requests) // NUM_ALONE)), scored.predictions.predicted
    _check_alone(
        [model.serve(request) for request in requests[some]],
        [predicted[slice(*bounds[index])] for index in picked[some]],
        spread=float(np.std(predicted)),
    )
    milliseconds = 1000 * own_seconds([partial(model.serve, request) for request in requests])
    return ServingBenchmark(
        latency_p50_ms=float(np.percentile(milliseconds, 50)),
        latency_p99_ms=float(np.percentile(milliseconds, 99)),
        num_requests=len(requests),
        rows_per_request=sum(map(len, requests)) / len(requests),
        num_bytes=model.num_bytes,
        disturbances=[
            _disturb(model, requests[:: max(1, len(requests) // NUM_ODD)], name, said, value)
            for name in known.columns
            for said, value in _odd_values(known[name])
        ],
    )


def _check_alone(served: Sequence[Floats], scored: Sequence[Floats], *, spread: float) -> None:
    """
    :param served: predictions of samples that were asked for alone
    :param scored: of the same samples, among all others
    """
    for alone, beside in zip(served, scored, strict=True):
        if not np.allclose(alone, beside, rtol=_TOLERANCE, atol=_TOLERANCE * spread):
            row = int(np.argmax(np.abs(alone - beside).reshape(len(alone), -1).max(axis=1)))
            raise BadConfigError(
                f"the model predicts {beside[row]} for a held-out row among others, and {alone[row]} for the same one "
                "in a request of its own: what is measured here is not what a server would answer. The model's forward "
                "mixes samples: let means, norms and softmaxes go over the features of a sample or the rows of its "
                "group, not over dimension 0"
            )


def _odd_values(column: pl.Series) -> Iterator[tuple[str, Any]]:
    yield "missing", None
    dtype = column.dtype
    if dtype.is_integer():
        largest, smallest = column.upper_bound().item(), column.lower_bound().item()
        yield from (("largest of its type", largest), ("smallest of its type", smallest))
    elif dtype.is_float():
        known = column.drop_nulls().drop_nans().to_numpy()
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
        reach = _FAR * max(high - low, 1.0)
        yield from (("far above", high + reach), ("far below", low - reach))
        largest = float(np.finfo(np.float32 if dtype == pl.Float32 else np.float64).max)
        yield from (("largest of its type", largest), ("not a number", float("nan")))
    elif dtype in (pl.String, pl.Categorical):
        yield from (("never seen", "\N{SNOWMAN} never seen"), ("empty", ""), ("very long", "x" * 10_000))
    elif dtype == pl.Date:
        yield from (("first day of the calendar", date.min), ("last day of the calendar", date.max))
    elif isinstance(dtype, pl.Datetime):
        zone = UTC if dtype.time_zone else None
        yield from (("year 1", datetime(1, 1, 2, tzinfo=zone)), ("year 9999", datetime(9999, 12, 30, tzinfo=zone)))


def _disturb(model: Predictor, requests: Sequence[Request], column: str, said: str, value: Any) -> Disturbance:
    odd = [[{**request[0], column: value}, *request[1:]] for request in requests]
    # All at once, which is quick; one by one only where something is wrong.
    answers = [_ask(model, [row for request in odd for row in request])] * len(odd)
    if answers[0] != SCORED:
        answers = [_ask(model, request) for request in odd]
    return Disturbance(
        column=column,
        value=said,
        num_requests=len(odd),
        num_refused=answers.count(REFUSED),
        num_not_finite=answers.count(NOT_FINITE),
        num_failed=sum(answer not in (SCORED, REFUSED, NOT_FINITE) for answer in answers),
        error=next((answer for answer in answers if answer not in (SCORED, REFUSED, NOT_FINITE)), ""),
    )


def _ask(model: Predictor, request: Request) -> str:
    """Send a request; return whether it was scored, refused or not finite, or the error."""
    try:
        with np.errstate(all="ignore"):
            return SCORED if np.isfinite(model.serve(request)).all() else NOT_FINITE
    except BadDataError:
        return REFUSED
    except Exception as error:  # of the recipe's code: that it comes is what is measured
        return f"{type(error).__name__}: {error}".splitlines()[0]
