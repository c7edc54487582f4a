"""Score the model in production on the candidate's held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from mlops.contract.stages import CHAMPION
from mlops.contract.step import BadConfigError, BadDataError
from mlops.metrics.metric import Metric
from mlops.predictor.predictor import Predictor
from mlops.registry.champion import Champion
from mlops.serving.archive import unarchived
from mlops.serving.registered import ScoredByPackage, score_by_package
from mlops.serving.scoring import describe
from mlops.store import Store
from mlops.store_errors import DamagedObjectError


def score_champion(
    store: Store,
    champion: Champion,
    name: str,
    candidate: Predictor,
    metrics: Sequence[Metric],
    rows: pl.DataFrame,
    scratch: Path,
) -> ScoredByPackage:
    """
    Score raw rows with the model in production, by the package that it was registered as.

    :param name: name under which it is registered, for the message
    :param candidate: model that it is compared with
    :param metrics: those that both are measured by
    :raises BadDataError: if it cannot score this data, e.g. because a column is gone
    :raises DamagedObjectError: if the store lacks parts of the model
    """
    named = f"the model in production, {name} version {champion.version} ({CHAMPION}),"
    replace = (
        f"put another version in its place: mlops models rollback {name} --why ..., or "
        f"mlops models promote {name} VERSION --why ...; or none: mlops models retire {name} --why ..."
    )
    try:
        folder = unarchived(store, champion.report, scratch)
        found = score_by_package(folder, rows, scratch / "champion", candidate=candidate.objective)
        _check_comparable(candidate, found, metrics)
        found.scored.check_finite(f"the champion, version {champion.version},")
        return found
    except DamagedObjectError as error:
        raise DamagedObjectError(
            f"{named} cannot be read, so there is nothing to compare with: {error}. Meanwhile {replace}"
        ) from error
    except (BadConfigError, BadDataError) as error:
        raise BadDataError(
            f"{named} cannot be scored on this data, so there is nothing to compare with: {error}. Give the data what "
            f"that model needs, or {replace}"
        ) from error


def _check_comparable(candidate: Predictor, champion: ScoredByPackage, metrics: Sequence[Metric]) -> None:
    """
    Check that the metrics are defined for both models, that their labels mean the same, that metrics of quantiles are
    of the same ones, and that language models have the same tokens.

    :raises BadConfigError: if the two cannot be compared
    """
    if unfit := [metric.name for metric in metrics if champion.kind not in metric.spec.measures]:
        raise BadConfigError(
            f"its objective is {champion.objective!r}, and the candidate's is {candidate.objective.name!r}: {unfit[0]} "
            f"is not defined for what it predicts"
        )
    own, described = candidate.objective, describe(candidate)
    settings = champion.scored.predictions.settings.model_dump(mode="json")
    now = own.settings.model_dump(mode="json")
    meanings: list[tuple[str, Any, Any]] = [
        ("the columns of FeatureSet.label are", list(champion.labels), described["labels"]),
        ("the classes of its feature set are", list(champion.classes), described["classes"]),
    ]
    if champion.objective == own.name:
        meanings += [
            (f"its objective_settings.{name} is", settings.get(name), now[name]) for name in own.spec.label_settings
        ]
    told = [_num_classes(champion.kind, settings), _num_classes(own.kind, now)]
    if None not in told:
        meanings.append(("the number of its classes is", told[0], told[1]))
    for what, before, after in meanings:
        if before != after:
            raise BadConfigError(f"its labels mean something else: {what} {before}, and the candidate's {after}")
    levels, others = settings.get("quantiles"), now.get("quantiles")
    of_quantiles = [metric.name for metric in metrics if tuple(metric.spec.measures) == ("quantiles",)]
    if of_quantiles and levels and others and levels != others:
        raise BadConfigError(
            f"its objective_settings.quantiles are {levels}, and the candidate's {others}: {of_quantiles[0]} is an "
            "average over each model's own. Train the candidate for the same ones, or measure both by a metric of "
            "their medians, such as mae"
        )
    tokens = described["tokens"]
    if tokens is not None and tokens != champion.tokens:
        assert champion.tokens is not None, "the metrics of tokens fit both"
        raise BadConfigError(
            f"its tokens are those of {champion.tokens['tokenizer']} as it was then, and the candidate's are of "
            f"{tokens['tokenizer']}: perplexities of different tokens cannot be compared"
        )


def _num_classes(kind: str, settings: Mapping[str, Any]) -> int | None:
    """Return the number of classes that an objective tells apart; None where it tells none."""
    return 2 if kind == "logit" else len(settings["classes"]) if kind == "classes" else None
