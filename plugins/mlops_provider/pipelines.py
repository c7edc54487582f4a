"""The DAGs of a folder with pipelines, for a DAG file there."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context

from mlops.contract.section import SpecError
from mlops_provider.experiments.dags import build_experiments_dag
from mlops_provider.experiments.names import tried_out
from mlops_provider.factory import build_dag
from mlops_provider.spec_file import SUFFIX, load_pipeline, pipeline_files, why_broken


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
    for path in pipeline_files(folder, below=False):
        # Whatever is wrong with one file, the other pipelines run: check_pipelines reports it.
        with suppress(Exception):
            dags |= {dag.dag_id: dag for dag in _both(path)}
    return dags


def check_pipelines(folder: Path) -> None:
    """
    Report every mistake in every ``*.pipeline.yaml`` of a folder, and what else keeps DAGs from being made of it.

    From a DAG file of its own: Airflow takes all DAGs of a file with an import error out of service.

    :raises SpecError: one ``file:line:column: message`` line for each mistake
    """
    problems: list[str] = []
    cause: Exception | None = None
    for path in pipeline_files(folder, below=False):
        try:
            _both(path)
        except Exception as error:  # raised below, with those of the other files
            problems.append(why_broken(path, error))
            # Of what nobody foresaw the traceback is of use; of the others it would repeat what is said.
            if not isinstance(error, SpecError):
                cause = error
    if problems:
        raise SpecError("\n".join(problems)) from cause


def _both(path: Path) -> tuple[DAG, DAG]:
    """Make the two DAGs of a pipeline's file."""
    pipeline = load_pipeline(path)
    return build_dag(pipeline), build_experiments_dag(pipeline, path)
