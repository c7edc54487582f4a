"""Runs a step as a local process that leaves the CPU to others."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field

from mlops.contract.section import Section, check_section
from mlops.contract.step import read_result
from mlops_provider import processes
from mlops_provider.deployment import Deployment
from mlops_provider.launchers.base import Launch, Outcome, StepTask, step_argv, threads
from mlops_provider.launchers.child import describe
from mlops_provider.launchers.process import step_environment


class Nice(Section):
    niceness: int = Field(default=10, ge=0, le=19)
    """Added to the niceness of the step's processes: at 19 they get what nobody else wants."""


class NiceLauncher:
    section: ClassVar[type[Section]] = Nice

    def __init__(self, deployment: Deployment, settings: Nice) -> None:
        self._deployment, self._settings = deployment, settings
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def of(cls, task: StepTask, deployment: Deployment) -> Self:
        return cls(deployment, check_section(Nice, task.settings, f"task {task.task_id!r}: launcher_settings"))

    def run(self, launch: Launch, on_line: Callable[[str], None]) -> Outcome:
        deployment = self._deployment
        with tempfile.TemporaryDirectory(prefix="nice-") as folder:
            document, result = Path(folder, "input.json"), Path(folder, "result.json")
            document.write_text(launch.input.dump())
            step = step_argv(
                str(deployment.pythons[launch.runtime]),
                str(document),
                launch.processes,
                nodes=launch.nodes,
                max_restarts=launch.max_restarts,
                hang_seconds=launch.hang_seconds,
            )
            environment = step_environment(deployment, result, os.environ)
            environment |= {**threads(launch.processes, launch.nodes), **launch.environment}
            self._process = process = subprocess.Popen(
                ["nice", "-n", str(self._settings.niceness), *step],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd=deployment.home,
                env=environment,
                start_new_session=True,
            )
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    on_line(line.rstrip("\n"))
                code = process.wait()
            finally:
                self.cancel()  # after an exception, too: nothing of the step outlives its task
                self._process = None
            return Outcome(result=read_result(result), status=describe(code))

    def cancel(self) -> None:
        if self._process is None:
            return
        tree = processes.tree(self._process.pid)
        if self._process.poll() is None:
            self._process.terminate()
            tree = processes.wait_ended(tree, 3) + processes.tree(self._process.pid)
        processes.kill(tree)
