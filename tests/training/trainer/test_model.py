from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError
from mlops.store import Store
from mlops.trainer import recipe
from mlops.trainer.model import build_model
from mlops.trainer.parallel import Ranks


class Keeps(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config


def plain(config: Any) -> nn.Module:
    return nn.Linear(config.num_features, config.hidden)


def by_default(config: Any) -> nn.Module:
    return nn.Linear(config.num_features, getattr(config, "hidden", 4))


def taken_apart(config: Any) -> nn.Module:
    return nn.Linear(config.num_features, dict(vars(config))["hidden"])


def unpacked(config: Any) -> nn.Module:
    def build(num_features: int, hidden: int, hiden: int) -> nn.Module:
        return nn.Linear(num_features, hidden + hiden)

    return build(**vars(config))


def copied(config: Any) -> nn.Module:
    own = copy.copy(config)
    return nn.Linear(own.num_features, own.hidden)


def read_later(config: Any) -> nn.Module:
    module = nn.Linear(config.num_features, config.hidden)
    module.later = lambda: config.hiden
    return module


@pytest.mark.parametrize(
    ("factory", "warns"),
    [(plain, 1), (by_default, 1), (taken_apart, 0), (unpacked, 0), (copied, 0), (read_later, 0), (Keeps, 0)],
)
def test_a_mistyped_argument_is_told_once(
    factory: Callable[[Any], nn.Module], warns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Broken: somebody would believe that a width makes no difference, for it was never looked at."""
    path = f"include.toy.model:{factory.__name__}"
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            build_model(factory, path, 3, {"hidden": 2, "hiden": 5}, tells_unread=True)
    message = f"train.model_args.hiden: {path} does not read it, so it changes nothing; did you mean hidden?"
    assert [record.message for record in caplog.records] == [message] * warns


def test_nothing_is_told_of_what_is_read_nor_where_a_model_is_only_opened(caplog: pytest.LogCaptureFixture) -> None:
    build_model(plain, "include.toy.model:first", 3, {"hidden": 2}, tells_unread=True)
    build_model(plain, "include.toy.model:second", 3, {"hidden": 2, "hiden": 5})
    assert not caplog.records


def test_a_model_may_keep_its_arguments() -> None:
    """Broken: a model that is copied or pickled would lose what it was built with."""
    model = build_model(Keeps, "include.toy.model:Keeps", 3, {"hidden": 2}, tells_unread=True)
    wanted = SimpleNamespace(num_features=3, hidden=2)
    for kept in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert kept.config == wanted
        assert vars(kept.config) == {"num_features": 3, "hidden": 2}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        pytest.param(lambda: torch.compile(nn.Linear(2, 1)), "wrapped: .*set train.compile: true", id="compiled"),
        pytest.param(
            lambda: nn.Sequential(nn.Linear(2, 2), torch.compile(nn.Linear(2, 1))), "wrapped at 1: ", id="compiled part"
        ),
        pytest.param(
            lambda: nn.Sequential(nn.LazyLinear(3)), r"0\.weight \(LazyLinear\) has no size .*give all sizes", id="lazy"
        ),
    ],
)
def test_a_model_that_could_not_be_trained_and_opened_again_is_refused(
    model: Callable[[], nn.Module], words: str, config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Broken: a training would take its days, and leave weights that nobody can open; or end in torch's own words."""
    monkeypatch.setattr(recipe, "load_attribute", lambda import_path, home: lambda config: model())
    made = recipe.Recipe(
        config=Train.model_validate(config(model_args={})), ranks=Ranks(), home=tmp_path,
        store=Store(f"file://{tmp_path}"), features=Mock(num_features=2), manifest={},
    )  # fmt: skip
    with pytest.raises(BadConfigError, match=f"include.toy.model:build_model returns a model .*{words}"):
        made.model()
