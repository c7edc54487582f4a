"""
How many spot nodes a job that wanted four could keep, every five minutes.

An excerpt, from a lively hour on, of the trace of p3.2xlarge (V100) in us-west-2c, August 2023, published as
``preemption/4-node/aws-08-03-2023/us-west-2c_v100_1.json`` in github.com/skypilot-org/spot-traces, with Wu et al.,
"Can't Be Late: Optimizing Spot Instance Savings under Deadlines" (NSDI 2024).
"""

from __future__ import annotations

GAP_SECONDS = 300
MOST_NODES = 4
# Nodes, and for how many samples.
_RUNS = (
    "2x1 1x1 2x1 0x2 4x2 2x1 0x2 3x1 4x2 2x1 0x13 4x10 1x1 0x11 1x1 3x1 4x6 1x1 0x6 2x1 4x24"
)  # fmt: skip


def spot_nodes() -> list[int]:
    """``[89]``, each for :data:`GAP_SECONDS`."""
    runs = [[int(number) for number in run.split("x")] for run in _RUNS.split()]
    return [nodes for nodes, samples in runs for _ in range(samples)]
