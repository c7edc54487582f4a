from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Param, XComArg
from airflow.sdk.configuration import conf

from mlops.contract.refs import ModelVersionRef
from mlops.contract.section import check_section
from mlops.contract.sections.release import Approval
from mlops.signing.decision import Decision, decision_key
from mlops.signing.envelope import EnvelopeError
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError, StepRetryableError
from mlops_provider.incidents import incident_of
from mlops_provider.messages import tell
from mlops_provider.operators.keys import check_can_sign, signed, trusted_keys
from mlops_provider.operators.promote import move
from mlops_provider.operators.question import Asked, assignees, may_keep, question_about
from mlops_provider.operators.transition import TransitionOperator
from mlops_provider.operators.verified_refs import verified
from mlops_provider.patience import store_errors

if TYPE_CHECKING:
    from airflow.sdk import Context

WHY = {"why": Param("", type=["string", "null"], description="For the audit trail")}


ASKED_AT = "asked_at"
"""In the task's state: when the question was asked that waits for an answer."""


class ApproveOperator(TransitionOperator):
    """
    Ask people, by Airflow's human-in-the-loop form, whether a version may go into production.

    Each answer is taken from the form of this very question and recorded, signed, before it is acted on: a killed try
    finds the record and does not ask again; a clear asks again. Rejected, by somebody or by nobody's answer, the
    version is archived and the task is skipped, and so is what comes after it.

    Settings: :class:`mlops.contract.sections.release.Approval`. Returns the ModelVersionRef.

    :param version: the ModelVersionRef (templated)
    :param registered_model: its name; that of the DAG's register or promote if not given
    """

    step = "promote"
    section = Approval

    def __init__(
        self, *, version: XComArg | Mapping[str, Any] | str, registered_model: str | None = None, **kwargs: Any
    ) -> None:
        self.registered_model = registered_model
        super().__init__(upstream=version, deferrable=False, **kwargs)
        # An answer that comes before the executor has noticed the wait fails the try in Airflow.
        if not self.retries:
            raise ValueError(f"task {self.task_id!r}: an approval needs retries >= 1, got {self.retries}")
        self.asked: dict[str, Any] = {}

    def approvers(self) -> list[str]:
        return list(self.settings["approvers"])

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self.asked

    def execute(self, context: Context) -> dict[str, Any]:
        asked = self.patience(context).with_work(lambda: self._asked(context))
        deployment = self._deployment()
        self.patience(context).with_work(lambda: self.check_trail(asked.question.model, deployment))
        # Before people are asked for an answer that could not be recorded.
        self.patience(context).with_work(lambda: check_can_sign(deployment, self.task_id))
        decisions = self.patience(context).with_work(lambda: self._recorded(asked, deployment))
        if asked.verdict(decisions) is None:
            self._ask(asked, decisions, context)
        return self._act_on(asked, decisions, context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Called when somebody has answered, or the time is over."""
        # Everything is read again: what waits for an answer may have been given another version meanwhile.
        asked = self.patience(context).with_work(lambda: self._asked(context))
        deployment = self._deployment()
        chosen = list(event.get("chosen_options") or [])
        if len(chosen) != 1 or chosen[0] not in asked.question.options:
            raise StepRetryableError(
                f"the form of task {self.task_id!r} was answered by {chosen or dict(event)}, and asked is now "
                f"{' or '.join(asked.question.options)}: the answer does not count, the question is asked again"
            )
        decisions = self.patience(context).with_work(lambda: self._recorded(asked, deployment))
        if (refusal := asked.refusal(event, decisions)) is not None:
            self.log.warning("the answer does not count, the question is asked again: %s", refusal)
            self._ask(asked, decisions, context, is_told=False)
        decision, number = asked.decision(event), len(decisions) + 1
        self.patience(context).with_work(lambda: self._record(decision, number, deployment))
        decisions = [*decisions, decision]
        if asked.verdict(decisions) is None:
            self.log.info("approved by %s; another one is asked", decisions[-1].by)
            self._ask(asked, decisions, context)
        return self._act_on(asked, decisions, context)

    def _asked(self, context: Context) -> Asked:
        approval = check_section(Approval, self.settings, f"task {self.task_id!r}")
        assert isinstance(approval, Approval)
        ti = context["ti"]
        version = verified(ModelVersionRef, self.upstream, self.task_id, self._deployment())
        self.check_own(version)
        # A clear raises max_tries, a retry does not: a killed try's answer counts, one from before a clear does not.
        instance = f"{self.dag_id}/{context['run_id']}/{self.task_id}/{ti.map_index}/{ti.max_tries}"
        asked = Asked(
            question=question_about(version, approval, instance),
            approval=approval,
            started_by=context["dag_run"].triggering_user_name or "",
            with_names=not everybody_is_admin(),
        )
        if len(asked.people) < approval.minimum:
            raise StepFailedError(
                f"task {self.task_id!r}: {asked.started_by} started this run, and who does may not approve its "
                f"version; of approvers {', '.join(approval.approvers)} that leaves {len(asked.people)}, and "
                f"{approval.minimum} must agree. Name others, or set separation: false"
            )
        return asked

    def _ask(self, asked: Asked, decisions: list[Decision], context: Context, *, is_told: bool = True) -> NoReturn:
        """
        Leaves this process; `execute_complete` goes on.

        :param is_told: whether people get a message of it
        """
        from airflow.sdk.exceptions import TaskAwaitingInput
        from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult
        from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

        counted = [found for found in decisions if asked.counts(found)]
        answered = {name for found in decisions for name in (found.person_id, found.person_name)}
        people = [person for person in asked.people if person not in answered]
        manager = conf.get("core", "auth_manager", fallback="")
        users, everybody = _users(people, manager), _users(asked.people, manager)
        question = asked.question
        form = {
            "subject": question.subject,
            "body": question.body,
            "options": list(question.options),
            "defaults": [asked.default()],
            "assigned_users": users,
        }
        payload = CreateHITLDetailPayload(
            ti_id=context["ti"].id,
            params={name: param.serialize() for name, param in WHY.items()},
            **form,  # type: ignore[arg-type]
        )
        # Airflow keeps the form of an earlier try as it was, unless the plugin has made it anew (mlops_provider.forms).
        shown = SUPERVISOR_COMMS.send(payload)
        assert isinstance(shown, HITLDetailRequestResult), shown
        found = {name: shown.model_dump(mode="json").get(name) or [] for name in form}
        if may_keep(found["assigned_users"], users, everybody):
            found["assigned_users"] = users
        if different := [name for name, value in form.items() if value != found[name]]:
            raise StepFailedError(
                f"the form of task {self.task_id!r} still shows an earlier question ({different[0]}: "
                f"{str(found[different[0]])[:80]!r}). Airflow's API server makes it anew where it has the plugin "
                "`mlops`, and serves `core` beside `execution` (airflow api-server without --apps): see to both, or "
                "trigger a new run"
            )
        if is_told:  # now that there is something to answer; a killed try may tell people once more
            so_far = "".join(f"\nApproved by {found.by}; it takes {asked.approval.minimum}." for found in counted)
            tell(self.notify, incident_of("approval", context, question.subject + so_far, question.body), self.log)
        raise TaskAwaitingInput(method_name="execute_complete", timeout=self._time_left(asked, context, is_new=is_told))

    def _time_left(self, asked: Asked, context: Context, *, is_new: bool) -> timedelta:
        """
        Return how long an answer is waited for.

        :param is_new: False where an answer did not count: the question that is asked again ends when it would have
        """
        limit, now = timedelta(hours=asked.approval.timeout_hours), datetime.now(UTC)
        begun = context["task_state_store"].get(ASKED_AT)
        if is_new or begun is None:
            context["task_state_store"].set(ASKED_AT, now.isoformat())
            return limit
        # Airflow takes no time that is over.
        return max(datetime.fromisoformat(str(begun)) + limit - now, timedelta(seconds=1))

    def _act_on(self, asked: Asked, decisions: list[Decision], context: Context) -> dict[str, Any]:
        approved = asked.verdict(decisions)
        counted = [(number, found) for number, found in enumerate(decisions, 1) if asked.counts(found)]
        deciding = [found for _, found in counted if found.approved == approved]
        last = deciding[-1]
        nobody = f"nobody within {asked.approval.timeout_hours:g} h"
        people = nobody if last.person_id is None else " and ".join(found.by for found in deciding)
        said = f"{'approved' if approved else 'rejected'} by {people}"
        why = f"{said}: {last.why}" if last.why else said
        keys = [decision_key(asked.question, number) for number, _ in counted]
        self.approver = " and ".join(found.by for found in deciding) if approved else None
        self.asked = move(
            "approve" if approved else "archive",
            why=why,
            decisions=keys,
            approvals=asked.approval.minimum,
        )
        ref = super().execute(context)
        if not approved:
            raise self.skipped(f"version {ref['version']} of {ref['name']} is archived: {why}", context)
        return ref

    def _recorded(self, asked: Asked, deployment: Deployment) -> list[Decision]:
        """Answers to this question that an earlier try has recorded."""
        from mlops_provider.committed import read_bytes
        from mlops_provider.connections import store_of

        found: list[Decision] = []
        trusted = trusted_keys(deployment)
        with store_errors(deployment.store, f"task {self.task_id!r} cannot read the answers"):
            store = store_of(deployment)
            for number in count(1):
                key = decision_key(asked.question, number)
                if (envelope := asyncio.run(read_bytes(store, key))) is None:
                    break
                try:
                    decision = Decision.unsealed(envelope, trusted)
                except EnvelopeError as error:
                    raise StepFailedError(f"{key} in {deployment.store} is no answer to be trusted: {error}") from error
                if decision.question != asked.question:
                    raise StepFailedError(f"{key} in {deployment.store} is the answer to another question")
                found.append(decision)
        return found

    def _record(self, decision: Decision, number: int, deployment: Deployment) -> None:
        """Write an answer, once."""
        from mlops_provider.committed import write_new
        from mlops_provider.connections import store_of

        key = decision_key(decision.question, number)
        envelope = signed(decision, deployment, self.task_id)
        with store_errors(deployment.store, f"task {self.task_id!r} cannot record the answer"):
            if asyncio.run(write_new(store_of(deployment), key, envelope)):
                return
        raise StepRetryableError(f"{key} has been written by another process: the next try reads it")


def _users(people: Collection[str], manager: str) -> list[dict[str, str]]:
    """Return people as a form names them. For the parameters see :func:`assignees`."""
    return [{"id": person, "name": person} for person in assignees(people, manager)]


def everybody_is_admin() -> bool:
    """Whether Airflow runs without a login, as under ``make up``: it calls everybody Anonymous then."""
    is_simple: bool = conf.get("core", "auth_manager", fallback="SimpleAuthManager").endswith("SimpleAuthManager")
    return is_simple and bool(conf.getboolean("core", "simple_auth_manager_all_admins", fallback=False))
