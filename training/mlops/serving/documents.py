"""Serve a language model, which scores documents with a token set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import nn

from mlops.contract.step import BadDataError
from mlops.features.token_set import FittedTokens, TokenSet
from mlops.trainer.document_scoring import score_documents

EXAMPLE_DOCUMENTS: Final = 5


class ServedDocuments:
    """
    A language model that scores the documents of requests.

    :param stored: the features' part of the document: ``state``
    :param described: the model's part of the document, which is not used
    """

    def __init__(
        self, token_set: TokenSet, stored: Mapping[str, Any], module: nn.Module, described: Mapping[str, Any]
    ) -> None:
        self._fitted, self._module = FittedTokens(token_set, stored["state"]), module
        self.columns = self._fitted.columns

    def answer(self, rows: pl.DataFrame) -> dict[str, npt.NDArray[Any]]:
        """
        Score documents. A document does not depend on the others of its request.

        :return: ``loss``, the mean loss of a token in nats; ``num_tokens``, with the document's end; ``perplexity``,
            the exponential of ``loss``
        """
        num_tokens, losses = score_documents(self._module, self._fitted, rows, torch.device("cpu"))
        loss = losses.astype(np.float64) / num_tokens
        with np.errstate(over="ignore"):
            perplexity = np.exp(loss)
        if len(wrong := np.flatnonzero(~np.isfinite(perplexity))):
            raise BadDataError(f"the model's loss of document {wrong[0]} is {loss[wrong[0]]:g} nats a token")
        return {"loss": loss, "num_tokens": num_tokens.astype(np.int64), "perplexity": perplexity}

    def example(self, held_out: pl.DataFrame) -> pl.DataFrame:
        """Return the shortest documents: they are stored with the model."""
        lengths = [pl.col(name).str.len_bytes() for name in self.columns]
        return held_out.select(self.columns.names()).sort(*lengths, *self.columns).head(EXAMPLE_DOCUMENTS)
