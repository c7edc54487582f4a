"""
A checkpoint's marker, ``checkpoint.json``: what a complete checkpoint, or a copy of a model's weights, says of itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mlops.contract.refs import Artifact, digest_of
from mlops.contract.step import BadConfigError, StepError

MARKER: Final = "checkpoint.json"
"""Put last: its presence makes a folder a checkpoint."""
SET_ASIDE: Final = "set-aside.json"
"""A marker under another name: not there for a training, and brought back by another restore."""
RETIRED: Final = "retired.json"
"""Put before a checkpoint is removed: whoever finds it must not rely on this one."""
_VERSION: Final = 5


class DamagedCheckpointError(StepError):
    """A checkpoint's bytes are not those that were written. Tried again, a training goes on from the one before."""


@dataclass(frozen=True, slots=True)
class RankFile:
    key: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A complete checkpoint, or a copy of a model's weights, as its marker describes it."""

    step: int
    """Optimizer steps since the start."""
    generation: int
    """Generation of the process group that wrote it, see :class:`mlops.trainer.checkpoint.generation.Generation`."""
    meta: Mapping[str, Any]
    """What the training says of itself, as JSON."""
    best_step: int | None
    """The step of the best one of its time, if any: of itself, where it is that one."""
    folder: str
    world_size: int
    num_bytes: int
    """Bytes of tensors."""
    saved_at: float
    """Unix time of the save's beginning."""
    index: Artifact
    """Which tensor lies where; see :mod:`mlops.trainer.checkpoint.index`."""
    files: tuple[RankFile, ...]

    @property
    def marker(self) -> str:
        return f"{self.folder}/{MARKER}"

    def dump(self) -> bytes:
        body = {"v": _VERSION, **asdict(self)}
        return json.dumps({"checkpoint": body, "sha256": digest_of(body)}, indent=1).encode()

    @classmethod
    def load(cls, data: bytes, marker: str) -> Saved:
        """
        :raises DamagedCheckpointError: where this is not what :meth:`dump` wrote
        :raises BadConfigError: where another release wrote it
        """
        try:
            document = json.loads(data)
            body = document["checkpoint"]
            if digest_of(body) != document["sha256"]:
                raise ValueError("its SHA-256 does not hold")
            if (version := body.pop("v")) != _VERSION:
                # Not damaged, and so not to be passed over and removed.
                raise BadConfigError(
                    f"{marker} has version {version}, this release reads {_VERSION}: run the release that wrote it"
                )
            index = Artifact(**body.pop("index"))
            files = tuple(RankFile(**file) for file in body.pop("files"))
            return cls(**body, index=index, files=files)
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedCheckpointError(f"{marker} is damaged: {error}") from error


def check_size(file: RankFile, num_bytes: int | None) -> None:
    """
    :param num_bytes: that it has now; None where it is missing
    :raises DamagedCheckpointError: where these are not the bytes that were written
    """
    if num_bytes is None:
        raise DamagedCheckpointError(f"{file.key} is missing")
    if num_bytes != file.num_bytes:
        raise DamagedCheckpointError(f"{file.key} has {num_bytes} bytes, not {file.num_bytes}: it is damaged")
