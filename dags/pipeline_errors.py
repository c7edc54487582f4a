"""Shows what is wrong with the ``*.pipeline.yaml`` beside it among Airflow's import errors. It gives Airflow no DAG."""

from pathlib import Path

from mlops_provider.pipelines import check_pipelines

check_pipelines(Path(__file__).parent)
