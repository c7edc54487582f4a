"""Score rows by the package of a model, with the library and the packages that it was registered with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import ConfigDict

from mlops.contract.extensions import by_import_path
from mlops.contract.objectives import OBJECTIVES
from mlops.contract.section import Section, SpecError, check_section
from mlops.metrics.predictions import Predictions
from mlops.objectives.objective import LoadedObjective
from mlops.predictor.predictor import Predictor
from mlops.predictor.scored import Scored
from mlops.serving import scoring
from mlops.serving.registered_package import RegisteredPackage


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredByPackage:
    """Rows that a package has scored, and what must be known of its model to compare it with another."""

    scored: Scored
    objective: str
    kind: str
    """Kind of prediction."""
    classes: Sequence[str]
    """Values of its label, as ``FeatureSet.classes`` names them; empty where the label is a number."""
    labels: Sequence[str]
    """The columns of its label, of which there may be one; empty where documents are scored."""
    tokens: Mapping[str, Any] | None
    """``format``, ``tokenizer`` and ``fitted`` of the tokens of a language model."""
    model: Predictor | None
    """The model, where this process could open it: where library and packages are those it was registered with."""


class _StoredSettings(Section):
    """Settings of an objective that is not here."""

    model_config = ConfigDict(extra="allow")


def score_by_package(folder: Path, rows: pl.DataFrame, scratch: Path, *, candidate: LoadedObjective) -> ScoredByPackage:
    """
    Score raw rows.

    :param folder: folder of the package
    :param candidate: objective of the model that it is compared with
    :param scratch: folder for files, empty or missing
    :raises BadDataError: where the model cannot score these rows
    :raises BadConfigError: where what it was registered with cannot be had here
    """
    package = RegisteredPackage.of(folder, scratch)
    if (model := package.opened()) is not None:
        return _described(scoring.describe(model), model.score(rows), model)
    with package.running(scoring) as program:
        document = program.ask(rows, scratch)
    with np.load(scratch / scoring.ARRAYS) as arrays:
        predictions = Predictions(
            labels=arrays["labels"],
            predicted=arrays["predicted"],
            offsets=arrays["offsets"],
            settings=_settings(document["objective"], document["settings"], candidate),
        )
        return _described(document, Scored(rows=arrays["rows"], predictions=predictions))


def _settings(name: str, values: Mapping[str, Any], candidate: LoadedObjective) -> Section:
    """Return the settings of an objective as this release has them, where it has that objective."""
    section: type[Section] = _StoredSettings
    if name == candidate.name:
        section = candidate.spec.section
    elif not by_import_path(name):
        with suppress(SpecError):  # of a package that is no longer installed
            section = OBJECTIVES.load(name).section
    return check_section(section, values, f"objective_settings of {name}")


def _described(document: Mapping[str, Any], scored: Scored, model: Predictor | None = None) -> ScoredByPackage:
    return ScoredByPackage(
        scored=scored,
        objective=document["objective"],
        kind=document["kind"],
        classes=document["classes"],
        labels=document["labels"],
        tokens=document["tokens"],
        model=model,
    )
