"""How often a task's processes failed on each node, over its tries: the next one keeps away from a bad one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow.sdk import Context

FAILED_NODES: Final = "failed_nodes"
"""Key of the task's state."""


def failed_nodes(context: Context) -> Mapping[str, int]:
    failed: Mapping[str, int] = context["task_state_store"].get(FAILED_NODES, {})  # type: ignore[assignment]
    return failed


def note_failed_nodes(nodes: Sequence[str], context: Context) -> None:
    context["task_state_store"].set(FAILED_NODES, dict(Counter(failed_nodes(context)) + Counter(nodes)))
