"""The provenance of a result: commit, lock files, machine, Airflow task."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import psutil

from mlops.checkout import git
from mlops.contract.code_files import code_digest
from mlops.contract.recipe_bundles import deployed
from mlops.contract.refs import CheckpointRef, DatasetRef, FeaturesRef, Ref, StudyRef
from mlops.contract.step import RunIdentity
from mlops.process import lock_file

COMMIT_VARIABLE: Final = "MLOPS_GIT_COMMIT"
"""Environment variable with the commit, for code that is deployed without its repository."""
UNKNOWN: Final = "unknown"
DIRTY: Final = "-dirty"
REPRODUCTION_TAG: Final = "mlops.reproduction_of"
"""Tag with the model version that a run only reproduces."""
LOCK_FILES: Final = ("requirements.txt", "training/requirements.txt", "training/requirements-validation.txt")
_PACKAGE = Path(__file__).parents[1]


def git_commit(folder: Path) -> str:
    """
    Return the commit of the checkout, with ``-dirty`` if files differ or are not in it; ``unknown`` outside of one.
    """
    project = deployed(folder)
    commit = os.environ.get(COMMIT_VARIABLE) or _commit_of(project)
    if project == folder or commit == UNKNOWN:
        return commit
    return f"{commit.removesuffix(DIRTY)}{DIRTY}"  # it has not the recipes that were sent


def _commit_of(project: Path) -> str:
    head = git(project, "rev-parse", "HEAD")
    if head is None:
        return UNKNOWN
    commit = head.decode().strip()
    return f"{commit}{DIRTY}" if git(project, "status", "--porcelain") else commit


def lock_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each lock file there is, under the project folder or beside this code."""
    found = {}
    for name in LOCK_FILES:
        here = lock_file(Path(name).name) if name.startswith("training/") else _PACKAGE.parents[1] / name
        path = next((path for path in (folder / name, here) if path.is_file()), None)
        if path is not None:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def hardware() -> dict[str, str]:
    return {
        "cpu": _cpu_model(),
        "cores": str(psutil.cpu_count()),
        "memory_bytes": str(psutil.virtual_memory().total),
    }


@cache
def packages() -> dict[str, str]:
    """Return the versions of installed packages, by name. Read once: it takes 0.2 s."""
    found = {dist.name.lower().replace("_", "-"): dist.version for dist in distributions()}
    return dict(sorted(found.items()))


def software(home: Path) -> dict[str, Any]:
    """
    Return the software that runs here, as far as it is known without torch: all that may decide a bit of a result.
    """
    return {
        "git_commit": git_commit(home),
        "library": code_digest([_PACKAGE]),
        "locks": lock_hashes(home),
        "python": platform.python_version(),
        "packages": dict(packages()),
    }


def run_tags(run: RunIdentity, home: Path) -> dict[str, str]:
    """Return tags that say who ran what where."""
    commit = git_commit(home)
    return {
        "mlops.pipeline": run.pipeline,
        "mlops.interval_start": run.interval_start,
        "mlops.interval_end": run.interval_end,
        "mlops.git_commit": commit,
        "mlflow.source.git.commit": commit.removesuffix(DIRTY),
        "mlops.airflow.dag_id": run.dag_id,
        "mlops.airflow.task_id": run.task_id,
        "mlops.airflow.run_id": run.run_id,
        "mlops.airflow.try_number": str(run.try_number),
        "mlops.python": platform.python_version(),
        **{f"mlops.lock.{name}": digest for name, digest in lock_hashes(home).items()},
        **{f"mlops.hardware.{name}": value for name, value in hardware().items()},
    }


def lineage_tags(ref: Ref) -> dict[str, str]:
    """Return tags that lead from a run or a model version back to the data; all can be searched."""
    dataset, features = ref.ancestor(DatasetRef), ref.ancestor(FeaturesRef)
    tags = {
        "mlops.dataset": dataset.name,
        "mlops.dataset_version": dataset.version,
        "mlops.dataset_place": dataset.place,
        "mlops.schema_hash": dataset.schema_hash,
        "mlops.data_interval_end": dataset.interval_end,
        "mlops.features_version": features.version,
        "mlops.features_place": features.place,
    }
    for made in ref.lineage():
        if isinstance(made, CheckpointRef):
            tags["mlops.checkpoint_place"] = made.place
            tags["mlops.seed"] = str(made.seed)
        elif isinstance(made, StudyRef):
            tags["mlops.study"] = made.name
            tags["mlops.study_run"] = made.tracking_run
    return tags


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
