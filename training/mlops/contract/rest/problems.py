"""What the REST API answers in place of a result."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

PROBLEM_TYPE: Final = "application/problem+json"
"""Media type of an error."""


class ProblemDetails(BaseModel):
    """An error, by RFC 9457."""

    title: str
    """The status, in words."""
    status: int
    detail: str
    """What is wrong, and what would do; a line for each mistake."""
