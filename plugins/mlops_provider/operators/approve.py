from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param, XComArg
from airflow.sdk.exceptions import AirflowSkipException

from mlops_provider.exceptions import StepRetryableError
from mlops_provider.links import report_url
from mlops_provider.operators.base import StepOperator
from mlops_provider.operators.promote import move
from mlops_provider.promote_spec import Approval
from mlops_provider.refs import ModelVersionRef

if TYPE_CHECKING:
    from airflow.sdk import Context

ANSWER = "answer"
"""In the task's state: what was answered. A try that is killed while it records that does not ask again."""


class ApproveOperator(StepOperator):
    """
    Ask people, by Airflow's human-in-the-loop form, whether a version may go into production.

    Rejected, by them or by nobody's answer, it archives the version and is skipped, and so is what comes after it.

    Settings: :class:`mlops_provider.promote_spec.Approval`. Returns the ModelVersionRef.

    :param version: the ModelVersionRef (templated)
    """

    step = "promote"
    section = Approval

    def __init__(self, *, version: XComArg | Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(upstream=version, deferrable=False, **kwargs)
        # An answer that comes before the executor has noticed the wait fails the try in Airflow.
        if not self.retries:
            raise ValueError(f"task {self.task_id!r}: an approval needs retries >= 1, got {self.retries}")
        self.asked: dict[str, Any] = {}

    def config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self.asked

    def execute(self, context: Context) -> dict[str, Any]:
        if (answer := context["task_state_store"].get(ANSWER)) is not None:
            return self._act_on(answer, context)  # type: ignore[arg-type]
        version = ModelVersionRef.from_wire(self.upstream)
        form = ApprovalOperator(
            task_id=self.task_id,
            subject=f"Put version {version.version} of {version.name} into production?",
            body=summary(version),
            defaults=ApprovalOperator.APPROVE if self.settings["on_timeout"] == "approve" else ApprovalOperator.REJECT,
            assigned_users=[{"id": user, "name": user} for user in self.settings["approvers"]],
            response_timeout=timedelta(hours=self.settings["timeout_hours"]),
            params={"why": Param("", type=["string", "null"], description="For the audit trail")},
        )
        # Leaves this process; `execute_complete` goes on. Unwrapped: Airflow warns of operators that others execute.
        return inspect.unwrap(ApprovalOperator.execute)(form, context)  # type: ignore[no-any-return]

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Called when somebody has answered, or the time is over."""
        if not event.get("chosen_options"):
            raise StepRetryableError(f"the form of task {self.task_id!r} was answered by {event!r}")
        user = event.get("responded_by_user")
        answer = {
            "approved": event["chosen_options"] == [ApprovalOperator.APPROVE],
            "by": user["name"] if user else f"nobody within {self.settings['timeout_hours']:g} h",
            "why": (event.get("params_input") or {}).get("why") or "",
        }
        context["task_state_store"].set(ANSWER, answer)
        return self._act_on(answer, context)

    def _act_on(self, answer: Mapping[str, Any], context: Context) -> dict[str, Any]:
        said = f"{'approved' if answer['approved'] else 'rejected'} by {answer['by']}"
        why = f"{said}: {answer['why']}" if answer["why"] else said
        self.asked = move("approve", why=why, approver=answer["by"]) if answer["approved"] else move("archive", why=why)
        ref = super().execute(context)
        if not answer["approved"]:
            raise AirflowSkipException(f"version {ref['version']} of {ref['name']} is archived: {why}")
        return ref


def summary(version: ModelVersionRef) -> str:
    """What one decides on, as Markdown."""
    report = version.parent
    champion = "no model was in production" if report.champion is None else f"version {report.champion} in production"
    measured = sorted(name.removeprefix("candidate.") for name in report.metrics if _is_of_candidate(name))
    lines = [report.reason, "", f"| on held-out data | version {version.version} | {champion} |", "|---|---|---|"]
    for metric in measured:
        cells = [_interval(report.metrics, f"{model}.{metric}") for model in ("candidate", "champion")]
        lines.append(f"| {metric} | {' | '.join(cells)} |")
    lines.append("")
    if (page := report.artifacts.get("report")) is not None:
        lines.append(f"[The whole report]({report_url(page.key)})")
    return "\n".join(lines)


def _is_of_candidate(name: str) -> bool:
    return name.startswith("candidate.") and not name.endswith((".low", ".high"))


def _interval(metrics: Mapping[str, float], name: str) -> str:
    """The value, and where it may lie; as ``training.evaluation.comparison`` names them."""
    if name not in metrics:
        return ""
    return f"{metrics[name]:.4f} ({metrics[f'{name}.low']:.4f} to {metrics[f'{name}.high']:.4f})"
