"""What a launcher is asked to do, and the argv that every launcher starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

from mlops.contract.refs import Ref
from mlops.contract.step import Failure, StepInput

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

    from mlops.contract.section import Section
    from mlops_provider.deployment import Deployment


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One step to run."""

    input: StepInput
    runtime: str
    """``training`` or ``validation``."""
    processes: int = 0
    """torchrun workers of each node; 0 runs the step in a plain process."""
    nodes: str = "1"
    """``N``, or ``MIN:MAX``: as many as there are, if they are at least MIN."""
    max_restarts: int = 0
    """Restarts of lost or hung workers within this launch, in a row without an optimizer step more."""
    hang_seconds: float = 0.0
    """Without progress of any rank for so long the gang hangs; 0: nobody looks."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for the step's process alone: the secrets of its connections."""

    def to_json(self) -> dict[str, Any]:
        """All of it but the environment."""
        given = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "environment"}
        return given | {"input": self.input.dump()}

    @classmethod
    def from_json(cls, launch: Mapping[str, Any], environment: Mapping[str, str]) -> Launch:
        return cls(**{**launch, "input": StepInput.load(launch["input"])}, environment=environment)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTask:
    """The task instance for which a launcher runs a step."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    """-1 where the task is not mapped."""
    team: str | None = None
    """The team whose deployment it is; None: the deployment's own area."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the launcher's section, as the pipeline or the DAG gives them."""
    pods: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the step's pods, likewise."""
    pods_of: str = "all"
    """The step whose pods in the platform's file of defaults are meant."""
    timeout_seconds: float | None = None
    """The task's ``execution_timeout``; None where it has none."""
    failed_nodes: Mapping[str, int] = field(default_factory=dict)
    """Number of failures on each node over the earlier tries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How it ended. ``result`` is None where the process left no result document; ``status`` then says how it died."""

    result: Ref | Failure | None
    status: str
    failed_nodes: Sequence[str] = ()
    """Name of the node of each process that failed by itself, where the launcher knows nodes."""


class Launcher(Protocol):
    """
    Runs one step. The worker makes it with ``of`` and calls ``run`` once; ``cancel`` may come from a signal handler
    while it waits.
    """

    section: ClassVar[type[Section] | None]
    """Its settings, ``launcher_settings`` of a pipeline; None where it has none."""

    @classmethod
    def of(cls, task: StepTask, deployment: Deployment) -> Self:
        """:raises SpecError: where it cannot run such a task in this deployment"""

    def run(self, launch: Launch, on_line: Callable[[str], None]) -> Outcome:
        """
        Start the step, hand over each line of its output as it appears, wait, and read the result document.

        :param on_line: called with one line, without its end, in the order of output
        """

    def cancel(self) -> None:
        """End the step and everything it started. Does nothing where nothing runs."""


@runtime_checkable
class DeferrableLauncher(Launcher, Protocol):
    """
    A launcher whose steps run on while no worker waits. Instead of ``run`` the worker defers its task to ``trigger``,
    and passes the event to ``finish`` when it is resumed.
    """

    def trigger(self, launch: Launch, connections: Mapping[str, str]) -> BaseTrigger:
        """
        Return what starts the step, or finds it running, and fires when it has ended. ``cancel`` is the trigger's.

        :param connections: Airflow connections whose secrets the step gets, by the setting that names each; the
            trigger looks them up itself, for its arguments are shown and stored
        """

    @classmethod
    def finish(cls, event: Mapping[str, Any], deployment: Deployment) -> Outcome:
        """
        Read the outcome, and remove what the launcher left.

        :param event: the payload with which the trigger fired
        :raises SpecError: where the step could not be started with its settings
        """


def step_argv(
    python: str,
    document: str,
    processes: int,
    *,
    nodes: str = "1",
    max_restarts: int = 0,
    hang_seconds: float = 0.0,
    meeting: Sequence[str] = (),
) -> list[str]:
    """
    The command of a step, under torchrun where it has workers. For the parameters see :class:`Launch`.

    :param meeting: further options of torchrun: where its nodes meet
    """
    module = ["-m", "mlops.steps", document]
    if processes == 0:
        return [python, *module]
    options = [
        f"--nnodes={nodes}",
        f"--nproc-per-node={processes}",
        f"--max-restarts={max_restarts}",
        f"--hang-seconds={hang_seconds:g}",
    ]
    return [python, "-m", "mlops.steps.torchrun", *options, *meeting, *module]


def threads(processes: int, nodes: str = "1") -> dict[str, str]:
    """One thread for each of several workers, wherever they run: their number decides the bits of a sum."""
    alone = processes <= 1 and nodes in ("1", "1:1")
    return {} if alone else {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
