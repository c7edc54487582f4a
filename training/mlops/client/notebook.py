"""A run as a notebook shows it while it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from mlops.client.answers import Curves, Run
from mlops.client.errors import ClientError
from mlops.contract.rest import Value

_BETWEEN_SECONDS: Final = 1.0


class Picture:
    """
    The output of a cell, which changes.

    :param metrics: to show; all, if none is given
    :raises ClientError: where there is no notebook
    """

    def __init__(self, run: Run, metrics: Sequence[str]) -> None:
        try:
            from IPython.display import display
        except ImportError:
            raise ClientError("show is for notebooks, and there is no IPython: print what watch yields") from None
        self._run, self._metrics = run, metrics
        self._values: list[Value] = []
        self._drawn = 0.0
        self._handle: Any = display(_Both(run, Curves()), display_id=True)

    def add(self, values: Sequence[Value]) -> None:
        self._values += [value for value in values if not self._metrics or value.metric in self._metrics]
        if time.monotonic() > self._drawn + _BETWEEN_SECONDS:
            self._draw()
            self._drawn = time.monotonic()

    def finish(self, run: Run) -> None:
        """Show it as it has ended."""
        self._run = run
        self._draw()

    def _draw(self) -> None:
        if self._handle is not None:  # outside of a notebook it is printed once
            self._handle.update(_Both(self._run, Curves.of(self._values)))


class _Both:
    def __init__(self, run: Run, curves: Curves) -> None:
        self._run, self._curves = run, curves

    def __repr__(self) -> str:
        return f"{self._run.id} is {self._run.state}"

    def _repr_html_(self) -> str:
        return self._run._repr_html_() + self._curves._repr_html_()
