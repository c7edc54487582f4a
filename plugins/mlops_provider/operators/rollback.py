from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import AssetAlias

from mlops.contract.refs import ModelVersionRef, Ref
from mlops.contract.section import Section
from mlops.signing.seals import ENTRY
from mlops_provider.assets import event_extra, model_asset
from mlops_provider.deployment import Deployment, all_teams, tenant_of_name
from mlops_provider.exceptions import StepFailedError
from mlops_provider.links import ModelLink, model_url
from mlops_provider.operators.approve import everybody_is_admin
from mlops_provider.operators.champion import champion_of, why_not_champion
from mlops_provider.operators.promote import move
from mlops_provider.operators.transition import TransitionOperator
from mlops_provider.registry import NotOursError
from mlops_provider.telemetry import tell_production

if TYPE_CHECKING:
    from airflow.sdk import Context

ROLLBACK: Final = "rollback"
"""The DAG that takes the deployment's own models back, and its task; a team's DAG has the team's prefix before it."""
TAKEN_BACK = "taken_back"
"""In the task's state: the ref of the champion that the first try found. A retry must not take back the one before."""


class RollbackOperator(TransitionOperator):
    """
    Put the former champion of a model into production again and archive the present one.

    Of a team's model only the team's approvers may do it, who are those that start the run.

    Returns the ModelVersionRef of the former champion and updates the asset ``model://<model>``.

    :param model: registered model (templated)
    :param why: for the audit trail (templated)
    :param champion: number of the version to take back (templated): where another one is in production by then, nothing
        happens and the task fails. Empty: the one that is in production when the task begins.
    """

    step = "promote"
    section = Section
    success = "rolled_back"
    template_fields: Sequence[str] = (*TransitionOperator.template_fields, "model", "why", "champion")
    operator_extra_links = (ModelLink(),)

    def __init__(self, *, model: str, why: str, champion: str = "", **kwargs: Any) -> None:
        super().__init__(upstream="", **kwargs)
        self.model = model
        self.why = why
        self.champion = champion
        self.asset = AssetAlias("rolled_back_models")  # which model it is, is known when the task runs
        self.outlets = [*self.outlets, self.asset]

    def execute(self, context: Context) -> dict[str, Any]:
        if not self.why.strip():
            raise StepFailedError(f"task {self.task_id!r}: a rollback of {self.model!r} needs a reason, why= is empty")
        self._check_person(context["dag_run"].triggering_user_name or "", self._deployment())
        self.run_id = context["run_id"]
        self.upstream = context["task_state_store"].get(TAKEN_BACK)
        if self.upstream is None:
            self.upstream = self.patience(context).with_work(lambda: self._champion(self._deployment())).to_wire()
            context["task_state_store"].set(TAKEN_BACK, self.upstream)
        return super().execute(context)

    def _check_person(self, person: str, deployment: Deployment) -> None:
        """:raises StepFailedError: where the model is another team's, or the person none of the team's approvers"""
        tenant = deployment.tenant
        # Where nobody logs in, nobody can be told from others.
        no_person = tenant.team is None or everybody_is_admin()
        for why in (tenant.why_not_name(self.model), None if no_person else tenant.why_not_approver(person)):
            if why is not None:
                raise StepFailedError(f"task {self.task_id!r}: {why}")

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return move("rollback", why=self.why, request=self.run_id)

    def succeeded(self, ref: Ref, context: Context, deployment: Deployment) -> None:
        version = ref.ancestor(ModelVersionRef)
        self.links[ModelLink.name] = model_url(deployment, version)
        if self.champion and ENTRY not in ref.artifacts:  # between the look-up and the step
            raise self._other(version)
        if (why := why_not_champion(version, deployment)) is not None:
            # Cleared: what people decided since is no news to them.
            raise self.skipped(why, context, is_told=False)
        tell_production(version)
        person = context["dag_run"].triggering_user_name or "Somebody"
        again = f"Version {version.version} of {version.name} is in production again."
        self.say(f"{again} {person} says: {self.why}", context)
        context["outlet_events"][self.asset].add(model_asset(version.name), extra=event_extra(ref))

    def _champion(self, deployment: Deployment) -> ModelVersionRef:
        try:
            champion = champion_of(self.model, deployment)
        except NotOursError as error:
            raise StepFailedError(f"{error}; take it back by: mlops models rollback {self.model} --why ...") from error
        if champion is None:
            raise StepFailedError(f"no version of {self.model!r} is in production: there is nothing to take back")
        if self.champion not in ("", champion.version):
            raise self._other(champion)
        return champion

    def _other(self, champion: ModelVersionRef) -> StepFailedError:
        return StepFailedError(f"task {self.task_id!r}: {other_champion(self.model, self.champion, champion.version)}")


def other_champion(model: str, asked: str, champion: str) -> str:
    """Say why nothing is taken back, where another version is in production than the one to be taken back."""
    return (
        f"version {champion} of {model} is in production, not version {asked}, which was to be taken back: nothing is "
        f"done. Who changed it, and why: mlops models history {model}"
    )


def rollback_dag_id(model: str) -> str:
    """The DAG that takes a model back."""
    team = tenant_of_name(model)
    return f"{'' if team is None else all_teams()[team].names}{ROLLBACK}"


def is_rollback(dag_id: str) -> bool:
    """Whether a DAG takes models back."""
    prefixes = {"", *(team.names for team in all_teams().values())}
    return dag_id.endswith(ROLLBACK) and dag_id.removesuffix(ROLLBACK) in prefixes
