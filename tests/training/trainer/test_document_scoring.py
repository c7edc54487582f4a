from __future__ import annotations

import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from mlops.features.token_set import FittedTokens, TokenSet
from mlops.trainer.document_scoring import score_documents

CPU = torch.device("cpu")
END = 256


class Previous(nn.Module):
    """Knows the token before, and how far it is within its sequence."""

    def __init__(self, position: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.logits, self.position = nn.Embedding(257, 257), nn.Embedding(64, 257) if position else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.logits(tokens)
        return logits if self.position is None else logits + self.position(torch.arange(tokens.shape[1]))


def tokens(context: int) -> FittedTokens:
    return FittedTokens.fit(TokenSet(text="text", context=context), [])


def documents(*texts: str) -> pl.DataFrame:
    return pl.DataFrame({"text": texts})


@pytest.mark.parametrize("context", [3, 8, 64], ids=["many", "exact", "one"])
def test_every_token_and_the_end_are_judged_once(context: int) -> None:
    """Broken: text at the edges of sequences would not count, or twice, and padding would."""
    model = Previous(position=False)
    texts = ["abcdefg", "a", "def f():\n    return 1\n"]
    num_tokens, losses = score_documents(model, tokens(context), documents(*texts), CPU)
    assert num_tokens.tolist() == [len(text) + 1 for text in texts]
    for text, loss in zip(texts, losses, strict=True):
        whole = torch.tensor([END, *text.encode(), END])
        expected = functional.cross_entropy(model.logits(whole[:-1]), whole[1:], reduction="sum")
        assert loss == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_document_is_judged_by_itself() -> None:
    """Broken: candidate and champion would be compared on what happens to stand before."""
    model, fitted = Previous(position=True), tokens(4)
    together = score_documents(model, fitted, documents("first of them", "another", "x" * 9), CPU)[1]
    apart = [score_documents(model, fitted, documents(text), CPU)[1][0] for text in ("x" * 9, "first of them")]
    assert [together[2], together[0]] == apart
