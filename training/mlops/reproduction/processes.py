"""The process of a step, started here instead of by Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mlops.contract.refs import Ref
from mlops.contract.step import (
    GRACE_VARIABLE,
    HOME_VARIABLE,
    PARENT_VARIABLE,
    RESULT_PATH_VARIABLE,
    STEPS_VARIABLES,
    STORE_VARIABLE,
    TRACKING_VARIABLES,
    Failure,
    StepError,
    StepInput,
    python_path,
    read_result,
)
from mlops.reproduction.workplace import Workplace
from mlops.store import Store
from mlops.tracking.provenance import COMMIT_VARIABLE

_LAST_LINES: Final = 20


class RerunError(StepError):
    """A step that was done once cannot be done again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Processes:
    """The setting in which steps run: store, project folder, scratch folder, interpreter."""

    store: Store
    tracking_uri: str
    workplace: Workplace
    scratch: Path
    """Folder for all that the steps keep locally: they begin with empty caches."""
    python: Path = Path(sys.executable)
    """Interpreter of the step's runtime."""

    def run(
        self, document: StepInput, *, world_size: int, num_threads: int | None, on_line: Callable[[str], None]
    ) -> Ref:
        """
        Run a step in processes of its own.

        :param world_size: number of processes, all on this machine; 0 for a step that does not train
        :param num_threads: threads of each process; None: as many as there are cores
        :param on_line: called with each line of output
        :raises RerunError: with the step's message
        """
        folder = self.scratch / document.step
        folder.mkdir()
        (folder / "input.json").write_text(document.dump())
        # One process needs no torchrun, and starts in half the time without it; a script of one's own may ask for it.
        under_torchrun = world_size > 1 or (world_size == 1 and bool(document.config.get("program")))
        torchrun = ["-m", "mlops.steps.torchrun", "--nproc-per-node", str(world_size)] if under_torchrun else []
        command = [str(self.python), *torchrun, "-m", "mlops.steps", str(folder / "input.json")]
        last = self._wait(command, self._environment(folder, num_threads), on_line)
        result = read_result(folder / "result.json")
        if isinstance(result, Ref):
            return result
        why = result.message if isinstance(result, Failure) else f"it ended without a result:\n{last}"
        raise RerunError(f"{document.step} cannot be done again: {why}")

    def _wait(self, command: list[str], environment: Mapping[str, str], on_line: Callable[[str], None]) -> str:
        """Wait for a command; return its last lines of output."""
        last: deque[str] = deque(maxlen=_LAST_LINES)
        with subprocess.Popen(
            command,
            cwd=self.workplace.home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    last.append(line.rstrip("\n"))
                    on_line(last[-1])
            except BaseException:
                process.terminate()  # told to end; its workers end with it
                raise
        return "\n".join(last)

    def _environment(self, folder: Path, num_threads: int | None) -> dict[str, str]:
        # Of a deployment without repository: it names the commit that is installed, not the one that runs here.
        here = {name: value for name, value in os.environ.items() if name != COMMIT_VARIABLE}
        library = self.workplace.library
        # The recipe's code may not do at MLflow what the person may who started this.
        pairs = zip(TRACKING_VARIABLES, STEPS_VARIABLES, strict=True)
        login = {mine: here.pop(of_steps) for mine, of_steps in pairs if of_steps in here}
        return {
            **here,
            **login,
            "PYTHONPATH": python_path(library),
            "PYTHONUNBUFFERED": "1",
            # Not a folder in it: names of sockets in there may have 108 bytes.
            "TMPDIR": str(self.scratch),
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            HOME_VARIABLE: str(self.workplace.home),
            STORE_VARIABLE: self.store.uri,
            RESULT_PATH_VARIABLE: str(folder / "result.json"),
            PARENT_VARIABLE: str(os.getpid()),
            GRACE_VARIABLE: "10",
            **({"OMP_NUM_THREADS": str(num_threads)} if num_threads else {}),
        }
