"""What is said of an error that no step has foreseen, and whether another try can help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from mlops.code import recipe_line
from mlops.contract.step import STEPS, Failure, StepError, StepInput

_OF_CODE: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""
Errors by which a mistake in code shows itself. Not ``RuntimeError``, which torch raises for shapes, but for devices and
connections, too: a training that meets the same one again says so, see :class:`mlops.elastic.agent.Agent`.
"""


def failure_of(error: Exception, document: StepInput | None, home: Path) -> Failure:
    """
    Return the failure that an error is, with the line of the recipe that it came from.

    A mistake in a recipe's code is made again by the next try, where the step reads only what is committed. What ingest
    reads may be other data by then.

    :param document: of the step; None where it cannot be read
    :param home: project folder, which holds the recipes
    """
    failure = Failure.of(error)
    if isinstance(error, StepError):
        return failure
    line = recipe_line(error, home)
    place = f" ({line}, in {line.function})" if line else ""
    is_mistake = line is not None and isinstance(error, _OF_CODE) and not isinstance(error, OSError)
    return replace(
        failure,
        message=f"{failure.type}: {failure.message}{place}",
        retryable=failure.retryable and not (is_mistake and document and _reads_only_refs(document)),
    )


def _reads_only_refs(document: StepInput) -> bool:
    """False of a script of the recipe's own, which may read anything."""
    train = document.config.get("train", document.config)
    return bool(STEPS[document.step].consumes) and not train.get("program")
