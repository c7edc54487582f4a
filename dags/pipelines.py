"""One Airflow DAG for each ``*.pipeline.yaml`` beside this file."""

from pathlib import Path

from mlops_provider.factory import build_dags

globals().update(build_dags(Path(__file__).parent))
