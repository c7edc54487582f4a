"""What an operator reads from the run of its DAG."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlops.contract.extensions import is_of_recipe
from mlops.contract.section import SpecError

if TYPE_CHECKING:
    from airflow.sdk import Context


def data_interval(context: Context) -> tuple[datetime, datetime]:
    """
    The data interval of the run, in UTC. A run without one works as of the last midnight in the DAG's timezone.
    """
    run = context["dag_run"]
    if run.data_interval_start is not None and run.data_interval_end is not None:
        return run.data_interval_start.astimezone(UTC), run.data_interval_end.astimezone(UTC)
    zone = context["dag"].timezone
    midnight = run.run_after.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    return (midnight - timedelta(days=1)).astimezone(UTC), midnight.astimezone(UTC)


def recipe_folder(import_path: str) -> str:
    """
    ``include.flight_ranking.model:build_model`` -> ``include/flight_ranking``: the folder whose code counts.

    The whole recipe, as :func:`mlops.code.recipe_folder` stores it, also where the module lies deeper in it: modules
    of a recipe import each other.
    """
    return str(Path(*import_path.partition(":")[0].split(".")[:-1][:2]))


def recipe_folders(names: Iterable[str]) -> list[str]:
    """
    Return the folders of those names that are import paths of recipes, each once.

    :param names: import paths, and names of metrics and the like, which have no folder
    """
    return sorted({recipe_folder(name) for name in names if is_of_recipe(name)})


def refuse_others(given: Mapping[str, Any], params: Iterable[str]) -> None:
    """:raises SpecError: naming the first parameter of a triggered run that the pipeline does not have"""
    known = sorted(params)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise SpecError(f"the run was triggered with {name!r}, which is no parameter of this pipeline: {meant}")
