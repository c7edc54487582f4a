"""``docs/fine-tuning.md``, done as it stands."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from other_packages import REPOSITORY

from mlops.contract.refs import CheckpointRef, FeaturesRef
from mlops.features.fitted import held_out
from mlops.predictor.packing import open_checkpoint
from mlops.serving.package import package, served_example
from mlops.trainer.checkpoint.weights import deserialise

PAGE = (REPOSITORY / "docs/fine-tuning.md").read_text().replace("taxi", "toy")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
PLAIN, ADAPTED = (yaml.safe_load(text)["train"] for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
PEFT = REPOSITORY / "tests/packages/peft.txt"


@pytest.fixture(scope="module")
def _peft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = tmp_path_factory.mktemp("peft")
    uv = REPOSITORY / ".venv/uv/bin/uv"
    # Without what they require: torch and the like are those of the runtime.
    subprocess.run([uv, "pip", "install", "--quiet", "--no-deps", "--target", site, "-r", PEFT], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield


def started_from(section: dict[str, Any], ref: CheckpointRef) -> dict[str, Any]:
    """The section as the operator hands it on, who has looked the model up."""
    return {
        **section,
        "initialise": {**section["initialise"], "found": {**asdict(ref.artifacts["weights"]), "version": "3"}},
    }


def weights(project: Any, ref: CheckpointRef) -> dict[str, torch.Tensor]:
    return deserialise(project.store.read(ref.artifacts["weights"]), torch.device("cpu"))


def test_some_layers_stay_and_others_learn_slowly(project: Any, toy_checkpoint: Any) -> None:
    first = toy_checkpoint(key="first")
    before, after = (
        weights(project, ref) for ref in (first, toy_checkpoint(key="tuned", **started_from(PLAIN, first)))
    )
    assert torch.equal(before["0.weight"], after["0.weight"])
    assert not torch.equal(before["3.weight"], after["3.weight"])


@pytest.mark.usefixtures("_peft")
def test_adapters_are_learnt_beside_weights_that_stay(project: Any, toy_checkpoint: Any, tmp_path: Path) -> None:
    first = toy_checkpoint(key="first")
    (project.home / "include/toy/adapted.py").write_text(CODE)
    settings = started_from(ADAPTED, first)
    tuned, again = (toy_checkpoint(key=key, **settings, epochs=2) for key in ("tuned", "again"))
    before, after = weights(project, first), weights(project, tuned)
    layers = ("0.weight", "0.bias", "3.weight", "3.bias")
    for name in layers:
        layer, _, kind = name.partition(".")
        assert torch.equal(before[name], after[f"{layer}.base_layer.{kind}"]), name
    adapters = [name for name in after if ".lora_" in name]
    assert len(adapters) == 4
    assert all(after[name].any() for name in adapters), "what begins as nothing has learnt"
    assert again.artifacts["weights"].sha256 == tuned.artifacts["weights"].sha256

    example = served_example(project.store, tuned, tmp_path)
    folder = package(project.store, tuned, example, tmp_path)
    assert re.search(r"^peft==", (folder / "requirements.txt").read_text(), re.MULTILINE)
    rows = held_out(project.store, tuned.ancestor(FeaturesRef))
    whole, adapted = (open_checkpoint(project.store, ref, tmp_path) for ref in (first, tuned))
    scores = [model.score(rows).predictions.predicted for model in (whole, adapted)]
    assert scores[0].shape == scores[1].shape
    assert (scores[0] != scores[1]).any()
