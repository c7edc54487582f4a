"""
Imported once by the process that a node's workers are forked from: a restarted worker then starts in hundredths of a
second, not in the seconds that these imports take.

Nothing here may start a thread (polars and pyarrow do): a lock that a thread holds at the fork stays locked for ever.
"""

from __future__ import annotations

import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel  # noqa: F401

from training.process import die_with_parent

# multiprocessing would let this process live on as long as any worker does, also where the agent was killed.
die_with_parent()
