"""Run a step as a local process: of Airflow's own user, or of one who can read nothing of Airflow's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from mlops.contract.step import HOME_VARIABLE, STORE_VARIABLE, python_path
from mlops.contract.warm import READ_AT_START
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch, Outcome, StepTask, threads
from mlops_provider.launchers.child import ChildRun, Order, process_variables
from mlops_provider.launchers.other_user import UserRun, as_user

PRELOADS: Mapping[str, str] = {"training": "mlops.preload", "validation": "mlops.validation.preload"}
"""What the warm runtimes import."""
OF_THE_MACHINE = (
    *READ_AT_START, "AWS_ALLOW_HTTP", "AWS_CA_BUNDLE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_REGION", "GLOO_",
    "HTTPS_PROXY", "HTTP_PROXY", "MLOPS_MEMORY_BYTES", "NCCL_", "NO_PROXY", "REQUESTS_CA_BUNDLE", "SSL_CERT_",
    "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Begin the names of a worker's variables that say how its machine is, and hold no secret of the deployment."""


class ProcessLauncher:
    """
    Implements :class:`mlops_provider.launchers.base.Launcher`.

    :param deployment: where the runtimes, the store and the MLflow server are, and whom steps run as
    :param around: see :class:`mlops_provider.launchers.child.Order`
    """

    section: ClassVar[None] = None

    def __init__(self, deployment: Deployment, *, around: Sequence[str] = ()) -> None:
        self.deployment, self._around = deployment, around
        self._run: ChildRun | UserRun | None = None

    @classmethod
    def of(cls, task: StepTask, deployment: Deployment) -> ProcessLauncher:
        return cls(deployment)

    def run(self, launch: Launch, on_line: Callable[[str], None]) -> Outcome:
        """:raises SpecError: where the step cannot run as the team's user"""
        deployment, order = self.deployment, self.order(launch)
        if deployment.run_as_user is None:
            self._run = ChildRun()
        else:
            self._run = UserRun(as_user(deployment.run_as_user), str(deployment.pythons["training"]))
        try:
            return self._run.run(order, on_line)
        finally:
            self._run = None

    def order(self, launch: Launch) -> Order:
        """Return the process that does it."""
        deployment = self.deployment
        python = deployment.pythons[launch.runtime]
        if not python.exists():
            raise FileNotFoundError(
                f"the {launch.runtime} runtime has no interpreter at {python}: run `make venv`, or set "
                f"[mlops] {launch.runtime}_python in Airflow's configuration"
            )
        environment = runtime_environment(deployment, os.environ) | threads(launch.processes, launch.nodes)
        return Order(
            step=launch.input.step,
            document=launch.input.dump(),
            python=str(python),
            home=str(deployment.home),
            environment=environment | dict(launch.environment),
            module=PRELOADS[launch.runtime] if deployment.warm_runtimes else None,
            warm_idle_seconds=deployment.warm_idle_seconds,
            processes=launch.processes,
            nodes=launch.nodes,
            max_restarts=launch.max_restarts,
            hang_seconds=launch.hang_seconds,
            around=self._around,
        )

    def cancel(self) -> None:
        if (run := self._run) is not None:
            run.cancel()


def runtime_environment(deployment: Deployment, environment: Mapping[str, str]) -> dict[str, str]:
    """
    The child's environment: the worker's, without Airflow's own settings (they hold its secrets), plus the places.

    Of a team it is no more than a machine's: what else the worker has, credentials say, is the deployment's own.
    """
    if deployment.tenant.team is None:
        kept = {name: value for name, value in environment.items() if not name.startswith(("AIRFLOW_", "_AIRFLOW_"))}
    else:
        kept = {name: value for name, value in environment.items() if name.startswith(OF_THE_MACHINE)}
    return kept | {
        "PYTHONPATH": python_path(deployment.home),
        "MLFLOW_TRACKING_URI": deployment.tracking_uri,
        HOME_VARIABLE: str(deployment.home),
        STORE_VARIABLE: deployment.store,
    }


def step_environment(deployment: Deployment, result: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a process that runs a step."""
    return runtime_environment(deployment, environment) | process_variables(result)
