"""
Score rows by the package of a model, with the library and the packages that it was registered with.

Where all of these are what this process has, it is done here; else in a process of its own.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from pydantic import ConfigDict

from mlops.contract.extensions import by_import_path
from mlops.contract.objectives import OBJECTIVES
from mlops.contract.section import Section, SpecError, check_section
from mlops.contract.step import PARENT_VARIABLE, BadConfigError, BadDataError
from mlops.metrics.predictions import Predictions
from mlops.objectives.objective import LoadedObjective
from mlops.predictor.predictor import open_predictor
from mlops.predictor.scored import Scored
from mlops.serving import scoring
from mlops.tracking.model_folder import LIBRARY, data_of

logger = logging.getLogger(__name__)
_REQUIREMENTS: Final = "requirements.txt"
_SERVERS_OWN: Final = frozenset({"mlflow"})
"""Packages that only a server needs."""
_IMPORTS: Final = Path(__file__).parents[2]
"""Folder that this library is imported from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredByPackage:
    """Rows that a package has scored, and what must be known of its model to compare it with another."""

    scored: Scored
    objective: str
    kind: str
    """Kind of prediction."""
    tokens: Mapping[str, Any] | None
    """``format``, ``tokenizer`` and ``fitted`` of the tokens of a language model."""


class _StoredSettings(Section):
    """Settings of an objective that is not here."""

    model_config = ConfigDict(extra="allow")


def score_by_package(folder: Path, rows: pl.DataFrame, scratch: Path, *, candidate: LoadedObjective) -> ScoredByPackage:
    """
    Score raw rows.

    :param folder: folder of the package
    :param candidate: objective of the model that it is compared with
    :param scratch: folder for files, empty or missing
    :raises BadDataError: where the model cannot score these rows
    :raises BadConfigError: where what it was registered with cannot be had here
    """
    data = data_of(folder)
    missing = _not_here(folder / _REQUIREMENTS)
    if not missing and _is_this_library(folder / LIBRARY):
        model = open_predictor(data)
        return _described(scoring.describe(model), model.score(rows))
    scratch.mkdir(exist_ok=True)
    paths = [folder / LIBRARY]
    if missing:
        logger.info("installing what the model was registered with: %s", ", ".join(missing))
        paths = [_installed(missing, folder / _REQUIREMENTS, scratch), *paths]
    return _scored_apart(data, rows, paths, scratch, candidate)


def _not_here(requirements: Path) -> list[str]:
    """Return those of the pinned requirements that this process does not have."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", requirements.read_text(), re.MULTILINE)
    return [f"{name}=={pin}" for name, pin in pins if name not in _SERVERS_OWN and _version(name) != pin]


def _version(name: str) -> str | None:
    try:
        # Without the build (+cpu, +cu130), which a requirement does not name.
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def _is_this_library(packed: Path) -> bool:
    """Tell whether all modules of a packed library are those of this one."""
    with zipfile.ZipFile(packed) as archive:
        return all(_has(_IMPORTS / name, archive.read(name)) for name in archive.namelist())


def _has(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _installed(wanted: list[str], constraints: Path, scratch: Path) -> Path:
    """
    Install packages into a folder of their own, beside those of this process.

    :raises BadConfigError: where that fails, with what uv says
    """
    folder = scratch / "packages"
    command = [
        *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable),
        *("--target", str(folder), "--constraint", str(constraints), *wanted),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadConfigError(
            f"it was registered with {', '.join(wanted)}, which cannot be installed here: {done.stderr.strip()}. Give "
            "this process an index that has them (UV_DEFAULT_INDEX), or an image with them"
        )
    return folder


def _scored_apart(
    data: Path, rows: pl.DataFrame, paths: list[Path], scratch: Path, candidate: LoadedObjective
) -> ScoredByPackage:
    """
    Score rows in another process.

    :param paths: what it imports from, before all that this one does
    """
    given, result = scratch / "rows.arrow", scratch / "result"
    result.mkdir()
    # Any release of Polars reads the oldest layout of strings.
    rows.write_ipc(given, compat_level=pl.CompatLevel.oldest())
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and not _is_a_library(path)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, paths), *others]),
        "PYTHONSAFEPATH": "1",
        PARENT_VARIABLE: str(os.getpid()),
    }
    command = [sys.executable, "-m", scoring.__name__, str(data), str(given), str(result)]
    logger.info("scoring in a process with the library that the model was registered with")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        logger.error("it ended with code %d:\n%s", done.returncode, done.stderr)
        said = (done.stderr.strip() or "nothing").splitlines()[-1]
        raise BadConfigError(f"the library that it was registered with ended with code {done.returncode}: {said}")
    document = json.loads((result / scoring.DOCUMENT).read_text())
    if document["format"] != scoring.FORMAT:
        raise BadConfigError(
            f"it was registered with another release, whose scores have format {document['format']}; this one reads "
            f"{scoring.FORMAT}"
        )
    if "error" in document:
        raise BadDataError(document["error"])
    with np.load(result / scoring.ARRAYS) as arrays:
        predictions = Predictions(
            labels=arrays["labels"],
            predicted=arrays["predicted"],
            offsets=arrays["offsets"],
            settings=_settings(document["objective"], document["settings"], candidate),
        )
        return _described(document, Scored(rows=arrays["rows"], predictions=predictions))


def _settings(name: str, values: Mapping[str, Any], candidate: LoadedObjective) -> Section:
    """Return the settings of an objective as this release has them, where it has that objective."""
    section: type[Section] = _StoredSettings
    if name == candidate.name:
        section = candidate.spec.section
    elif not by_import_path(name):
        with suppress(SpecError):  # of a package that is no longer installed
            section = OBJECTIVES.load(name).section
    return check_section(section, values, f"objective_settings of {name}")


def _is_a_library(path: str) -> bool:
    return Path(path, "mlops").is_dir()


def _described(document: Mapping[str, Any], scored: Scored) -> ScoredByPackage:
    return ScoredByPackage(
        scored=scored, objective=document["objective"], kind=document["kind"], tokens=document["tokens"]
    )
