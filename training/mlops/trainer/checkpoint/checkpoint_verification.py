"""Whether each byte of a checkpoint is what was written."""

from __future__ import annotations

from mlops.contract.checkpoint_markers import DamagedCheckpointError, Saved
from mlops.store import Store
from mlops.trainer.checkpoint.files import CheckpointFiles, damaged_files
from mlops.trainer.checkpoint.index import Index


def find_damage(store: Store, saved: Saved, share: slice = slice(None)) -> list[str]:
    """
    Read a checkpoint, or a share of its files, and check every byte that counts.

    :return: a sentence for each damaged file
    """
    try:
        chunks = Index(store, saved).chunks_in(range(len(saved.files))[share])
    except DamagedCheckpointError as error:
        return [str(error)]
    return damaged_files(CheckpointFiles(store), saved.files, chunks)
