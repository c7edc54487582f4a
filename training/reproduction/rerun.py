"""Run a step once more: in real processes, at a place of its own in the store, which is removed afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from mlops_provider.refs import Ref
from mlops_provider.step import (
    GRACE_VARIABLE,
    HOME_VARIABLE,
    PARENT_VARIABLE,
    RESULT_PATH_VARIABLE,
    STORE_VARIABLE,
    Failure,
    StepError,
    StepInput,
    read_result,
)
from training.reproduction.workplace import Workplace
from training.store import Store
from training.tracking.provenance import COMMIT_VARIABLE

SUFFIX: Final = "_reproductions"
"""Of the pipeline's name: their folder in the store, and their experiment in MLflow."""
_KEY: Final = "reproduce-"
_LEFT_AFTER: Final = timedelta(days=7)
"""Without a write: a step that still runs writes its checkpoints every few minutes."""
_LAST_LINES: Final = 20


class RerunError(StepError):
    """A step that was done once cannot be done again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reruns:
    """Runs steps for one reproduction."""

    store: Store
    tracking_uri: str
    workplace: Workplace
    scratch: Path
    """For all that the processes keep locally: they begin with empty caches."""
    of: str
    """``MODEL/VERSION``, told to MLflow."""
    key: str

    def run(
        self,
        document: StepInput,
        ref: Ref,
        *,
        config: Mapping[str, Any],
        world_size: int,
        num_threads: int | None,
        on_line: Callable[[str], None],
    ) -> Ref:
        """
        :param document: what the step was told then
        :param ref: its input
        :param config: its settings, as far as they are not those of then
        :param world_size: torchrun's processes, all on this machine; 0: a plain process
        :param num_threads: of each process; None: as many as there are cores
        :param on_line: called with each line of output
        :raises RerunError: with what the step said
        """
        step = document.step
        run = replace(
            document.run,
            pipeline=document.run.pipeline + SUFFIX,
            run_key=self.key,
            dag_id="mlops reproduce",
            task_id=step,
            run_id=self.of,
            try_number=1,
        )
        settings = {**document.config, **config}
        again = replace(document, run=run, ref=ref, config=settings, baselines={}, reproduces=self.of)
        folder = self.scratch / step
        folder.mkdir()
        (folder / "input.json").write_text(again.dump())
        last = self._wait(folder, world_size, self._environment(folder, num_threads), on_line)
        result = read_result(folder / "result.json")
        if isinstance(result, Ref):
            return result
        why = result.message if isinstance(result, Failure) else f"it ended without a result:\n{last}"
        raise RerunError(f"{step} cannot be done again: {why}")

    def _wait(
        self, folder: Path, world_size: int, environment: Mapping[str, str], on_line: Callable[[str], None]
    ) -> str:
        """:return: the last lines of output"""
        torchrun = ["-m", "training.steps.torchrun", "--nproc-per-node", str(world_size)] if world_size else []
        command = [sys.executable, *torchrun, "-m", "training.steps", str(folder / "input.json")]
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
        return {
            **here,
            "PYTHONPATH": f"{library}{os.pathsep}{library / 'plugins'}",
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


@contextmanager
def reruns(
    store: Store, tracking_uri: str, workplace: Workplace, scratch: Path, *, of: str, pipeline: str
) -> Iterator[Reruns]:
    """
    What the steps store is removed at the end, below ``pipelines/<pipeline>_reproductions``; what others left there
    that were killed, when it is old.
    """
    folder = f"pipelines/{pipeline}{SUFFIX}"
    _clean_up(store, folder)
    key = f"{_KEY}{uuid.uuid4().hex[:12]}"
    try:
        yield Reruns(store=store, tracking_uri=tracking_uri, workplace=workplace, scratch=scratch, of=of, key=key)
    finally:
        for step in store.folders(folder):
            if keys := list(store.list(f"{folder}/{step}/{key}")):
                store.delete(keys)


def _clean_up(store: Store, folder: str) -> None:
    places = [f"{folder}/{step}/{key}" for step in store.folders(folder) for key in store.folders(f"{folder}/{step}")]
    # A pipeline may be called so, too.
    for place in (place for place in places if f"/{_KEY}" in place):
        left = store.stored(place)
        if left and datetime.now(UTC) - max(entry.modified for entry in left) > _LEFT_AFTER:
            store.delete([entry.key for entry in left])
