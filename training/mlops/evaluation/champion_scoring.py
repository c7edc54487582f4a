"""Score the model in production on the candidate's held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from mlops.contract.stages import CHAMPION
from mlops.contract.step import BadConfigError, BadDataError
from mlops.metrics.metric import Metric
from mlops.predictor.documents import DocumentsPredictor
from mlops.predictor.packing import open_checkpoint
from mlops.predictor.predictor import Predictor
from mlops.predictor.scored import Scored
from mlops.registry.champion import Champion
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
) -> Scored:
    """
    Score raw rows with the model in production.

    :param name: name under which it is registered, for the message
    :param candidate: model that it is compared with
    :param metrics: those that both are measured by
    :raises BadDataError: if it cannot score this data, e.g. because a column is gone
    :raises DamagedObjectError: if the store lacks parts of the model
    """
    named = f"the model in production, {name} version {champion.version} ({CHAMPION}),"
    replace = (
        f"put another version in its place: mlops models rollback {name} --why ..., or "
        f"mlops models promote {name} VERSION --why ..."
    )
    try:
        model = open_checkpoint(store, champion.checkpoint, scratch)
        _check_comparable(candidate, model, metrics)
        scored = model.score(rows)
        scored.check_finite(f"the champion, version {champion.version},")
        return scored
    except DamagedObjectError as error:
        raise DamagedObjectError(
            f"{named} cannot be read, so there is nothing to compare with: {error}. Meanwhile {replace}"
        ) from error
    except (BadConfigError, BadDataError) as error:
        raise BadDataError(
            f"{named} cannot be scored on this data, so there is nothing to compare with: {error}. Give the data what "
            f"that model needs, or {replace}"
        ) from error


def _check_comparable(candidate: Predictor, champion: Predictor, metrics: Sequence[Metric]) -> None:
    """
    Check that the metrics are defined for both models, and that language models have the same tokens.

    :raises BadConfigError: if the two cannot be compared
    """
    other, own = champion.objective, candidate.objective
    if unfit := [metric.name for metric in metrics if other.kind not in metric.spec.measures]:
        raise BadConfigError(
            f"its objective is {other.name!r}, and the candidate's is {own.name!r}: {unfit[0]} is not defined for "
            f"what it predicts"
        )
    models = [model for model in (candidate, champion) if isinstance(model, DocumentsPredictor)]
    states = [{part: model.tokens.state[part] for part in ("format", "tokenizer", "fitted")} for model in models]
    if models and states[0] != states[1]:
        raise BadConfigError(
            f"its tokens are those of {states[1]['tokenizer']} as it was then, and the candidate's are of "
            f"{states[0]['tokenizer']}: perplexities of different tokens cannot be compared"
        )
