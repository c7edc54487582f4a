"""What the writers of a checkpoint tell each other in the background, through the process group's key-value store."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from mlops.contract.step import StepError
from mlops.trainer.checkpoint.generation import LostGenerationError
from mlops.trainer.checkpoint.planning import CheckpointError


class Reports:
    """
    Per save, in order: :meth:`post` (all ranks), :meth:`collect` (rank 0), :meth:`conclude` (rank 0),
    :meth:`conclusion` (others). By keys and not by collectives: a rank that is late or lost then costs one save and
    not the process group.

    :param timeout: until a rank is given up
    """

    def __init__(self, *, attempt: str, rank: int, world_size: int, timeout: timedelta) -> None:
        self._rank, self._world_size, self._timeout = rank, world_size, timeout
        # A connection of its own: waiting must not hold up the training's use of the store.
        shared: Any = PrefixStore(f"checkpoints/{attempt}", _get_default_store())
        self._store: Store = shared.clone()

    def post(self, save: int, report: dict[str, Any]) -> None:
        self._store.set(f"{save}/{self._rank}", json.dumps(report))

    def collect(self, save: int) -> list[dict[str, Any]]:
        """:raises CheckpointError: naming the ranks that have not reported in time"""
        keys = [f"{save}/{rank}" for rank in range(self._world_size)]
        try:
            self._store.wait(keys, self._timeout)
        except distributed.DistStoreError as error:
            late = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            raise CheckpointError(
                f"ranks {', '.join(map(str, late))} have not written their part after "
                f"{self._timeout.total_seconds():.0f} s"
            ) from error
        reports = [json.loads(text) for text in self._store.multi_get(keys)]
        for key in keys:
            self._store.delete_key(key)
        return reports

    def conclude(self, save: int, error: StepError | None) -> None:
        """:param error: why the checkpoint is not committed, or this process group must end; None where all is well"""
        lost = isinstance(error, LostGenerationError)
        self._store.set(f"{save}/conclusion", json.dumps({"error": str(error or ""), "lost": lost}))
        if save > 1:
            self._store.delete_key(f"{save - 2}/conclusion")

    def conclusion(self, save: int) -> None:
        """
        :raises LostGenerationError: where rank 0 has found a newer process group
        :raises CheckpointError: where rank 0 could not commit, or says nothing
        """
        # Rank 0 waits as long for the others, and then has still to write.
        try:
            self._store.wait([f"{save}/conclusion"], 2 * self._timeout)
        except distributed.DistStoreError as error:
            raise CheckpointError("rank 0 has not said whether the checkpoint is committed") from error
        said = json.loads(self._store.get(f"{save}/conclusion"))
        if said["error"]:
            raise (LostGenerationError if said["lost"] else CheckpointError)(said["error"])
