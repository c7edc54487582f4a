"""Axes of the report's figures, in colours that take those of the page."""

from __future__ import annotations

from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colours that nothing else has: the report replaces each by a CSS value of the page, light or dark.
INK, SOFT, CANDIDATE, CHAMPION = "#010101", "#020202", "#030303", "#040404"
_COLOURS: Final = {"candidate": CANDIDATE, "champion": CHAMPION}


def colour_of(model: str) -> str:
    """Return the colour of a model's line, by its name: ``candidate``, ``champion``."""
    return _COLOURS[model]


def new_axes() -> tuple[Figure, Axes]:
    """Return an empty figure of the report's size with its axes."""
    # Not pyplot: its figures live until they are closed.
    figure = Figure(layout="constrained")
    return figure, figure.subplots()
