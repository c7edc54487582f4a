"""
Ask Airflow for experiments, from a program or a notebook::

    from mlops.client import Client

    client = Client("http://127.0.0.1:8080", user="ana", password="...")
    run = client.submit("flight_ranking", as_of="2013-02-09", settings={"tune": None, "train.epochs": 3})
    client.show(run)  # in a notebook: its curves, as they grow
    client.wait(run).result

:class:`AsyncClient` has the same methods, to be awaited. Both speak to the API that Airflow's API server has below
``/mlops/api/v1``, and nothing else.
"""

from __future__ import annotations

from mlops.client.answers import (
    Checkpoints,
    Curves,
    Datasets,
    Events,
    Models,
    ModelVersion,
    ModelVersions,
    Nights,
    Progress,
    Run,
    Runs,
    RunSummary,
    Snapshot,
    SnapshotDifference,
    Snapshots,
    StageAnswer,
    StartedRun,
    Study,
    Tonight,
    Trials,
    Verdict,
    VersionDifference,
)
from mlops.client.awaited import AsyncClient
from mlops.client.blocking import Client
from mlops.client.errors import ClientError, RefusedError, UnreachableError
from mlops.contract.rest import (
    Checkpoint,
    Curve,
    Dataset,
    EndedStep,
    Event,
    Model,
    ModelVersionSummary,
    Night,
    PipelineTonight,
    SnapshotSummary,
    Task,
    Trial,
    Value,
)

__all__ = [
    "AsyncClient",
    "Checkpoint",
    "Checkpoints",
    "Client",
    "ClientError",
    "Curve",
    "Curves",
    "Dataset",
    "Datasets",
    "EndedStep",
    "Event",
    "Events",
    "Model",
    "ModelVersion",
    "ModelVersionSummary",
    "ModelVersions",
    "Models",
    "Night",
    "Nights",
    "PipelineTonight",
    "Progress",
    "RefusedError",
    "Run",
    "RunSummary",
    "Runs",
    "Snapshot",
    "SnapshotDifference",
    "SnapshotSummary",
    "Snapshots",
    "StageAnswer",
    "StartedRun",
    "Study",
    "Task",
    "Tonight",
    "Trial",
    "Trials",
    "UnreachableError",
    "Value",
    "Verdict",
    "VersionDifference",
]
