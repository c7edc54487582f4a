"""A step with a recipe that was sent with its run: its code counts, in each process, and stays with the result."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_model
from project import REPOSITORY

from mlops.contract.code_files import code_digest
from mlops.contract.recipe_bundles import pack
from mlops.contract.refs import INPUT, CheckpointRef, FeaturesRef
from mlops.contract.step import Failure, StepInput, python_path
from mlops.steps.renewal import put_back
from mlops.steps.sent_recipes import kept_with

SENT = """
import importlib.util
import os

from .layers import scorer


def build_model(config):
    assert importlib.util.find_spec("include.toy.only_deployed") is None, "it was removed"
    print(f"rank {os.environ.get('RANK', 0)} trains the model that was sent")
    return scorer(config.num_features)
"""
LAYERS = """
from torch import nn


def scorer(num_features):
    return nn.Sequential(nn.Linear(num_features, 3), nn.ReLU(), nn.Linear(3, 1), nn.Flatten(-2))
"""


@pytest.fixture
def mine(project: Any, tmp_path: Path) -> Path:
    """The recipe as somebody has it, beside the one that is deployed from a commit."""
    deployed = project.home / "include/toy"
    (deployed / "only_deployed.py").touch()
    (project.home / ".gitignore").write_text("*\n!include/\n!include/**\n__pycache__\n")
    author = ["-c", "user.name=x", "-c", "user.email=x@y.z"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "As deployed"]):
        subprocess.run(["git", *command], cwd=project.home, check=True)
    folder = tmp_path / "mine/include/toy"
    shutil.copytree(deployed, folder, ignore=shutil.ignore_patterns("only_deployed.py", "__pycache__"))
    (folder / "model.py").write_text(SENT)
    (folder / "layers.py").write_text(LAYERS)
    return folder


def sent(project: Any, document: StepInput, recipes: Mapping[str, bytes]) -> StepInput:
    """The input of an experiment's step, as the operator makes it."""
    place = "experiments/ana/toy"
    code = replace(document.run, experiment="ana/toy")
    kept = {name: project.store.put_artifact(f"{place}/recipes", "x.zip", data) for name, data in recipes.items()}
    return replace(document, run=code, recipes=kept, code_paths=("include/toy",))


@pytest.mark.gang
@pytest.mark.parametrize("processes", [1, 2])
def test_each_rank_trains_the_model_that_was_sent(
    project: Any, toy_features: FeaturesRef, config: Any, mine: Path, processes: int
) -> None:
    """Broken: a training would be of code that nobody has asked for, and be recorded as of that which was sent."""
    data = pack(mine)
    document = project.step_input("train", config(processes=processes, model_args={}), toy_features, "sent")
    document = replace(sent(project, document, {"include/toy": data}), code=code_digest([mine]))
    before = code_digest([project.home / "include"])
    paths = {"PYTHONPATH": f"{project.home}:{python_path(REPOSITORY)}"}  # as the launcher's, with the deployed recipes
    started = project.start(document, processes=processes, name="sent", environment=paths)
    ref = started.result()
    assert isinstance(ref, CheckpointRef), started.log
    for rank in range(processes):
        assert f"rank {rank} trains the model that was sent" in started.log
    assert code_digest([project.home / "include"]) == before, "the deployed recipe stays"
    # All that it was trained with is at its place, and the commit alone is not said to be.
    store = project.store
    assert store.read(ref.artifacts["code"]) == store.read(ref.artifacts["recipe_toy"]) == data
    kept = StepInput.load(store.read(ref.artifacts[INPUT]).decode())
    assert kept.recipes == {"include/toy": ref.artifacts["recipe_toy"]}
    assert kept.recipes["include/toy"].key.startswith(f"{ref.place}/")
    environment = json.loads(store.read(ref.artifacts["environment"]))
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project.home, check=True, capture_output=True, text=True)
    assert environment["git_commit"] == f"{head.stdout.strip()}-dirty"
    assert environment["changed_files"] == []
    # It can be made again by what is kept alone.
    store.delete([each.key for each in document.recipes.values()])
    assert project.start(document, processes=processes, name="found").result() == ref
    store.delete([f"{ref.place}/ref.json"])
    refused = project.start(document, processes=processes, name="refused").result()
    assert isinstance(refused, Failure)
    assert "recipes/x." in refused.message
    remade = project.start(kept, processes=processes, name="remade")
    made = remade.result()
    assert isinstance(made, CheckpointRef), remade.log
    assert made.artifacts["weights"].sha256 == ref.artifacts["weights"].sha256


def test_what_is_gone_is_put_back_by_what_is_sent_again(project: Any, mine: Path, run_step: Any) -> None:
    """Broken: a lost copy of the code would have the work done again each time, for nothing."""
    data = pack(mine)
    (project.home / "include/toy/features.py").write_text(toy_model.features(grouped=True))
    rows = toy_model.snapshot(project.store, project.home, toy_model.rows())
    section = {"feature_set": "include.toy.features:FEATURES", "online": None}
    document = sent(project, project.step_input("features", section, rows), {"include/toy": data})
    (mine / "features.py").write_text(toy_model.features(grouped=True))
    document = sent(project, document, {"include/toy": pack(mine)})
    ref = project.start(document, name="first").result()
    assert isinstance(ref, FeaturesRef)
    store = project.store
    lost = [ref.artifacts["recipe_toy"], ref.artifacts[INPUT], ref.artifacts["manifest"]]
    before = [store.read(each) for each in lost]
    store.delete([each.key for each in lost])
    cleared = replace(document, run=replace(document.run, try_number=3))
    again = project.start(cleared, name="again")
    assert again.result() == ref, again.log
    assert [store.read(each) for each in lost] == before
    # A step that is not done again: what was sent is its copy.
    store.delete([lost[0].key])
    assert put_back(store, ref, kept_with(document), "", document.recipes) == ref
    assert store.read(lost[0]) == before[0]


READS = """
import subprocess
import sys


def build_model(config):
    from torch import nn

    said = subprocess.run([sys.executable, "-m", "include.toy.tool"], capture_output=True, text=True, check=True)
    with open("include/toy/words.csv") as words:
        print(f"{said.stdout.strip()} {words.read().strip()}")
    return nn.Sequential(nn.Linear(config.num_features, 1), nn.Flatten(-2))
"""


@pytest.mark.gang
def test_paths_and_programs_of_a_recipe_are_those_that_were_sent(
    project: Any, toy_features: FeaturesRef, config: Any, mine: Path
) -> None:
    """Broken: the run key would name one code, and another one would run."""
    for folder, said in ((project.home / "include/toy", "deployed"), (mine, "sent")):
        (folder / "tool.py").write_text(f"print('the tool that was {said},')\n")
        (folder / "words.csv").write_text(f"the words that were {said}\n")
    (mine / "model.py").write_text(READS)
    document = project.step_input("train", config(processes=2, model_args={}), toy_features, "paths")
    started = project.start(sent(project, document, {"include/toy": pack(mine)}), processes=2, name="paths")
    assert isinstance(started.result(), CheckpointRef), started.log
    assert started.log.count("the tool that was sent, the words that were sent") >= 2
    assert "deployed" not in started.log


@pytest.mark.gang
def test_other_code_than_the_run_key_names_is_refused(
    project: Any, toy_features: FeaturesRef, config: Any, mine: Path
) -> None:
    document = project.step_input("train", config(processes=1, model_args={}), toy_features, "other")
    document = sent(project, document, {"include/toy": pack(mine)})
    document = replace(document, code=code_digest([project.home / "include/toy"]))
    failure = project.start(document, name="other").result()
    assert isinstance(failure, Failure)
    assert "include/toy is not what the run was started with" in failure.message


def test_what_is_no_recipe_fails_for_good(project: Any, toy_features: FeaturesRef, config: Any, mine: Path) -> None:
    document = project.step_input("train", config(processes=1), toy_features, "none")
    failure = project.start(sent(project, document, {"include/toy": b"no zip"}), name="none").result()
    assert isinstance(failure, Failure)
    assert failure.message.startswith("the code that was sent with the run cannot be used: it is no zip")
    assert not failure.retryable
