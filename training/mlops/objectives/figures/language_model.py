"""Figures of a language model: perplexities of documents."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from mlops.metrics.predictions import Predictions
from mlops.objectives.figures.axes import colour_of, new_axes


def figures(models: Mapping[str, Predictions], metric: str) -> list[tuple[str, Figure]]:
    """Draw the distribution of the documents' perplexities."""
    figure, axes = new_axes()
    for name, each in models.items():
        values = np.exp(each.predicted.astype(np.float64) / each.labels)
        axes.plot(np.sort(values), np.linspace(0, 1, len(values)), color=colour_of(name), label=name)
    axes.set(xlabel="perplexity of a document", ylabel="share of the documents", xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(loc="lower right")
    return [("Perplexity by document", figure)]
