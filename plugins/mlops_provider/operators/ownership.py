"""Whether what a task names is its team's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mlops.contract.section import SpecError, leaves
from mlops_provider.notify_spec import Notify, trespasses
from mlops_provider.team_spec import Tenant


class Naming(Protocol):
    """A task, as far as it names things."""

    task_id: str
    pipeline: str
    launcher: str | None
    settings: dict[str, Any]
    pods: dict[str, Any]

    @property
    def notify(self) -> Sequence[Notify]: ...

    def models(self) -> list[str]: ...

    def approvers(self) -> list[str]: ...

    def connections(self, settings: Mapping[str, Any]) -> dict[str, str]: ...


def check_team(task: Naming, tenant: Tenant) -> None:
    """:raises SpecError: where the task names what is not its team's"""
    found = [
        *(tenant.why_not_name(name) for name in (task.pipeline, *task.models())),
        tenant.why_not_launcher(task.launcher),
        *(tenant.why_not_approver(person) for person in task.approvers()),
        *(tenant.why_not_connection(each) for each in task.connections(task.settings).values()),
        *(tenant.why_not_text(text) for _, text in leaves(task.settings) if isinstance(text, str)),
        *(f"pods.{'.'.join(keys)}: {why}" for keys, why in tenant.why_not_pods(task.pods)),
        *(f"{'.'.join(keys)}: {why}" for keys, why in trespasses(task.notify, tenant)),
    ]
    if whys := [why for why in found if why is not None]:
        raise SpecError("\n".join(f"task {task.task_id!r}: {why}" for why in whys))
