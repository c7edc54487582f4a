"""Keys under which a task leaves what it has to say beside its ref, as XComs."""

from __future__ import annotations

from typing import Final

FAILURE_KEY: Final = "failure"
"""Of a failed step: its :class:`mlops.contract.step.Failure`, for whoever follows a run."""
NEWS_KEY: Final = "news"
"""A sentence: what has gone into production by it, or why it had nothing to do and was skipped."""
