"""Serve a language model, which scores documents with a token set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import nn

from mlops.features.token_set import FittedTokens, TokenSet
from mlops.objectives.objective import LoadedObjective
from mlops.trainer.document_scoring import score_documents

EXAMPLE_DOCUMENTS: Final = 5


class ServedDocuments:
    """
    A language model that scores the documents of requests.

    :param stored: the features' part of the document: ``state``
    :param described: the model's part of the document, which is not used
    """

    def __init__(
        self,
        token_set: TokenSet,
        stored: Mapping[str, Any],
        module: nn.Module,
        described: Mapping[str, Any],
        objective: LoadedObjective,
    ) -> None:
        self._fitted, self._module = FittedTokens(token_set, stored["state"]), module
        self._objective = objective
        self.columns = self._fitted.columns

    def answer(self, rows: pl.DataFrame) -> dict[str, npt.NDArray[Any]]:
        """
        Score documents. A document does not depend on the others of its request.

        :return: the columns of the objective, see :meth:`LanguageModelling.answer`
        """
        num_tokens, losses = score_documents(self._module, self._fitted, rows, torch.device("cpu"))
        scored = self._objective.predictions(num_tokens, losses, np.arange(rows.height + 1))
        return dict(self._objective.functions.answer(scored))

    def example(self, held_out: pl.DataFrame) -> pl.DataFrame:
        """Return the shortest documents: they are stored with the model."""
        lengths = [pl.col(name).str.len_bytes() for name in self.columns]
        return held_out.select(self.columns.names()).sort(*lengths, *self.columns).head(EXAMPLE_DOCUMENTS)
