"""The learners that train a model: torch, gradient-boosted trees, and those that other packages add."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, StringConstraints

from mlops.contract.extensions import ExtensionPoint, by_import_path
from mlops.contract.learner_settings import LightGbmSettings, SklearnSettings
from mlops.contract.section import EXTENSION_PATTERN, NoSettings, Section

TORCH: Final = "torch"
"""The learner whose settings are those of the section ``train`` itself, and which torchrun starts."""


@dataclass(frozen=True, kw_only=True)
class LearnerSpec:
    """
    A learner, as far as it is known without the libraries that it uses.

    An entry point of the group ``mlops.learners``, or an import path in a recipe, leads to one.
    """

    implementation: str | Callable[..., Any]
    """Class that implements :class:`mlops.Learner`, made of the settings; or its import path in the training
    runtime."""
    kinds: Sequence[str]
    """Kinds of prediction that it can learn; see :attr:`mlops.contract.objectives.ObjectiveSpec.predicts`."""
    section: type[Section] = NoSettings
    """What ``train.learner_settings`` may have."""
    code_settings: Sequence[str] = ()
    """Settings that name code by its import path. It must be the recipe's, which is stored with the model, or of a
    package, which a server then needs."""
    reads_only_data: bool = False
    """Whether what :meth:`mlops.Learner.load` reads cannot run code, as a pickle can. Only then a model that was
    trained elsewhere is taken."""


TORCH_LEARNER = LearnerSpec(
    implementation="mlops.trainer.recipe:Recipe",
    kinds=("relevance", "logit", "classes", "labels", "value", "quantiles", "token_loss"),
    reads_only_data=True,
)
LIGHTGBM = LearnerSpec(
    implementation="mlops.learners.light_gbm:LightGbm",
    kinds=("relevance", "logit", "classes", "labels", "value", "quantiles"),
    section=LightGbmSettings,
    reads_only_data=True,
)
SKLEARN = LearnerSpec(
    implementation="mlops.learners.scikit_learn:ScikitLearn",
    kinds=("logit", "classes", "labels", "value"),
    section=SklearnSettings,
    code_settings=("estimator",),
)

LEARNERS: Final = ExtensionPoint(
    kind="learner",
    group="mlops.learners",
    builtin={
        TORCH: "mlops.contract.learners:TORCH_LEARNER",
        "lightgbm": "mlops.contract.learners:LIGHTGBM",
        "sklearn": "mlops.contract.learners:SKLEARN",
    },
    attributes=("implementation", "kinds", "section", "code_settings", "reads_only_data"),
)


LearnerName = Annotated[str, StringConstraints(pattern=EXTENSION_PATTERN), BeforeValidator(LEARNERS.check_short)]


def check_learns(learner: str, kind: str | None, objective: str) -> None:
    """
    Check that a learner can learn an objective, as far as both are known without the code of a recipe.

    :param kind: of prediction; None: not known
    :raises ValueError: where it cannot
    """
    if kind is None or by_import_path(learner) or learner == TORCH:
        return
    check_learns_kind(learner, LEARNERS.load(learner), kind, objective)


def check_learns_kind(learner: str, spec: LearnerSpec, kind: str, objective: str) -> None:
    """
    Check that a learner can learn an objective.

    :raises ValueError: where it cannot
    """
    if kind not in spec.kinds:
        raise ValueError(
            f"consistent: learner {learner} learns {', '.join(spec.kinds)}, and the objective {objective} predicts "
            f"{kind}"
        )
