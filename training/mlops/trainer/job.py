"""What a training is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from mlops.contract.sections.train import Train
from mlops.data.shards.loader import Loader
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.health import Heartbeat
from mlops.trainer.memory.peer_memory import PeerMemory
from mlops.trainer.parallel import Ranks
from mlops.trainer.strategies import ParallelStrategy
from mlops.trainer.training_loss import TrainingLoss
from mlops.trainer.validation import Validation


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """All that the loop works on."""

    config: Train
    strategy: ParallelStrategy
    optimizer: Optimizer
    loss: TrainingLoss
    loader: Loader
    validation: Validation
    checkpoints: Checkpoints
    heartbeat: Heartbeat
    facts: Mapping[str, Any] = field(default_factory=dict)
    """JSON that tells what its checkpoints are checkpoints of."""
    nondeterministic: set[str] = field(default_factory=set)
    """Operations of any rank that have no deterministic algorithm, once it is over."""
    memory: PeerMemory = field(default_factory=lambda: PeerMemory(Ranks(), place=""))
    """Keeps nothing by default."""
