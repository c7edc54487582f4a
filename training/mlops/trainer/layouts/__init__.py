"""
How a model is laid out over the processes of a training.

All layouts are products over one mesh, see ``mesh.DIMENSIONS``. :func:`build_layout` composes them: layers are sliced
(``tensor``), the model is cut into stages (``pipeline``), the stage is sharded (``sharded``) or replicated by DDP.
The loop sees a :class:`Layout` only.
"""

from mlops.trainer.layouts.build import build_layout
from mlops.trainer.layouts.layout import Layout

__all__ = ["Layout", "build_layout"]
