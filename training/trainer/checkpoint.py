"""
Checkpoints of a training in the store, one per epoch, whole or not there.

The state is written first, under a name that holds its digest, and ``checkpoint.json`` last: its presence is the
commit, its digest the proof. A damaged checkpoint is passed over for the one before it.
"""

from __future__ import annotations

import io
import json
import logging
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from mlops_provider.refs import Artifact
from training.store import DamagedObjectError, Store

MARKER: Final = "checkpoint.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    """The checkpoints of one training, under ``<place>/checkpoints/epoch-0001/`` and so on."""

    store: Store
    place: str

    def save(self, epoch: int, state: dict[str, Any]) -> None:
        """Rank 0. Returns when the checkpoint would survive a power cut."""
        folder = f"{self.place}/checkpoints/epoch-{epoch:04d}"
        artifact = self.store.put_artifact(folder, "state.pt", serialise(state))
        self.store.put(f"{folder}/{MARKER}", json.dumps(asdict(artifact)).encode())

    def newest(self) -> Artifact | None:
        """Rank 0. The newest checkpoint whose bytes are those that were written, if any."""
        markers = [key for key in self.store.list(f"{self.place}/checkpoints") if key.endswith(f"/{MARKER}")]
        for marker in reversed(markers):
            try:
                artifact = Artifact(**json.loads(self.store.get(marker)))
                state = deserialise(self.store.read(artifact), torch.device("cpu"))
                # It names the best epoch's weights, which are read only when the training is over: too late to go back.
                if "best" in state:
                    self.store.read(Artifact(**state["best"]["weights"]))
            except (DamagedObjectError, ValueError, TypeError) as error:
                logger.warning("checkpoint %s is damaged, going back to the one before: %s", marker, error)
                continue
            return artifact
        return None

    def load(self, artifact: Artifact, device: torch.device) -> dict[str, Any]:
        """All ranks."""
        return deserialise(self.store.read(artifact), device)


def serialise(state: dict[str, Any]) -> bytes:
    """
    torch's file format: equal states give equal bytes, for its zip records carry no time and no name.

    Tensors are copied first: a view would be saved with the whole storage it looks into.
    """
    buffer = io.BytesIO()
    torch.save(_compact(state), buffer)
    return buffer.getvalue()


def deserialise(data: bytes, device: torch.device) -> dict[str, Any]:
    """Tensors and plain values only: a file from elsewhere cannot run code."""
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    return state


def _compact(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, dict):
        return {key: _compact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_compact(item) for item in value)
    return value
