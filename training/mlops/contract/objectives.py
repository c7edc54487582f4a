"""The objectives that models are trained for: ours, and those that recipes and other packages add."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, StringConstraints

from mlops.contract.extensions import ExtensionPoint, by_import_path
from mlops.contract.metrics import MetricSpec, names_for, spec_of
from mlops.contract.objective_settings import MulticlassSettings, MultilabelSettings, RegressionSettings
from mlops.contract.section import EXTENSION_PATTERN, NoSettings, Section, SpecError


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec:
    """
    What is known of an objective without the libraries that compute it: what the scheduler checks a pipeline by.

    An entry point of the group ``mlops.objectives``, or an import path in a recipe, leads to one.
    """

    predicts: str | Callable[[Any], str]
    """
    Kind of prediction, by which metrics fit, or a function of the settings that returns it:

    - ``relevance``: a number for each row, by which the rows of a group are ordered
    - ``logit``: the logit of the probability that the label is 1
    - ``classes``: the logits of several classes, of which one is the row's
    - ``labels``: the logits of several labels, each of which is 0 or 1
    - ``value``: an estimate of the label, in its unit
    - ``quantiles``: several quantiles of the label, one of them the median
    - ``token_loss``: the losses of a document's tokens, added up
    - any other word, for metrics that name it
    """
    implementation: str | Callable[..., Any]
    """Class that implements :class:`mlops.Objective`, made of the settings; or its import path in the training
    runtime."""
    figures: str | Callable[..., Any] | None = None
    """``figures(models, metric)``, which draws those of the report, or its import path; None: no figure of its own."""
    inputs: Literal["rows", "tokens"] = "rows"
    """What a model is given: rows of features, by a FeatureSet; or sequences of tokens, by a TokenSet."""
    needs_groups: bool = False
    """True: the rows of a sample are compared with each other, and the feature set must group them."""
    several_labels: bool = False
    """True: a row has several labels, ``[N, L]``: those of the columns that ``FeatureSet.label`` names."""
    section: type[Section] = NoSettings
    """What ``train.objective_settings`` may have."""
    label_settings: Sequence[str] = ()
    """Settings that say what a label means: two models that differ in one of them are not compared."""

    def kind(self, settings: Section) -> str:
        """Return the kind of prediction with these settings."""
        return self.predicts if isinstance(self.predicts, str) else self.predicts(settings)


_OURS: Final = "mlops.objectives"
RANKING = ObjectiveSpec(
    predicts="relevance",
    needs_groups=True,
    implementation=f"{_OURS}.ranking:Ranking",
    figures=f"{_OURS}.figures.ranking:figures",
)
BINARY = ObjectiveSpec(
    predicts="logit", implementation=f"{_OURS}.binary:Binary", figures=f"{_OURS}.figures.binary:figures"
)
MULTICLASS = ObjectiveSpec(
    predicts="classes",
    implementation=f"{_OURS}.multiclass:Multiclass",
    figures=f"{_OURS}.figures.multiclass:figures",
    section=MulticlassSettings,
    label_settings=("classes",),
)
MULTILABEL = ObjectiveSpec(
    predicts="labels",
    several_labels=True,
    implementation=f"{_OURS}.multilabel:Multilabel",
    figures=f"{_OURS}.figures.multilabel:figures",
    section=MultilabelSettings,
)
LANGUAGE_MODEL = ObjectiveSpec(
    predicts="token_loss",
    inputs="tokens",
    implementation=f"{_OURS}.language_model:LanguageModelling",
    figures=f"{_OURS}.figures.language_model:figures",
)


def _kind_of_regression(settings: RegressionSettings) -> str:
    return "quantiles" if settings.loss == "quantile" else "value"


REGRESSION = ObjectiveSpec(
    predicts=_kind_of_regression,
    implementation=f"{_OURS}.regression:Regression",
    figures=f"{_OURS}.figures.regression:figures",
    section=RegressionSettings,
)

OBJECTIVES: Final = ExtensionPoint(
    kind="objective",
    group="mlops.objectives",
    builtin={
        "ranking": "mlops.contract.objectives:RANKING",
        "binary": "mlops.contract.objectives:BINARY",
        "multiclass": "mlops.contract.objectives:MULTICLASS",
        "multilabel": "mlops.contract.objectives:MULTILABEL",
        "regression": "mlops.contract.objectives:REGRESSION",
        "language_model": "mlops.contract.objectives:LANGUAGE_MODEL",
    },
    attributes=(
        "predicts",
        "implementation",
        "figures",
        "inputs",
        "needs_groups",
        "several_labels",
        "section",
        "label_settings",
    ),
)


ObjectiveName = Annotated[str, StringConstraints(pattern=EXTENSION_PATTERN), BeforeValidator(OBJECTIVES.check_short)]


def known_spec(name: str) -> ObjectiveSpec | None:
    """Return the declaration of ours or of an installed package's; None for an import path."""
    if by_import_path(name):
        return None
    spec: ObjectiveSpec = OBJECTIVES.load(name)
    return spec


def check_fit(metric: str, measured: MetricSpec, objective: str, kind: str) -> None:
    """
    :param kind: of prediction, of the objective with its settings
    :raises SpecError: where the metric is not defined for it
    """
    if kind not in measured.measures:
        raise SpecError(f"metric {metric!r} does not fit the objective {objective!r}; use {_fitting(kind)}")


def check_fitting(names: Iterable[str], objective: str, settings: Mapping[str, Any]) -> None:
    """
    Check the metrics of an objective, as far as both are known without the code of a recipe.

    :raises ValueError: where one is not defined for what the objective predicts
    """
    kind = known_kind(objective, settings)
    for name in names:
        if kind is not None and not by_import_path(name) and kind not in spec_of(name).measures:
            raise ValueError(f"measured by {_fitting(kind)}, for the objective is {objective}")


def known_kind(objective: str, settings: Mapping[str, Any]) -> str | None:
    """Return the kind of prediction of an objective with its settings; None for an import path."""
    spec = known_spec(objective)
    return None if spec is None else spec.kind(spec.section.model_validate(settings))


def _fitting(kind: str) -> str:
    return " or ".join(names_for(kind)) or "a metric of your own"
