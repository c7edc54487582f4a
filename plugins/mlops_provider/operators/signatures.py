"""The signatures of operators whose settings are keyword arguments."""

from __future__ import annotations

import inspect
from typing import Any

from mlops.contract.section import Section


def name_settings(operator: type[Any], section: type[Section]) -> None:
    """
    Name the fields of a section as keyword arguments of an operator.

    Airflow's ``partial()`` and ``expand()`` take what the signature names, and nothing of its ``**kwargs``.
    """
    init = vars(operator).get("__init__") or _init_of_parent(operator)
    given = inspect.signature(init)
    own = [parameter for parameter in given.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in section.model_fields
        if name not in given.parameters
    ]
    rest = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
    init.__signature__ = given.replace(parameters=[*own, *settings, rest])
    operator.__init__ = init


def _init_of_parent(operator: type[Any]) -> Any:
    """Return an ``__init__`` of the operator's own: a class needs one to have a signature of its own."""

    def __init__(self: Any, **kwargs: Any) -> None:
        super(operator, self).__init__(**kwargs)

    return __init__
