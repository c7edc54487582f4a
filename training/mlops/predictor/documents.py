"""A language model that scores documents, each a row and a sample of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import nn

from mlops.features.token_set import FittedTokens, TokenSet
from mlops.metrics.predictions import Floats, IntArray
from mlops.objectives.objective import LoadedObjective
from mlops.predictor.document import ModelDescription
from mlops.predictor.scored import Scored
from mlops.random_states import drawn_alike
from mlops.trainer.document_scoring import score_documents

EXAMPLE_DOCUMENTS: Final = 5


class DocumentsPredictor:
    """
    Implements :class:`mlops.predictor.predictor.Predictor`.

    :param definition: the token set
    :param stored: the features' part of the document: ``state``
    :param recipes: folder of the recipes' files, kept for as long as the model
    """

    def __init__(
        self,
        *,
        definition: TokenSet,
        stored: Mapping[str, Any],
        description: ModelDescription,
        objective: LoadedObjective,
        module: nn.Module,
        num_bytes: int,
        recipes: TemporaryDirectory[str],
    ) -> None:
        self.tokens = FittedTokens(definition, stored["state"])
        self.description, self.objective, self.num_bytes = description, objective, num_bytes
        self._module, self._recipes = module, recipes

    def importance(self, rows: pl.DataFrame) -> Mapping[str, float]:
        return {}

    @property
    def columns(self) -> pl.Schema:
        return self.tokens.columns

    @property
    def inputs(self) -> Sequence[str]:
        return []

    @property
    def unknown(self) -> Sequence[str]:
        return []

    def score(self, rows: pl.DataFrame) -> Scored:
        with drawn_alike():  # some models draw in evaluation mode too
            return self._scored(rows)

    def _scored(self, rows: pl.DataFrame) -> Scored:
        num_tokens, losses = score_documents(self._module, self.tokens, rows, torch.device("cpu"))
        offsets = np.arange(rows.height + 1)
        return Scored(rows=offsets[:-1], predictions=self.objective.predictions(num_tokens, losses, offsets))

    def serve(self, request: Sequence[Mapping[str, Any]]) -> Floats:
        return self._scored(pl.DataFrame(request, schema=self.columns)).predictions.predicted

    def samples(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, IntArray]:
        return rows, np.arange(rows.height + 1)

    def answer(self, rows: pl.DataFrame) -> dict[str, npt.NDArray[Any]]:
        """
        Score documents. A document does not depend on the others of its request.

        :return: the columns of the objective: ``loss``, ``num_tokens`` and ``perplexity``
        """
        return dict(self.objective.functions.answer(self._scored(rows).predictions))

    def example(self, held_out: pl.DataFrame) -> pl.DataFrame:
        """Return the shortest documents: they are stored with the model."""
        lengths = [pl.col(name).str.len_bytes() for name in self.columns]
        return held_out.select(self.columns.names()).sort(*lengths, *self.columns).head(EXAMPLE_DOCUMENTS)
