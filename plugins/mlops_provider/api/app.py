"""The app that the plugin mounts."""

from __future__ import annotations

from fastapi import FastAPI

from mlops_provider import __version__
from mlops_provider.api import (
    checkpoints,
    datasets,
    differences,
    events,
    metrics,
    models,
    progress,
    registration,
    releases,
    runs,
    studies,
    tonight,
    translations,
    verdicts,
)
from mlops_provider.api.problems import answer_problems

app = FastAPI(
    title="MLOps pipelines",
    version=__version__,
    description="Try pipelines out, follow what runs, see snapshots and models, and ask for releases. Who asks logs in "
    "as at Airflow's own API, by its token (`Authorization: Bearer`), and may do what Airflow lets them do with the "
    "pipeline's DAGs.",
    docs_url=None,
    redoc_url=None,
)
app.include_router(runs.router)
app.include_router(metrics.router)
app.include_router(checkpoints.router)
app.include_router(datasets.router)
app.include_router(differences.router)
app.include_router(events.router)
app.include_router(models.router)
app.include_router(progress.router)
app.include_router(registration.router)
app.include_router(releases.router)
app.include_router(studies.router)
app.include_router(tonight.router)
app.include_router(translations.router)
app.include_router(verdicts.router)
answer_problems(app)
