"""
Imported once by the process that a node's workers are forked from: a restarted worker then starts in hundredths of a
second, not in the seconds that these imports take.

Nothing here may start a thread (polars and pyarrow do): a lock that a thread holds at the fork stays locked for ever.
"""

from __future__ import annotations

import requests  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.parallel  # noqa: F401

from mlops.tracking.provenance import packages

packages()
