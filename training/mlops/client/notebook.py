"""A run as a notebook shows it while it goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from mlops.client.answers import Curves, Run
from mlops.client.calls import names_of
from mlops.client.errors import ClientError
from mlops.contract.rest import Value

_BETWEEN_SECONDS: Final = 1.0
_SHARE: Final = 4.0
"""Of the time that the last drawing took, until the next one: the kernel has other work."""


class Picture:
    """
    The output of a cell, which changes; outside of a notebook it is printed at its begin and at its end.

    :param metrics: to show; all, if none is given
    :raises ClientError: where there is no IPython
    """

    def __init__(self, run: Run, metrics: Sequence[str] | str) -> None:
        try:
            from IPython.core.getipython import get_ipython
            from IPython.display import display
        except ImportError:
            raise ClientError("show is for notebooks, and there is no IPython: print what watch yields") from None
        self._run, self._metrics = run, names_of(metrics)
        self._values: list[Value] = []
        self._next = 0.0
        self._is_notebook = getattr(get_ipython(), "kernel", None) is not None
        self._handle: Any = display(_Both(run, Curves()), display_id=True)

    def add(self, values: Sequence[Value], run: Run | None) -> None:
        """
        Add what is new.

        :param run: as it stands, where somebody has looked
        """
        self._values += [value for value in values if not self._metrics or value.metric in self._metrics]
        self._run = run or self._run
        # A stream that has opened or ended brings no values: then what has waited is drawn.
        if self._is_notebook and (run is not None or time.monotonic() > self._next):
            begun = time.monotonic()
            self._draw()
            ended = time.monotonic()
            self._next = ended + max(_BETWEEN_SECONDS, _SHARE * (ended - begun))

    def finish(self, run: Run) -> None:
        """Show it as it has ended."""
        self._run = run
        self._draw()

    def _draw(self) -> None:
        shown = _Both(self._run, Curves.of(self._values))
        if self._handle is None:  # no shell runs
            print(shown)
        else:
            self._handle.update(shown)


class _Both:
    def __init__(self, run: Run, curves: Curves) -> None:
        self._run, self._curves = run, curves

    def __repr__(self) -> str:
        return f"{self._run.id} is {self._run.state}"

    def _repr_html_(self) -> str:
        return self._run._repr_html_() + self._curves._repr_html_()
