"""A project folder with the code of an original: its commit, its uncommitted changes, its recipe."""

from __future__ import annotations

import io
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from mlops.checkout import MAX_PATCH_BYTES, check_out, holds
from mlops.code import bundle
from mlops.contract.extensions import recipe_of
from mlops.contract.refs import Ref
from mlops.reproduction.original import Original
from mlops.store import Store
from mlops.tracking.provenance import UNKNOWN

LIBRARY_ROOT = Path(__file__).parents[3]
"""Folder that holds ``training/`` of the release that is installed here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """The code and the folders with which steps are run again. Their environment is this process's."""

    home: Path
    """Project folder, which holds ``include/``."""
    library: Path
    """Folder that holds ``training/``: the project folder, if the project's repository has the library in it."""
    said: str
    """Sentence on which code this is."""

    def use_recipe(self, store: Store, ref: Ref, import_path: str) -> str | None:
        """
        Replace the recipe by the code that a step ran, as it was stored with its result.

        :return: a sentence on the replacement; None if the recipe was that code already
        """
        stored = store.read(ref.artifacts["code"])
        folder = self.home.joinpath(*recipe_of(import_path))
        if folder.is_dir() and bundle(folder) == stored:
            return None
        was_there = folder.is_dir()
        shutil.rmtree(folder, ignore_errors=True)
        with zipfile.ZipFile(io.BytesIO(stored)) as archive:
            archive.extractall(folder)
        name = folder.relative_to(self.home)
        if not was_there:
            return f"{name} is taken from the bundle that is stored at {ref.place}"
        return f"{name} was other code when it ran; the bundle that is stored at {ref.place} is used"


def parallelise(original: Original, home: Path, scratch: Path) -> Workplace:
    """
    Lay out the code of an original in a new folder.

    :param home: the project folder; only read
    :param scratch: folder for the new project folder
    """
    commit, files = original.commit, original.changed_files
    if commit == UNKNOWN or not holds(home, commit):
        project = scratch / "project"
        project.mkdir()
        why = (
            "it was trained outside of a git repository"
            if commit == UNKNOWN
            else f"commit {commit[:12]} is not in the repository of {home} (git fetch may bring it)"
        )
        return Workplace(
            home=project,
            library=LIBRARY_ROOT,
            said=f"{why}: the stored recipe is run by the release that is installed here",
        )
    said = f"commit {commit[:12]}"
    if original.patch:
        said += f", and the stored patch of {len(files)} files that were not committed: {', '.join(files[:5])}"
    elif files:
        said += (
            f", without its {len(files)} files that were not committed: they were more than "
            f"{MAX_PATCH_BYTES >> 20} MB, no patch was kept"
        )
    elif original.environment["git_commit"] != commit and not original.train_input.recipes:
        said += ", which had no changes in code"
    if sent := original.train_input.recipes:
        said += f", and what was sent with the run as {', '.join(sent)}"
    project = check_out(home, commit, scratch / "project", original.patch)
    has_library = (project / "training/mlops").is_dir()
    return Workplace(home=project, library=project if has_library else LIBRARY_ROOT, said=said)
