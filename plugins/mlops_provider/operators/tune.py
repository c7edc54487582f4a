from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import TriggerRule, XComArg

from mlops.contract.extensions import recipe_folders
from mlops.contract.refs import Ref, StudyRef, TrialRef
from mlops.contract.section import check_section
from mlops.contract.sections.steps import TrialStep, TuneStep
from mlops.contract.step import Failure
from mlops_provider.deployment import Deployment, tenant_of
from mlops_provider.launchers.base import Outcome
from mlops_provider.links import CurvesLink, TrackingLink, run_url
from mlops_provider.operators.train import training_gang
from mlops_provider.operators.warm_start import WarmStartOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

BUDGET_SPENT = "BudgetSpentError"
RETRY_OPTIONS = ("retries", "retry_delay", "retry_exponential_backoff", "max_retry_delay")
"""Of Airflow, for which :class:`mlops_provider.operators.base.StepOperator` has defaults of its own."""


class _Search(WarmStartOperator):
    """What a search and its trials share: the training that they are about."""

    train_setting = "train"

    def code_paths(self, settings: Mapping[str, Any]) -> list[str]:
        return recipe_folders(settings)

    def connections(self, settings: Mapping[str, Any]) -> dict[str, str]:
        connection = settings["connection"]
        return {} if connection is None else {"tune.connection": connection}


class TrialOperator(_Search):
    """
    Train once with settings that a study chooses; made by :class:`TuneOperator`, mapped over ``number``.

    Succeeds without a ref where the study's budget is spent. A retry goes on with the same trial, from its checkpoint.
    """

    step = "trial"
    section = TrialStep
    pods_of = "train"
    operator_extra_links = (CurvesLink(), TrackingLink())

    def gang(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return training_gang(settings["train"])

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        trial = ref.ancestor(TrialRef)
        self.links[TrackingLink.name] = run_url(deployment, trial.tracking_run)
        context["trial"] = f"{trial.number}: {trial.value:.4g}, {trial.state}"  # type: ignore[typeddict-unknown-key]

    def _conclude(self, outcome: Outcome, context: Context, deployment: Deployment) -> dict[str, Any]:
        if not isinstance(outcome.result, Failure) or outcome.result.type != BUDGET_SPENT:
            return super()._conclude(outcome, context, deployment)
        # Not skipped: Airflow would then skip what concludes.
        self.log.info("%s", outcome.result.message)
        context["trial"] = f"{self.settings['number']}: not begun"  # type: ignore[typeddict-unknown-key]
        return {}


class TuneOperator(_Search):
    """
    Search for the best settings of a training. Returns a StudyRef, which :class:`TrainOperator` takes.

    Settings: :class:`mlops.contract.sections.steps.TuneStep`. Makes two tasks: ``<task_id>_trial``, mapped to one for
    each trial and ``parallel`` of them at once, and ``<task_id>``, which concludes when all of them have ended. A trial
    that failed for good does not count; one that succeeded is enough.

    :param features: materialised features to train on (templated)
    :param train: settings of the training, see :class:`mlops.contract.sections.train.Train`
    :param trial_pods: as ``pods``, which are those of the conclusion
    :param trial_launcher_settings: as ``launcher_settings``, likewise
    """

    step = "tune"
    section = TuneStep
    operator_extra_links = (CurvesLink(), TrackingLink())

    def __init__(
        self,
        *,
        task_id: str,
        features: XComArg | Mapping[str, Any] | str,
        trial_pods: Mapping[str, Any] | None = None,
        trial_launcher_settings: Mapping[str, Any] | None = None,
        # Some trials may fail; where none could be tried, there is nothing to conclude.
        trigger_rule: str = TriggerRule.ALL_DONE_MIN_ONE_SUCCESS,
        **kwargs: Any,
    ) -> None:
        super().__init__(task_id=task_id, upstream=features, trigger_rule=trigger_rule, **kwargs)
        own = {*TuneStep.model_fields, "pods", "launcher_settings"}
        common = {name: value for name, value in kwargs.items() if name not in own}
        # A mapped operator is made when it runs; its place in a queue, and whether it is retried, are asked for before.
        common |= tenant_of(self.team).slots() | {name: getattr(self, name) for name in RETRY_OPTIONS}
        study = check_section(TuneStep, self.settings, f"task {self.task_id!r}")
        trials = TrialOperator.partial(
            **common,
            **self.settings,
            task_id=f"{task_id}_trial",
            upstream=features,
            pods=trial_pods,
            launcher_settings=trial_launcher_settings,
            max_active_tis_per_dagrun=study.parallel,
            map_index_template="{{ trial | default(ti.map_index) }}",
        ).expand(number=list(range(study.num_trials)))
        self.set_upstream(trials)

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        run = ref.ancestor(StudyRef).tracking_run
        self.links[TrackingLink.name] = run_url(deployment, run)
