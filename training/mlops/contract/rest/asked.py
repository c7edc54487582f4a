"""What the bodies of requests have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Asked(BaseModel):
    """The body of a request, or a part of it: an unknown field is refused, and null is as if it was not given."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for field, text in value.items():
            if isinstance(text, str) and field in cls.model_fields:
                check_text(text, f"{field} ")
        return {k: v for k, v in value.items() if v is not None}


def check_text(text: str, place: str = "") -> None:
    r"""
    Check a text that came as JSON, in which ``"\ud800"`` may stand for half of a character.

    :param place: of the text, for the message
    :raises ValueError: where UTF-8 cannot have it
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise ValueError(f"{place}has {half!r}, which is half of a character: write a whole one") from None
