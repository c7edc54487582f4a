"""The metrics that models are measured by: ours, and those that recipes and other packages add."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import AfterValidator, StringConstraints

from mlops.contract.extensions import ExtensionPoint, by_import_path, installed
from mlops.contract.section import METRIC_PATTERN, SpecError


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """The number after the ``@`` of a metric's name, such as the 10 of ``ndcg@10``."""

    name: str
    """How it is written where no number is meant: ``K``."""
    whole: bool = True
    """True: a whole number, at least 1. False: any number above 0."""

    def parse(self, text: str) -> float:
        """:raises ValueError: where the text is not such a number"""
        pattern = r"[1-9]\d*" if self.whole else r"\d+(\.\d+)?"
        if not re.fullmatch(pattern, text) or not float(text):
            raise ValueError(f"a {'whole number' if self.whole else 'number'} above 0")
        return float(text)


@dataclass(frozen=True, kw_only=True)
class MetricSpec:
    """
    What is known of a metric without the libraries that compute it: what the scheduler checks a pipeline by.

    An entry point of the group ``mlops.metrics``, or an import path in a recipe, leads to one.
    """

    measures: Sequence[str]
    """Kinds of prediction that it is defined for; see :attr:`mlops.contract.objectives.ObjectiveSpec.predicts`."""
    higher_is_better: bool
    title: str
    """Its name for people: ``log loss``."""
    weighted: str | Callable[..., Any]
    """``weighted(predictions, parameter) -> Weighted``, or its import path in the training runtime."""
    parameter: Parameter | None = None
    """None: its name has no number."""

    @property
    def direction(self) -> int:
        """1 where a higher value is better, -1 where a lower one is."""
        return 1 if self.higher_is_better else -1


_OURS: Final = "mlops.metrics"
NDCG = MetricSpec(
    measures=("relevance",),
    higher_is_better=True,
    title="NDCG",
    parameter=Parameter(name="K"),
    weighted=f"{_OURS}.ranking:weighted_ndcg",
)
MRR = MetricSpec(
    measures=("relevance",), higher_is_better=True, title="MRR", weighted=f"{_OURS}.ranking:weighted_reciprocal_rank"
)
AUC = MetricSpec(measures=("logit",), higher_is_better=True, title="AUC", weighted=f"{_OURS}.binary:weighted_auc")
LOG_LOSS = MetricSpec(
    measures=("logit", "classes", "labels"),
    higher_is_better=False,
    title="log loss",
    weighted=f"{_OURS}.classes:weighted_log_loss",
)
F1 = MetricSpec(measures=("logit",), higher_is_better=True, title="F1", weighted=f"{_OURS}.binary:weighted_f1")
CALIBRATION_ERROR = MetricSpec(
    measures=("logit", "classes", "labels"),
    higher_is_better=False,
    title="calibration error",
    weighted=f"{_OURS}.classes:weighted_calibration_error",
)
ACCURACY = MetricSpec(
    measures=("logit", "classes", "labels"),
    higher_is_better=True,
    title="accuracy",
    weighted=f"{_OURS}.classes:weighted_accuracy",
)
BALANCED_ACCURACY = MetricSpec(
    measures=("logit", "classes"),
    higher_is_better=True,
    title="balanced accuracy",
    weighted=f"{_OURS}.classes:weighted_balanced_accuracy",
)
MACRO_F1 = MetricSpec(
    measures=("logit", "classes", "labels"),
    higher_is_better=True,
    title="macro F1",
    weighted=f"{_OURS}.classes:weighted_macro_f1",
)
MICRO_F1 = MetricSpec(
    measures=("labels",), higher_is_better=True, title="micro F1", weighted=f"{_OURS}.labels:weighted_micro_f1"
)
MACRO_AUC = MetricSpec(
    measures=("labels",), higher_is_better=True, title="macro AUC", weighted=f"{_OURS}.labels:weighted_macro_auc"
)
HAMMING_LOSS = MetricSpec(
    measures=("labels",), higher_is_better=False, title="Hamming loss", weighted=f"{_OURS}.labels:weighted_hamming_loss"
)
TOP_K_ACCURACY = MetricSpec(
    measures=("classes",),
    higher_is_better=True,
    title="top-k accuracy",
    parameter=Parameter(name="K"),
    weighted=f"{_OURS}.classes:weighted_top_k_accuracy",
)
MAE = MetricSpec(
    measures=("value", "quantiles"),
    higher_is_better=False,
    title="mean absolute error",
    weighted=f"{_OURS}.regression:weighted_mae",
)
RMSE = MetricSpec(
    measures=("value", "quantiles"),
    higher_is_better=False,
    title="root mean squared error",
    weighted=f"{_OURS}.regression:weighted_rmse",
)
R2 = MetricSpec(
    measures=("value", "quantiles"),
    higher_is_better=True,
    title="R2",
    weighted=f"{_OURS}.regression:weighted_r2",
)
POISSON_DEVIANCE = MetricSpec(
    measures=("value",),
    higher_is_better=False,
    title="Poisson deviance",
    weighted=f"{_OURS}.regression:weighted_poisson_deviance",
)
PINBALL = MetricSpec(
    measures=("quantiles",),
    higher_is_better=False,
    title="pinball loss",
    weighted=f"{_OURS}.regression:weighted_pinball",
)
QUANTILE_ERROR = MetricSpec(
    measures=("quantiles",),
    higher_is_better=False,
    title="calibration error of the quantiles",
    weighted=f"{_OURS}.regression:weighted_quantile_error",
)
PERPLEXITY = MetricSpec(
    measures=("token_loss",),
    higher_is_better=False,
    title="perplexity",
    weighted=f"{_OURS}.language:weighted_perplexity",
)

METRICS: Final = ExtensionPoint(
    kind="metric",
    group="mlops.metrics",
    builtin={
        "ndcg": "mlops.contract.metrics:NDCG",
        "mrr": "mlops.contract.metrics:MRR",
        "auc": "mlops.contract.metrics:AUC",
        "log_loss": "mlops.contract.metrics:LOG_LOSS",
        "f1": "mlops.contract.metrics:F1",
        "calibration_error": "mlops.contract.metrics:CALIBRATION_ERROR",
        "accuracy": "mlops.contract.metrics:ACCURACY",
        "balanced_accuracy": "mlops.contract.metrics:BALANCED_ACCURACY",
        "macro_f1": "mlops.contract.metrics:MACRO_F1",
        "micro_f1": "mlops.contract.metrics:MICRO_F1",
        "macro_auc": "mlops.contract.metrics:MACRO_AUC",
        "hamming_loss": "mlops.contract.metrics:HAMMING_LOSS",
        "top_k_accuracy": "mlops.contract.metrics:TOP_K_ACCURACY",
        "mae": "mlops.contract.metrics:MAE",
        "rmse": "mlops.contract.metrics:RMSE",
        "r2": "mlops.contract.metrics:R2",
        "poisson_deviance": "mlops.contract.metrics:POISSON_DEVIANCE",
        "pinball": "mlops.contract.metrics:PINBALL",
        "quantile_error": "mlops.contract.metrics:QUANTILE_ERROR",
        "perplexity": "mlops.contract.metrics:PERPLEXITY",
    },
    attributes=("measures", "higher_is_better", "title", "parameter", "weighted"),
    written={"ndcg": "ndcg@K", "top_k_accuracy": "top_k_accuracy@K"},
)


def parts_of(metric: str) -> tuple[str, str]:
    """Split ``ndcg@10`` into its name and its number; the number is empty where there is none."""
    name, _, number = metric.partition("@")
    return name, number


def short_name(metric: str) -> str:
    """
    Return the name that a metric has in results and rules: of ``include.taxi.metrics:WITHIN@15`` it is ``within@15``.
    """
    return metric.rpartition(":")[2].lower() if by_import_path(metric) else metric


def check_distinct(metrics: Sequence[str]) -> None:
    """:raises ValueError: where two metrics have one short name, but are not the same"""
    found: dict[str, str] = {}
    for metric in metrics:
        name = short_name(metric)
        if (other := found.setdefault(name, metric)) != metric:
            raise ValueError(f"distinct: {other} and {metric} are both called {name}; rename one")


def spec_of(metric: str) -> MetricSpec:
    """
    Load the declaration of a metric.

    :param metric: as a pipeline names it: ``ndcg@10``, ``package.module:NAME``
    :raises SpecError: where there is none of that name, or its number is missing, wrong or too many
    """
    spec: MetricSpec = METRICS.load(parts_of(metric)[0])
    try:
        parameter_of(metric, spec)
    except ValueError as error:
        raise SpecError(f"metric must be {error}, got {metric!r}") from None
    return spec


def parameter_of(metric: str, spec: MetricSpec) -> float | None:
    """
    Return the number in the name of a metric.

    :raises ValueError: where it is missing, wrong or too many
    """
    name, number = parts_of(metric)
    if spec.parameter is None:
        if "@" in metric:
            raise ValueError(f"{name}, without a number")
        return None
    try:
        return spec.parameter.parse(number)
    except ValueError as error:
        raise ValueError(f"{name}@{spec.parameter.name}, {spec.parameter.name} {error}") from None


def title_of(metric: str, spec: MetricSpec) -> str:
    """Return the name for people: ``NDCG@10``, ``log loss``."""
    number = parts_of(metric)[1]
    return f"{spec.title}@{number}" if number else spec.title


def names_for(predicts: str) -> list[str]:
    """Return the names of the known metrics of a kind of prediction, as ``ndcg@K``."""
    found = []
    for name in (*METRICS.builtin, *installed(METRICS.group)):
        try:
            spec: MetricSpec = METRICS.load(name)
        except SpecError:
            continue  # of a package that cannot be imported: whoever names it is told why
        if predicts in spec.measures:
            found.append(f"{name}@{spec.parameter.name}" if spec.parameter else name)
    return found


def _known(metric: str) -> str:
    if by_import_path(metric):
        return metric
    name = parts_of(metric)[0]
    METRICS.check_known(name)
    parameter_of(metric, METRICS.load(name))
    return metric


Metric = Annotated[str, StringConstraints(pattern=METRIC_PATTERN), AfterValidator(_known)]
"""Name of a metric: one of ours, of an installed package, or ``package.module:NAME``, which results and rules call
``name``."""
