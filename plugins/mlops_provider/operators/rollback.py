from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import AssetAlias

from mlops.contract.refs import ModelVersionRef, Ref, RefError
from mlops.contract.section import Section
from mlops.contract.stage_moves import Stages
from mlops.contract.stages import reason_of
from mlops.signing.seals import ENTRY, entry_key, entry_numbers
from mlops_provider.assets import event_extra, model_asset
from mlops_provider.deployment import Deployment, all_teams, tenant_of_name
from mlops_provider.exceptions import StepFailedError, StepRetryableError
from mlops_provider.links import ModelLink, model_url
from mlops_provider.operator_keys import ROLLBACK
from mlops_provider.operators.approve import everybody_is_admin
from mlops_provider.operators.champion import champion_of, why_not_champion
from mlops_provider.operators.keys import trail_keys
from mlops_provider.operators.promote import move
from mlops_provider.operators.transition import TransitionOperator, is_sealed
from mlops_provider.registry import NotOursError
from mlops_provider.telemetry import tell_production

if TYPE_CHECKING:
    from airflow.sdk import Context
    from obstore.store import ObjectStore

_SIGNED_SECONDS: Final = 30.0
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
        happens and the task fails. Empty: the one that was in production when the run was asked for; likewise.
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
        self._reason()
        self._check_person(context["dag_run"].triggering_user_name or "", self._deployment())
        self._go_on(context)
        if self.upstream is None:
            self.upstream = self.patience(context).with_work(lambda: self._champion(self._deployment())).to_wire()
            context["task_state_store"].set(TAKEN_BACK, self.upstream)
        asked_at = context["dag_run"].run_after
        self.patience(context).with_work(lambda: self._check_taken_back(asked_at, self._deployment()))
        return super().execute(context)

    def resume(self, context: Context, event: Mapping[str, Any], launcher: str, waited: float = 0.0) -> dict[str, Any]:
        self._go_on(context)
        return super().resume(context, event, launcher, waited)

    def _go_on(self, context: Context) -> None:
        """Take over what an earlier try of the run has found."""
        self.run_id = context["run_id"]
        self.upstream = context["task_state_store"].get(TAKEN_BACK)

    def check_own(self, ref: Ref) -> None:
        # The champion comes from the registry, and has no place: whichever pipeline made it.
        assert isinstance(ref, ModelVersionRef)
        if ref.name != self.model:
            raise StepFailedError(
                f"task {self.task_id!r}: the champion that its state names is version {ref.version} of {ref.name!r}, "
                f"and it takes back {self.model!r}: trigger a new run"
            )

    def check_made(self, made: ModelVersionRef, deployment: Deployment) -> None:
        if made.name != self.model:
            raise self._not_ours(made, f"is not about {self.model}")

    def _reason(self) -> str:
        """:raises StepFailedError: where nobody has given one"""
        try:
            return reason_of(self.why)
        except ValueError as error:
            raise StepFailedError(
                f"task {self.task_id!r}: a rollback of {self.model!r} needs a reason, why: {error}"
            ) from error

    def _check_person(self, person: str, deployment: Deployment) -> None:
        """:raises StepFailedError: where the model is another team's, or the person none of the team's approvers"""
        tenant = deployment.tenant
        # Where nobody logs in, nobody can be told from others.
        no_person = tenant.team is None or everybody_is_admin()
        why_not = None if no_person else tenant.why_not_approver(person)
        if why_not is not None and tenant.team is not None and any(map(str.isdecimal, tenant.team.approvers)):
            # Users of Airflow's FAB login are numbers among approvers, and a run has the name of who started it.
            why_not += (
                f". A rollback knows user names only: list the name beside the number in teams.{tenant.name}.approvers "
                "of [mlops] teams_file"
            )
        for why in (tenant.why_not_name(self.model), why_not):
            if why is not None:
                raise StepFailedError(f"task {self.task_id!r}: {why}")

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return move("rollback", why=self._reason(), request=self.run_id)

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
        self.say(f"{again} {person} says: {self._reason()}", context)
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

    def _check_taken_back(self, asked_at: datetime, deployment: Deployment) -> None:
        """
        Check what is to be taken back, also where it comes from the task's state, which can be edited.

        A run that waited, or was cleared weeks later, must not take back what others have put into production since.

        :param asked_at: when the run was asked for
        :raises StepFailedError: where it is not what was asked for
        """
        from mlops_provider.connections import store_of
        from mlops_provider.patience import store_errors

        try:
            found = ModelVersionRef.from_wire(self.upstream)
        except RefError as error:
            raise StepFailedError(
                f"task {self.task_id!r}: {TAKEN_BACK!r} in its state is no version: {error}. Trigger a new run"
            ) from error
        self.check_own(found)
        if self.champion:
            if found.version != self.champion:
                raise self._other(found)
            return
        trusted = trail_keys(deployment)
        with store_errors(deployment.store, f"task {self.task_id!r} cannot read the audit trail"):
            try:
                then = asyncio.run(champion_at(store_of(deployment), self.model, asked_at, trusted))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise StepFailedError(
                    f"task {self.task_id!r}: the audit trail of {self.model!r} is damaged ({error!r}): see "
                    f"mlops audit verify {self.model}"
                ) from error
        if found.version != then:
            was = "none" if then is None else f"version {then}"
            raise StepFailedError(
                f"task {self.task_id!r}: version {found.version} of {self.model} was found in production, and {was} "
                f"was when this rollback was asked for, at {asked_at:%Y-%m-%d %H:%M:%S} UTC: nothing is done. Who "
                f"changed it, and why: mlops models history {self.model}. To take version {found.version} back, "
                f"trigger the DAG again with champion {found.version}"
            )

    def _other(self, champion: ModelVersionRef) -> StepFailedError:
        return StepFailedError(f"task {self.task_id!r}: {other_champion(self.model, self.champion, champion.version)}")


def other_champion(model: str, asked: str, champion: str) -> str:
    """Say why nothing is taken back, where another version is in production than the one to be taken back."""
    return (
        f"version {champion} of {model} is in production, not version {asked}, which was to be taken back: nothing is "
        f"done. Who changed it, and why: mlops models history {model}"
    )


async def champion_at(store: ObjectStore, model: str, moment: datetime, trusted: list[str]) -> str | None:
    """
    Return the version that was in production at a moment, by the audit trail; None where none was.

    :param trusted: public keys. If there are some, only an entry that one of them signed counts.
    :raises StepRetryableError: where nobody has signed the entry that says it
    :raises ValueError: where an entry is damaged; others that reading it raises as well
    """
    import obstore

    from mlops_provider.committed import read_bytes

    paths = [entry["path"] async for page in obstore.list(store, f"models/{model}/audit") for entry in page]
    for number in reversed(entry_numbers(model, paths)):
        key = entry_key(model, number)
        if (data := await read_bytes(store, key)) is None:
            continue
        entry = json.loads(data)
        if datetime.fromisoformat(entry["at"]) > moment:
            continue
        if trusted and not await _is_soon_sealed(store, model, number, hashlib.sha256(data).hexdigest(), trusted):
            raise StepRetryableError(
                f"which version of {model} was in production at {moment:%Y-%m-%d %H:%M:%S} UTC is said by {key}, which "
                "no trusted key has signed. Clear the task that made it; where it is gone, look at the entry and sign "
                f"it: mlops audit sign {model} {number} --why ...; where nobody made it: mlops models adopt {model} "
                "--why ..., and trigger a new run"
            )
        return Stages.from_wire(entry["stages"]).champion
    return None


async def _is_soon_sealed(store: ObjectStore, model: str, number: int, sha256: str, trusted: list[str]) -> bool:
    """Whether an entry is signed by now; the task that has just made one signs it within seconds."""
    deadline = time.monotonic() + _SIGNED_SECONDS
    while not (sealed := await is_sealed(store, model, number, sha256, trusted)) and time.monotonic() < deadline:
        await asyncio.sleep(1.0)
    return sealed


def rollback_dag_id(model: str) -> str:
    """The DAG that takes a model back."""
    team = tenant_of_name(model)
    return f"{'' if team is None else all_teams()[team].names}{ROLLBACK}"


def is_rollback(dag_id: str) -> bool:
    """Whether a DAG takes models back."""
    prefixes = {"", *(team.names for team in all_teams().values())}
    return dag_id.endswith(ROLLBACK) and dag_id.removesuffix(ROLLBACK) in prefixes
