"""Where a person finds what an experiment has made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlops_provider.deployment import Deployment
from mlops_provider.experiments.line import address

KEY = "experiments/ana/p/evaluate/k/report.0123456789ab.html"


@pytest.mark.parametrize(
    ("store", "airflow", "expected"),
    [
        ("file:///data/store", "https://airflow.example/a/", f"file:///data/store/{KEY}"),
        ("s3://bucket/store", "https://airflow.example/a/", f"https://airflow.example/a/mlops/reports/{KEY}"),
        ("s3://bucket/store", "", f"s3://bucket/store/{KEY}"),
    ],
)
def test_a_report_in_a_bucket_is_opened_in_airflow(
    store: str, airflow: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: the address that a person gets would open in no browser."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", airflow)
    assert address(replace(Deployment.load(), store=store), KEY) == expected
