"""Weights that were trained elsewhere, as a run that judges them takes them: where they may lie, and what is read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import obstore

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.warm_start import JudgedWeights
from mlops_provider.committed import open_store
from mlops_provider.connections import store_environment
from mlops_provider.deployment import Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.operators.adopted import WEIGHTS
from mlops_provider.operators.runs import Asked
from mlops_provider.patience import store_errors
from mlops_provider.team_spec import below

_PINNED: Final = "pinned"
"""In the task's state: the digest of the file that its first try has found."""
_FILE: Final = re.compile(r"(s3://[^/]+/|file:///|(?!\w+:/))[^*?\[]*[^*?\[/]")
_CHUNK_BYTES: Final = 1 << 20


def checked(given: Mapping[str, Any], deployment: Deployment, named: str = f"{WEIGHTS}.path") -> JudgedWeights:
    """
    :param given: the run's parameter
    :param named: where the path was given, for messages
    :raises SpecError: where it is none, names no file, or one that experiments may not read
    """
    weights = check_section(JudgedWeights, given, WEIGHTS)
    readable = deployment.experiment_sources
    if not below(weights.path, readable):
        where = f"what lies below {', '.join(readable)}" if readable else "no files beside those of the pipeline"
        raise SpecError(
            f"{named} {weights.path}: experiments may read {where}; whoever runs the deployment says what by [mlops] "
            "experiment_sources, of a team in the teams' file"
        )
    if not _FILE.fullmatch(weights.path):
        raise SpecError(f"{named} {weights.path}: name one file, as s3://bucket/key or by its path, without patterns")
    return weights


def settings(asked: Asked, deployment: Deployment) -> dict[str, Any]:
    """
    Return the settings of the training that takes the weights; what the file was at the task's first try, it must be
    later.

    :param asked: by a run that judges some
    :raises SpecError: as :func:`checked`, and where the run is of other data than was asked for
    :raises StepFailedError: where there is no such file
    :raises StepRetryableError: where it cannot be read now
    """
    assert asked.weights is not None, "it judges some"
    weights, state, (_, end) = checked(asked.weights, deployment), asked.state, asked.interval
    if weights.as_of is not None and weights.as_of != end:
        raise SpecError(
            f"{WEIGHTS}.as_of {weights.as_of.isoformat()}: the data of this run end at {end.isoformat()}; leave it out"
        )
    noted = None if state is None else state.get(_PINNED)
    sha256 = weights.sha256 or (noted if isinstance(noted, str) else None) or _digest(weights.path, deployment)
    if state is not None:
        state.set(_PINNED, sha256)
    return weights.start(sha256)


def _digest(path: str, deployment: Deployment) -> str:
    found = hashlib.sha256()
    with store_errors(path, "the weights cannot be read"):
        try:
            for chunk in _chunks(path, deployment):
                found.update(chunk)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise StepFailedError(f"{WEIGHTS}.path {path}: there is no such file") from error
    return found.hexdigest()


def _chunks(path: str, deployment: Deployment) -> Iterator[bytes]:
    if not path.startswith("s3://"):
        with (deployment.home / path.removeprefix("file://")).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
        return
    folder, _, name = path.rpartition("/")
    store = open_store(folder, store_environment(deployment))
    for part in obstore.get(store, name).stream(_CHUNK_BYTES):
        yield bytes(part)
