"""
How a model is laid out over the processes of a training.

All layouts are products over one mesh, see ``mesh.DIMENSIONS``. :func:`build_strategy` composes them: layers are sliced
(``tensor``), the model is cut into stages (``pipeline``), the stage is sharded (``sharded``) or replicated by DDP.
The loop sees a :class:`ParallelStrategy` only.
"""

from mlops.trainer.strategies.build import build_strategy
from mlops.trainer.strategies.strategy import ParallelStrategy

__all__ = ["ParallelStrategy", "build_strategy"]
