"""What the kernel says about processes that it killed for want of memory."""

from __future__ import annotations

from pathlib import Path

_COUNTS = ("sys/fs/cgroup/memory.events", "sys/fs/cgroup/memory/memory.oom_control")
"""Files that count the out-of-memory kills of this container: cgroup v2, and v1."""


def memory_kills(root: Path = Path("/")) -> int | None:
    """Processes of this container that the kernel has killed so far; None where it does not count them."""
    for path in _COUNTS:
        if (root / path).exists():
            counts = dict(line.split()[:2] for line in (root / path).read_text().splitlines() if line.strip())
            return int(counts["oom_kill"]) if "oom_kill" in counts else None
    return None


def say_kills(before: int | None, now: int | None) -> str:
    """What is known of a process that got SIGKILL, in words."""
    if before is None or now is None:
        return "by whom is not known: this container does not count kills for want of memory, which are the usual cause"
    if now > before:
        return "by the kernel, for want of memory: lower train.micro_batch or micro_batch_rows, or give the node more"
    return (
        "by whom is not known: the kernel counted no kill for want of memory in this container; it may have been the "
        "node's memory as a whole, an eviction, or somebody"
    )
