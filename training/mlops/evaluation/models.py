"""Load trained models from the store, with their own features, code and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import torch
from torch import nn

from mlops.code import load_bundled
from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.contract.stages import CHAMPION
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.feature_table import FeatureTable
from mlops.evaluation.scoring import ModelDescription, Scored, TrainedModel, describe
from mlops.features.applied import FittedFeatures
from mlops.features.fitted import load_fitted
from mlops.features.token_set import FittedTokens
from mlops.features.tokenise import load_tokens
from mlops.metrics.metric import Metric
from mlops.metrics.predictions import Floats, IntArray
from mlops.objectives.objective import LoadedObjective, load_objective
from mlops.objectives.scoring import predict_table
from mlops.registry.champion import Champion
from mlops.store import Store
from mlops.store_errors import DamagedObjectError
from mlops.trainer.checkpoint.weights import deserialise
from mlops.trainer.document_scoring import score_documents
from mlops.trainer.model import build_model

ROW: Final = "__row"
CPU: Final = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableModel:
    """A model that scores the rows of a table. A sample is a query if rows are grouped, else a row."""

    description: ModelDescription
    objective: LoadedObjective
    fitted: FittedFeatures
    model: nn.Module
    num_bytes: int

    @property
    def columns(self) -> Sequence[str]:
        return self.fitted.columns.names()

    def score(self, rows: pl.DataFrame) -> Scored:
        table = self.fitted.apply(rows)
        return Scored(
            rows=self.fitted.rows(rows.with_row_index(ROW))[ROW].to_numpy().astype(np.int64),
            predictions=self.objective.predictions(table.labels, self._predict(table), table.offsets),
        )

    def serve(self, request: Sequence[Mapping[str, Any]]) -> Floats:
        return self._predict(self.fitted.serve(request))

    def samples(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, IntArray]:
        return self.fitted.arranged(rows)

    def _predict(self, table: FeatureTable) -> Floats:
        if table.num_features != self.description.num_features:
            raise BadDataError(
                f"the model takes {self.description.num_features} features, its feature set gives "
                f"{table.num_features}; train it again"
            )
        return predict_table(self.objective.functions, self.model, table, CPU, grouped=self.description.grouped)


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModel:
    """A model that scores documents, each a row and a sample of its own."""

    description: ModelDescription
    objective: LoadedObjective
    tokens: FittedTokens
    model: nn.Module
    num_bytes: int

    @property
    def columns(self) -> Sequence[str]:
        return self.tokens.columns.names()

    def score(self, rows: pl.DataFrame) -> Scored:
        num_tokens, losses = score_documents(self.model, self.tokens, rows, CPU)
        offsets = np.arange(rows.height + 1)
        return Scored(rows=offsets[:-1], predictions=self.objective.predictions(num_tokens, losses, offsets))

    def serve(self, request: Sequence[Mapping[str, Any]]) -> Floats:
        return self.score(pl.DataFrame(request, schema=self.tokens.columns)).predictions.predicted

    def samples(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, IntArray]:
        return rows, np.arange(rows.height + 1)


def open_model(store: Store, checkpoint: CheckpointRef, scratch: Path) -> TableModel | LanguageModel:
    """
    Load the model of a checkpoint.

    :param scratch: folder for the unpacked code; must stay as long as the model is in use
    :raises BadConfigError: where its features or its code cannot be used here
    """
    description, features = describe(store, checkpoint), checkpoint.ancestor(FeaturesRef)
    code = store.read(checkpoint.artifacts["code"])

    def own(import_path: str) -> object:
        return load_bundled(code, import_path, scratch)

    objective = load_objective(description.objective, description.objective_settings, own)
    model = build_model(
        own(description.model),
        description.model,
        description.num_features,
        description.model_args,
        vocab_size=description.vocab_size,
        num_outputs=description.num_outputs,
    )
    model.load_state_dict(deserialise(store.read(checkpoint.artifacts["weights"]), CPU))
    served = [checkpoint.artifacts[name] for name in ("weights", "code")]
    served += [features.artifacts[name] for name in ("state", "code")]
    num_bytes = sum({artifact.sha256: artifact.num_bytes for artifact in served}.values())
    if description.vocab_size is not None:
        tokens = load_tokens(store, features, scratch)
        return LanguageModel(
            description=description, objective=objective, tokens=tokens, model=model, num_bytes=num_bytes
        )
    return TableModel(
        description=description,
        objective=objective,
        fitted=load_fitted(store, features, scratch),
        model=model,
        num_bytes=num_bytes,
    )


def score_champion(
    store: Store,
    champion: Champion,
    name: str,
    candidate: TrainedModel,
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
        model = open_model(store, champion.checkpoint, scratch)
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


def _check_comparable(candidate: TrainedModel, champion: TrainedModel, metrics: Sequence[Metric]) -> None:
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
    models = [model for model in (candidate, champion) if isinstance(model, LanguageModel)]
    states = [{part: model.tokens.state[part] for part in ("format", "tokenizer", "fitted")} for model in models]
    if models and states[0] != states[1]:
        raise BadConfigError(
            f"its tokens are those of {states[1]['tokenizer']} as it was then, and the candidate's are of "
            f"{states[0]['tokenizer']}: perplexities of different tokens cannot be compared"
        )
