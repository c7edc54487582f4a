from __future__ import annotations

import pytest

from mlops_provider.reports import _REPORT_KEY


@pytest.mark.parametrize(
    ("key", "is_report"),
    [
        ("pipelines/p/validate/20130208T050000Z-0123456789ab/report.0123456789ab.html", True),
        ("pipelines/p/validate/20130208T050000.25Z-0123456789ab/report.0123456789ab.html", True),
        ("experiments/ana/p/evaluate/20130208T050000Z-0123456789ab/report.0123456789ab.html", True),
        ("experiments/ana/p.wider/evaluate/20130208T050000Z-0123456789ab/report.0123456789ab.html", True),
        ("experiments/p/evaluate/k/report.0123456789ab.html", False),
        ("experiments/ana/../p/evaluate/k/report.0123456789ab.html", False),
        ("pipelines/p/validate/../report.0123456789ab.html", False),
        ("pipelines/p/../q/validate/k/report.0123456789ab.html", False),
        ("pipelines/p/train/k/model.0123456789ab.json", False),
    ],
)
def test_only_reports_can_be_opened(key: str, is_report: bool) -> None:
    """Whoever may read one pipeline would otherwise read other parts of the store."""
    found = _REPORT_KEY.fullmatch(key)
    assert (found is not None) is is_report
    assert found is None or found["pipeline"] == "p", "whose DAG one must be allowed to read"
