"""Axes of the report's figures, in colours that take those of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colours that nothing else has: the report replaces each by a CSS value of the page, light or dark.
INK, SOFT, CANDIDATE, CHAMPION = "#010101", "#020202", "#030303", "#040404"
Numbers = npt.NDArray[np.float64]
_COLOURS: Final = {"candidate": CANDIDATE, "champion": CHAMPION}


def colour_of(model: str) -> str:
    """Return the colour of a model's line, by its name: ``candidate``, ``champion``."""
    return _COLOURS[model]


def new_axes() -> tuple[Figure, Axes]:
    """Return an empty figure of the report's size with its axes."""
    # Not pyplot: its figures live until they are closed.
    figure = Figure(layout="constrained")
    return figure, figure.subplots()


def new_bars(names: Sequence[str], candidate: Numbers, champion: Numbers | None) -> tuple[Figure, Axes]:
    """
    Return a figure with a bar of the candidate for each name, the first at the top, and a mark of the champion.

    :param candidate: ``[N]``
    :param champion: ``[N]``, NaN where it has none; None where there is no champion
    """
    figure, axes = new_axes()
    places = range(len(names))
    axes.barh(places, candidate, color=CANDIDATE, height=0.6, alpha=0.6, label="candidate")
    if champion is not None:
        axes.plot(champion, places, "|", color=CHAMPION, markersize=12, markeredgewidth=2.5, label="champion")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=9, length=0)
    axes.grid(visible=False, axis="y")
    return figure, axes


def mean_parts(probability: Numbers, happened: npt.NDArray[np.bool_], most: int) -> tuple[Numbers, Numbers]:
    """
    Return the mean probability of parts of equal counts, and how often it happened in each.

    :param probability: ``[N]``, as ``happened``
    :param most: parts
    """
    parts = np.array_split(np.argsort(probability, kind="stable"), min(most, len(probability)))
    return np.array([probability[part].mean() for part in parts]), np.array([happened[part].mean() for part in parts])
