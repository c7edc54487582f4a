"""The Airflow DAGs of each ``*.pipeline.yaml`` beside this file: its nights, and experiments with it."""

from pathlib import Path

from mlops_provider.pipelines import build_dags

globals().update(build_dags(Path(__file__).parent))
