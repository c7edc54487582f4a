from __future__ import annotations

from pathlib import Path
from typing import Any

import corpus
import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from mlops_provider.refs import CheckpointRef, ModelVersionRef, ReportRef
from mlops_provider.step import Failure
from training.data.snapshots import Snapshot
from training.evaluation.models import open_model
from training.features.token_set import FittedTokens, TokenSet
from training.trainer.documents import score_documents

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


@pytest.fixture
def library(project: Any) -> Any:
    corpus.write_library(project.home, 80)
    corpus.write_recipe(project.home)
    return project


@pytest.fixture
def trained(library: Any, run_step: Any, config: Any) -> Any:
    def train(key: str, name: str = "FEATURES", **changes: Any) -> CheckpointRef:
        dataset = corpus.ingested(library, run_step)
        features = corpus.tokens_of(library, run_step, dataset, name, key)
        section = corpus.lm_config(config, processes=1, **changes)
        checkpoint = run_step(library, library.step_input("train", section, features, key))
        assert isinstance(checkpoint, CheckpointRef), checkpoint
        return checkpoint

    return train


@pytest.fixture
def judged(library: Any, run_step: Any) -> Any:
    def evaluate(key: str, checkpoint: CheckpointRef) -> ReportRef | Failure:
        section = {
            "registered_model": library.pipeline, "metric": "perplexity", "metrics": [], "metric_function": None,
            "rules": [{"improvement": 0.005, "metric": None, "confidence": 0.95, "seed_noise": None}],
            "slices": [], "fairness": [], "price_per_gpu_hour": None,
        }  # fmt: skip
        return run_step(library, library.step_input("evaluate", section, checkpoint, key))

    return evaluate


def register(project: Any, run_step: Any, report: Any) -> Any:
    """To production."""
    key = report.place.split("/")[-1]
    section = {"registered_model": project.pipeline}
    version = run_step(project, project.step_input("register", section, report, key))
    assert isinstance(version, ModelVersionRef), version
    move = {"action": "promote", "why": "", "approver": None, "approval": False, "request": None}
    return run_step(project, project.step_input("promote", move, version, key))


def test_the_lower_perplexity_wins(library: Any, run_step: Any, trained: Any, judged: Any, tmp_path: Path) -> None:
    """Broken: the model that knows less would go to production."""
    first = judged("first", trained("first", epochs=1))
    assert isinstance(first, ReportRef), first
    assert isinstance(register(library, run_step, first), ModelVersionRef)

    checkpoint = trained("second", epochs=6)
    second = judged("second", checkpoint)
    assert second.passed, second.reason
    rows = Snapshot.open(library.store, checkpoint.parent.parent.parent).read_split("test")
    scored = open_model(library.store, checkpoint, tmp_path).score(rows)
    assert scored.labels.tolist() == [len(text.encode()) + 1 for text in rows["text"]]
    assert second.metrics["perplexity"] == pytest.approx(np.exp(scored.scores.sum() / scored.labels.sum()), rel=1e-5)
    assert second.metrics["champion.perplexity"] == pytest.approx(first.metrics["perplexity"], abs=1e-9)
    assert second.metrics["difference.perplexity.high"] < 0
    assert second.metrics["candidate.perplexity.low"] < second.metrics["perplexity"]
    html = library.store.read(second.artifacts["report"]).decode()
    assert f"{rows.height} held-out documents" in html
    assert "resamples of documents" in html
    assert isinstance(register(library, run_step, second), ModelVersionRef)

    third = judged("third", trained("third", epochs=2))
    assert not third.passed
    assert "not more than the 0.50% improvement" in third.reason


def test_other_tokens_are_no_contest(library: Any, run_step: Any, trained: Any, judged: Any) -> None:
    """Broken: a vocabulary of words would look worse than one of bytes, whatever the model knows."""
    register(library, run_step, judged("first", trained("first", epochs=1)))
    failure = judged("second", trained("second", "CHARACTERS", epochs=1))
    assert isinstance(failure, Failure)
    assert not failure.retryable
    assert f"the model in production, {library.pipeline} version 1 (champion), cannot be scored" in failure.message
    assert "its tokens are those of Bytes as it was then, and the candidate's are of Characters" in failure.message
