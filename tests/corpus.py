"""A small library of Python files, and a project that learns to write like it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlops.contract.refs import CheckpointRef, ModelVersionRef, ValidationRef

FEATURES = """
import numpy as np

from mlops import TokenSet


class Characters:
    # A vocabulary that is fitted: the characters of the training split; others are unknown, number 0.
    def fit(self, texts):
        return {"characters": "".join(sorted({character for text in texts for character in text}))}

    def vocab_size(self, state):
        return len(state["characters"]) + 1

    def encode(self, text, state):
        return np.array([state["characters"].find(character) + 1 for character in text], np.int64)

    def decode(self, tokens, state):
        return "".join("?" if token == 0 else state["characters"][token - 1] for token in tokens)


FEATURES = TokenSet(text="text", context=16)
LONG = TokenSet(text="text", context=100_000)
CHARACTERS = TokenSet(text="text", context=16, tokenizer=Characters())
TYPO = TokenSet(text="txt", context=16)
INSTANT = TokenSet(text="as_of", context=16)
"""

MODEL = """
import torch
from mlops import MetricSpec, over_drawn_rows
from torch import nn


class Bigram(nn.Module):
    def __init__(self, vocab_size, width):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab_size, width), nn.Linear(width, vocab_size)

    def forward(self, tokens):
        return self.head(torch.tanh(self.embedding(tokens)))


def build_model(config):
    assert config.context == 16
    return Bigram(config.vocab_size, config.width)


def build_scorer(config):
    return nn.Sequential(nn.Embedding(config.vocab_size, 4), nn.Flatten(), nn.Linear(4 * config.context, 1))


def difficulty(batch):
    # Of a text: how far its tokens lie from the first ones of the alphabet.
    return batch.features.double().mean(1).round()


def unknown_difficulty(batch):
    return difficulty(batch) * float("nan")


def difficulty_of_tokens(batch):
    return batch.features


def slow_loss(model, batch):
    import time

    from mlops.objectives.language_model import language_model_loss

    time.sleep(0.02)
    return language_model_loss(model, batch)


def token_by_token(model, batch):
    from mlops.objectives.language_model import token_losses

    return token_losses(model(batch.features), batch.labels)


TOKENS = MetricSpec(
    measures=["token_loss"],
    higher_is_better=True,
    title="tokens",
    weighted=lambda predictions, _: over_drawn_rows(lambda labels, scores, _: labels.sum(), predictions),
)
"""

SCHEMA = """
feature { name: "path" type: BYTES presence { min_fraction: 1 min_count: 1 } }
feature { name: "text" type: BYTES presence { min_fraction: 1 min_count: 1 } }
feature { name: "as_of" type: INT time_domain { integer_format: UNIX_SECONDS } presence { min_fraction: 1 } }
"""

INGEST: Mapping[str, Any] = {
    "sources": {
        "library": {
            "kind": "text", "path": "data/library/**/*.py", "sha256": None,
            "event_time": "as_of", "created_time": None, "key": [], "history_days": None, "types": {},
        }
    },
    "transform": None, "event_time": "as_of", "window": 1,
    "split": {"key": "path", "validation": 0.2, "test": 0.2}, "engine": "polars",
}  # fmt: skip
VALIDATE: Mapping[str, Any] = {
    "schema_path": "include/lm/schema.pbtxt", "volume": None, "drift": None, "unique": [["path"]],
    "max_age_hours": None, "slices": [], "slice_tolerance": 0.25, "serving_log": None,
}  # fmt: skip


def write_library(home: Path, num_files: int = 40) -> None:
    """Files of a few hundred bytes, in which few things are said again and again."""
    chance = random.Random(3)
    names = ["left", "right", "count", "total"]
    for number in range(num_files):
        lines = [
            f"{chance.choice(names)} = {chance.choice(names)} + {chance.randrange(10)}\n"
            for _ in range(chance.randrange(5, 40))
        ]
        path = home / f"data/library/p{number % 3}/m{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def f{number}():\n    " + "    ".join(lines))


def write_recipe(home: Path) -> None:
    recipe = home / "include/lm"
    recipe.mkdir(parents=True)
    for name, text in {"features.py": FEATURES, "model.py": MODEL, "schema.pbtxt": SCHEMA}.items():
        (recipe / name).write_text(text)


def ingested(project: Any, run_step: Any, **changes: Any) -> Any:
    """The DatasetRef, or the failure."""
    return run_step(project, project.step_input("ingest", {**INGEST, **changes}, None))


def tokens_of(project: Any, run_step: Any, dataset: Any, name: str = "FEATURES", run_key: str = "key") -> Any:
    """The FeaturesRef, or the failure."""
    validation = ValidationRef(
        place=f"validate/lm/{dataset.place}", schema_sha256="3" * 64, num_checks=1, parent=dataset
    )
    settings = {"feature_set": f"include.lm.features:{name}", "online": None}
    return run_step(project, project.step_input("features", settings, validation, run_key))


def lm_config(config: Any, **changes: Any) -> Any:
    """A ``train`` section."""
    return config(
        **{
            "model": "include.lm.model:build_model", "model_args": {"width": 8}, "objective": "language_model",
            "metric": "perplexity", **changes,
        }
    )  # fmt: skip


def write_project(home: Path, num_files: int = 40) -> None:
    write_library(home, num_files)
    write_recipe(home)


def trained(
    project: Any,
    run_step: Any,
    config: Any,
    key: str,
    name: str = "FEATURES",
    *,
    transform: str | None = None,
    **changes: Any,
) -> Any:
    """A checkpoint of one process, from the library on."""
    features = tokens_of(project, run_step, ingested(project, run_step, transform=transform), name, key)
    section = lm_config(config, processes=1, **changes)
    checkpoint = run_step(project, project.step_input("train", section, features, key))
    assert isinstance(checkpoint, CheckpointRef), checkpoint
    return checkpoint


def judged(project: Any, run_step: Any, key: str, checkpoint: Any, **changes: Any) -> Any:
    """The ReportRef, or the failure."""
    section = {
        "registered_model": project.pipeline, "metric": "perplexity", "metrics": [],
        "rules": [
            {"improvement": 0.005, "metric": None, "confidence": 0.95, "min_samples": 2, "seed_noise": None}
        ],
        "slices": [], "fairness": [], "price_per_gpu_hour": None, **changes,
    }  # fmt: skip
    return run_step(project, project.step_input("evaluate", section, checkpoint, key))


def promoted(project: Any, run_step: Any, report: Any) -> Any:
    """The version, registered and in production."""
    key = report.place.split("/")[-1]
    version = run_step(project, project.step_input("register", {"registered_model": project.pipeline}, report, key))
    assert isinstance(version, ModelVersionRef), version
    move = {"action": "promote", "why": "", "decisions": [], "approvals": 0, "keys": [], "request": None}
    return run_step(project, project.step_input("promote", move, version, key))
