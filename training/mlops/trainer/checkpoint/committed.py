"""
A checkpoint's marker, ``checkpoint.json``, and whether all is there that it names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from mlops.contract.refs import Artifact, digest_of
from mlops.contract.step import BadConfigError
from mlops.trainer.checkpoint.files import (
    MARKER,
    DamagedCheckpointError,
    RankFile,
)

_VERSION: Final = 5


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
