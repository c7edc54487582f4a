"""What the ingest operator takes for its code, and so for another night's work."""

from __future__ import annotations

from datetime import datetime

import pytest
from airflow.sdk import DAG

from mlops_provider.operators.ingest import IngestOperator


@pytest.mark.parametrize(
    ("transform", "folders"),
    [
        pytest.param("include.shop.dataset:rows", ["include/shop"], id="function"),
        pytest.param("include.shop.parts.dataset:rows", ["include/shop"], id="function deeper"),
        pytest.param("include/shop/dataset.sql", ["include/shop"], id="SQL"),
        pytest.param("include/shop/queries/dataset.sql", ["include/shop"], id="SQL deeper"),
        pytest.param(None, [], id="none"),
    ],
)
def test_the_recipe_is_part_of_the_work(transform: str | None, folders: list[str]) -> None:
    """Otherwise a changed transform would return the snapshot that the old one made."""
    with DAG(dag_id="shop", schedule=None, start_date=datetime(2024, 1, 1)):
        ingest = IngestOperator(
            task_id="ingest", sources={"visits": {"path": "visits.csv"}}, transform=transform, event_time="at"
        )

    assert ingest.code_paths(ingest.settings) == folders


@pytest.mark.parametrize(
    ("transform", "folders"),
    [
        pytest.param(None, ["include/log"], id="no transform"),
        pytest.param("include.shop.dataset:rows", ["include/log", "include/shop"], id="function elsewhere"),
        pytest.param("include/shop/dataset.sql", ["include/log", "include/shop"], id="SQL elsewhere"),
    ],
)
def test_a_source_of_a_recipe_is_part_of_the_work(transform: str | None, folders: list[str]) -> None:
    """Broken: a corrected reader would return the snapshot that the wrong one made, night for night."""
    sources = {"commits": {"kind": "include.log.commits:COMMITS", "branches": ["include"]}}
    with DAG(dag_id="shop", schedule=None, start_date=datetime(2024, 1, 1)):
        ingest = IngestOperator(task_id="ingest", sources=sources, transform=transform, event_time="at")

    assert ingest.code_paths(ingest.settings) == folders
