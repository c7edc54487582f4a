"""Recipes that somebody has sent with a run: laid over the project in each process, and kept with the results."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mlops.contract.recipe_bundles import deployed, lay_over
from mlops.contract.refs import Artifact, digest_of
from mlops.contract.step import HOME_VARIABLE, BadDataError, StepInput, scratch_parent
from mlops.process import ProcessSettings
from mlops.store import Store

_PROJECT: Final = "project-"
_PATH_VARIABLE: Final = "PYTHONPATH"


def with_sent_recipes(document: StepInput, deployment: ProcessSettings) -> ProcessSettings:
    """
    Have this process, and those that it starts, work in a project that has the recipes which the run was sent with.

    :return: the settings with that project; as they are where none was sent
    :raises StepError: where one is gone, or damaged
    """
    if not document.recipes:
        return deployment
    name = f"{_PROJECT}{digest_of({each: artifact.sha256 for each, artifact in document.recipes.items()})[:16]}"
    home = deployment.home
    if home.name != name:  # unless the process that has started this one has done it
        store = Store(deployment.store)
        recipes = {each: store.read(artifact) for each, artifact in document.recipes.items()}
        try:
            home = lay_over(home, recipes, Path(tempfile.mkdtemp(prefix="sent-", dir=scratch_parent()), name))
        except ValueError as error:
            raise BadDataError(f"the code that was sent with the run cannot be used: {error}") from error
    _work_in(home)
    return replace(deployment, home=home)


def _work_in(home: Path) -> None:
    """Let nothing be imported, or read by a relative path, from the project as it is deployed."""
    before = os.path.realpath(deployed(home))
    sys.path[:] = [each for each in sys.path if os.path.realpath(each) != before]
    paths = filter(None, os.environ.get(_PATH_VARIABLE, "").split(os.pathsep))
    others = [each for each in paths if os.path.realpath(each) not in (before, os.path.realpath(home))]
    os.environ[_PATH_VARIABLE] = os.pathsep.join([str(home), *others])
    os.environ[HOME_VARIABLE] = str(home)
    os.chdir(home)


def artifact_name(recipe: str) -> str:
    """Return what a sent recipe is called among the artifacts of a step."""
    return f"recipe_{recipe.rpartition('/')[2]}"


def kept_with(document: StepInput) -> StepInput:
    """Return a step's input as it is kept: it names copies of the sent recipes at the step's own place."""
    return replace(
        document,
        recipes={
            recipe: replace(artifact, key=f"{document.place}/{artifact_name(recipe)}.{artifact.sha256[:12]}.zip")
            for recipe, artifact in document.recipes.items()
        },
    )


def keep(store: Store, document: StepInput, sent: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """
    Copy sent recipes to the place of a step whose result they belong to.

    :param sent: where the bytes are
    :return: the copies, by their names among the step's artifacts
    """
    kept = {artifact_name(recipe): artifact for recipe, artifact in kept_with(document).recipes.items()}
    for recipe, artifact in document.recipes.items():
        store.put(kept[artifact_name(recipe)].key, store.read(sent.get(recipe, artifact)))
    return kept
