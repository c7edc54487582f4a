"""How an experiment is called: in the store, in MLflow and in Airflow."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from mlops.contract.section import NAME_PATTERN
from mlops.contract.step import EXPERIMENTS

_SUFFIX: Final = ".experiments"
"""Of the DAG's id, after the pipeline's name, which has no dot."""
ASKED_AT: Final = "asked_at"
RECIPES: Final = "recipes"
REQUEST: Final = "request"
STEPS: Final = "steps_sha256"
NOTED: Final[Mapping[str, str]] = {
    ASKED_AT: "When it was asked for, where it was put before others",
    REQUEST: "Digest of a request in other words",
    STEPS: "Digest of the pipeline's steps with which a whole pipeline was compared",
}
"""Parameters of a run of Airflow that nobody asks for by their names, with what they are."""


def bundle_key(place: str, sha256: str) -> str:
    """
    Return the key, in the store, of a recipe that was sent with an experiment.

    :param place: of the experiment
    :param sha256: of the zip
    """
    return f"{place}/{RECIPES}/{sha256}.zip"


def person_of(login: str | None) -> str:
    """
    A person, as a name in the store. Where that is not the login itself it has a digest, or many would have one name,
    and would find and remove each other's results.

    :param login: as the machine or Airflow knows them; none where Airflow lets everybody in
    """
    login = login or "airflow"
    name = re.sub(r"[^a-z0-9_]", "_", login.lower())
    if not re.fullmatch(NAME_PATTERN, name):
        name = f"user_{name}"
    return name if name == login else name + hashlib.sha256(login.encode()).hexdigest()[:8]


def experiment_name(person: str, pipeline: str, name: str | None) -> str:
    """
    ``USER/PIPELINE``, or ``USER/PIPELINE.NAME``: with the pipeline's name, for two of them may have an ingest alike.

    :param name: that keeps the results apart from those of other names
    """
    return f"{person}/{pipeline}" + (f".{name}" if name else "")


def place_of(user: str | None, pipeline: str, asked: Mapping[str, Any]) -> str:
    """
    Where a run of Airflow puts what it makes, in the store; its name in MLflow, too.

    :param asked: the run's parameters, as it was triggered with them
    """
    return f"{EXPERIMENTS}/{experiment_name(person_of(user), pipeline, asked.get('name'))}"


def dag_id_of(pipeline: str) -> str:
    """The DAG in which Airflow tries a pipeline out."""
    return f"{pipeline}{_SUFFIX}"


def tried_out(dag_id: str) -> str | None:
    """The pipeline that a DAG tries out; None where it is another kind of DAG."""
    return dag_id.removesuffix(_SUFFIX) if dag_id.endswith(_SUFFIX) else None
