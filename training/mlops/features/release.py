"""The software that, besides a recipe's code, decides the bits of a feature."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from mlops.contract.step import BadConfigError
from mlops.features.applied import STATE_FORMAT


def engine() -> dict[str, str]:
    """Return the versions of Polars and of the transforms in this process."""
    return {"polars": pl.__version__, "transforms": str(STATE_FORMAT)}


def check_engine(what: str, made_with: Mapping[str, str]) -> None:
    """
    Check that this process has the versions that something was made with.

    :param what: what was made, and where it is, for the message
    :raises BadConfigError: where a value made here could differ from the one that the model was trained on
    """
    if made_with == (here := engine()):
        return
    then, now = (", ".join(f"{name} {part[name]}" for name in sorted(part)) for part in (made_with, here))
    raise BadConfigError(
        f"{what} were made with {then or 'an earlier release'}, and here are {now}: a value could differ from the one "
        "that the model was trained on. Install training/requirements.txt of the release that made them, or run "
        "features and training again with this one"
    )
