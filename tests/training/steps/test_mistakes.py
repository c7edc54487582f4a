"""Mistakes in a recipe's code: said with their line, and made once where another try cannot be better."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlops.contract.refs import FeaturesRef
from mlops.contract.step import Failure
from mlops.steps.mistakes import failure_of

MISTAKEN = """
import torch
from torch import nn

class Narrow(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.linear = nn.Linear(settings.num_features - 1, 1)

    def forward(self, rows):
        return self.linear(rows).squeeze(-1)

def build_narrow(settings):
    return Narrow(settings)

def build_unnamed(settings):
    return {}["hidden"]

def loss(model, batch):
    return {"score": model(batch.features)}["scores"]
"""


@pytest.fixture
def recipe(project: Any) -> Path:
    path: Path = project.home / "include" / "toy" / "mistaken.py"
    path.write_text(MISTAKEN)
    return path


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        (
            {"model": "include.toy.mistaken:build_narrow"},
            [
                "RuntimeError: mat1 and mat2",
                "(include/toy/mistaken.py:11, in forward)",
                "the same came after a restart",
            ],
        ),
        ({"model": "include.toy.mistaken:build_unnamed"}, ["failed on num_features=4", "KeyError: 'hidden'"]),
        ({"loss": "include.toy.mistaken:loss"}, ["KeyError: 'scores' (include/toy/mistaken.py:20, in loss)"]),
    ],
    ids=["shapes", "factory", "loss"],
)
@pytest.mark.gang
def test_a_mistake_in_a_training_is_not_tried_again(
    project: Any, recipe: Path, toy_features: FeaturesRef, config: Any, changes: dict[str, Any], messages: list[str]
) -> None:
    """Broken: whoever tries a model of their own would wait for nine starts, and look for the line in a log."""
    document = project.step_input("train", {**config(), **changes}, toy_features)
    started = project.start(document, processes=2, options=["--max-restarts", "3"])
    failure = started.result()
    assert isinstance(failure, Failure), started.log
    for message in messages:
        assert message in failure.message
    assert not failure.retryable


def raised(statement: str, path: Path) -> Exception:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"def rows():\n    {statement}\n")
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever the statement raises
        names["rows"]()
    return caught.value


@pytest.mark.parametrize(
    ("statement", "step", "place", "retryable"),
    [
        ("return {}['delay']", "features", "include/toy/own.py", False),
        ("return {}['delay']", "ingest", "include/toy/own.py", True),
        ("return {}['delay']", "features", "elsewhere/own.py", True),
        ("return open('/no/such/file')", "features", "include/toy/own.py", True),
        ("raise MemoryError", "features", "include/toy/own.py", True),
        ("raise RuntimeError('the driver went away')", "train", "include/toy/own.py", True),
        ("import no_such_package", "features", "include/toy/own.py", False),
        ("return {}['delay']", "evaluate", "_bundle_1234/own.py", False),
        ("return {}['delay']", "script", "include/toy/own.py", True),
    ],
    ids=["committed input", "outside data", "no recipe", "file", "memory", "torch's", "package", "stored", "script"],
)
def test_only_what_the_next_try_would_meet_again_fails_for_good(
    tmp_path: Path, statement: str, step: str, place: str, retryable: bool
) -> None:
    """Broken: a night would be lost to a file server that was away for a minute, or a typo be tried three times."""
    script = {"program": "include/toy/own.py"} if step == "script" else {}
    document: Any = SimpleNamespace(step="train" if step == "script" else step, config=script)
    failure = failure_of(raised(statement, tmp_path / place), document, tmp_path)
    assert failure.retryable is retryable
    told = place.removeprefix("_bundle_1234/")
    assert (f"({told}:2, in rows)" in failure.message) is (place != "elsewhere/own.py")
    assert failure.message.startswith(f"{failure.type}: ")
