"""The DAGs of a folder with pipelines, for a DAG file there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context

from mlops.contract.section import SpecError
from mlops_provider.experiments.dags import build_experiments_dag
from mlops_provider.experiments.names import tried_out
from mlops_provider.factory import build_dag
from mlops_provider.spec_file import SUFFIX, load_pipeline


def build_dags(folder: Path) -> dict[str, DAG]:
    """
    Two DAGs for each sound ``*.pipeline.yaml`` of a folder, by id: ``NAME`` runs the pipeline, and
    ``NAME.experiments`` tries it out with other settings. See :func:`check_pipelines` for files with mistakes.

    While a task runs, only its own DAG is made.

    :raises SpecError: in a task's process, where its own pipeline has been broken meanwhile
    """
    wanted = get_parsing_context().dag_id or ""
    name = tried_out(wanted) or wanted
    if name and (own := folder / f"{name}{SUFFIX}").exists():
        pipeline = load_pipeline(own)
        return {wanted: build_dag(pipeline) if wanted == name else build_experiments_dag(pipeline, own)}
    dags: dict[str, DAG] = {}
    for path in sorted(folder.glob("*" + SUFFIX)):
        with suppress(SpecError):  # reported by check_pipelines
            pipeline = load_pipeline(path)
            both = build_dag(pipeline), build_experiments_dag(pipeline, path)
            dags |= {dag.dag_id: dag for dag in both}
    return dags


def check_pipelines(folder: Path) -> None:
    """
    Report every mistake in every ``*.pipeline.yaml`` of a folder.

    From a DAG file of its own: Airflow takes all DAGs of a file with an import error out of service.

    :raises SpecError: one ``file:line:column: message`` line for each mistake
    """
    problems = []
    for path in sorted(folder.glob("*" + SUFFIX)):
        try:
            load_pipeline(path)
        except SpecError as error:
            problems.append(str(error))
    if problems:
        raise SpecError("\n".join(problems))
