"""Run a step once more: in real processes, at a place of its own in the store, which is removed afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from mlops.contract.refs import Ref
from mlops.contract.step import StepInput
from mlops.reproduction.processes import Processes
from mlops.reproduction.workplace import Workplace
from mlops.store import REF_FILE, Store

SUFFIX: Final = "_reproductions"
"""Suffix of the pipeline's name for reproductions: in their folder in the store, and in their experiment in MLflow."""
_KEY: Final = "reproduce-"
_LEFT_AFTER: Final = timedelta(days=7)
"""
Time without a write after which a folder counts as left behind: a step that still runs writes its checkpoints every few
minutes.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reruns:
    """Runs steps for one reproduction."""

    store: Store
    tracking_uri: str
    workplace: Workplace
    scratch: Path
    """Folder for all that the processes keep locally: they begin with empty caches."""
    of: str
    """Model version that is reproduced, ``MODEL/VERSION``, as MLflow shows it."""
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
        Run a step again.

        :param document: the step's input document of then
        :param ref: the step's input
        :param config: settings that replace those of then
        :param world_size: number of processes, all on this machine; 0 for a step that does not train
        :param num_threads: threads of each process; None: as many as there are cores
        :param on_line: called with each line of output
        :raises RerunError: with the step's message
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
            experiment="",
        )
        settings = {**document.config, **config}
        again = replace(document, run=run, ref=ref, config=settings, baselines={}, reproduces=self.of)
        processes = Processes(
            store=self.store, tracking_uri=self.tracking_uri, workplace=self.workplace, scratch=self.scratch
        )
        return processes.run(again, world_size=world_size, num_threads=num_threads, on_line=on_line)


@contextmanager
def reruns(
    store: Store, tracking_uri: str, workplace: Workplace, scratch: Path, *, of: str, pipeline: str
) -> Iterator[Reruns]:
    """
    Provide reruns. The steps' results, below ``pipelines/<pipeline>_reproductions``, are removed at the end, and so are
    old ones that killed reproductions left there.
    """
    folder = f"pipelines/{pipeline}{SUFFIX}"
    _clean_up(store, folder)
    key = f"{_KEY}{uuid.uuid4().hex[:12]}"
    try:
        yield Reruns(store=store, tracking_uri=tracking_uri, workplace=workplace, scratch=scratch, of=of, key=key)
    finally:
        for step in store.folders(folder):
            _remove(store, list(store.list(f"{folder}/{step}/{key}")))


def _clean_up(store: Store, folder: str) -> None:
    places = [f"{folder}/{step}/{key}" for step in store.folders(folder) for key in store.folders(f"{folder}/{step}")]
    # A pipeline may be called so, too.
    for place in (place for place in places if f"/{_KEY}" in place):
        left = store.stored(place)
        if left and datetime.now(UTC) - max(entry.modified for entry in left) > _LEFT_AFTER:
            _remove(store, [entry.key for entry in left])


def _remove(store: Store, keys: Sequence[str]) -> None:
    # Refs first: to a collection of garbage a ref whose manifest is gone would be damage.
    refs = [key for key in keys if key.endswith(f"/{REF_FILE}")]
    for part in (refs, [key for key in keys if key not in refs]):
        if part:
            store.delete(part)
