"""Airflow DAGs that take the present version of a model out of production and put the former one there. By hand."""

from pathlib import Path

from mlops_provider.factory import build_rollback_dags

globals().update(build_rollback_dags(Path(__file__)))
