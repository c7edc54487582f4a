from __future__ import annotations

import re
from html.parser import HTMLParser

import polars as pl
import pytest

from mlops_provider.step import RunIdentity
from training.validation.gate import examine
from training.validation.report import Subject, day_bars, format_number, render
from training.validation.volume import VolumeConfig

DAY_BEFORE = VolumeConfig(tolerance=0.2, against_days=1)
ATTACK = "<script>alert('x')</script>"


@pytest.fixture
def subject(frames, schema) -> Subject:
    return Subject(
        dataset="flights",
        version="0" * 64,
        timezone="UTC",
        types={name: str(dtype) for name, dtype in next(iter(frames.values())).schema.items()},
        schema_path=schema.path,
        schema_sha256=schema.sha256,
        run=RunIdentity(
            pipeline="flights",
            run_key="key",
            interval_start="2013-02-09T00:00:00+00:00",
            interval_end="2013-02-10T00:00:00+00:00",
            timezone="UTC",
            dag_id="flights",
            task_id="validate",
            run_id="scheduled__2013-02-10",
            try_number=1,
        ),
    )


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"src", "href", "action"}]

    def handle_data(self, data):
        self.text += data


def test_values_of_the_data_are_escaped(frames, days, schema, subject):
    """The data is not ours: a value must not run in the reader's browser."""
    frames[days[0]] = frames[days[0]].with_columns(carrier=pl.lit(ATTACK))
    page = Page(render(examine(frames, days, schema, DAY_BEFORE), subject, DAY_BEFORE))
    assert "script" not in page.tags
    assert ATTACK in page.text


def test_the_page_needs_nothing_from_outside(frames, days, schema, subject):
    """It is read offline, and from an artifact store that serves one file."""
    html = render(examine(frames, days, schema, DAY_BEFORE), subject, DAY_BEFORE)
    assert Page(html).links == []
    assert not re.search(r"url\(|@import|https?://", html)


def test_every_anomaly_and_every_column_is_on_the_page(frames, days, schema, subject):
    frames[days[-1]] = frames[days[-1]].head(10).with_columns(carrier=pl.lit("ZZ"), distance=pl.col("distance") * 0)
    verdict = examine(frames, days, schema, DAY_BEFORE)
    text = Page(render(verdict, subject, DAY_BEFORE)).text
    assert len(verdict.anomalies) == 3
    for anomaly in verdict.anomalies:
        assert anomaly.found in text
        assert anomaly.expected in text
        assert anomaly.fix in text
    for column in subject.types:
        assert column in text


def test_equal_verdicts_give_equal_pages(frames, days, schema, subject):
    """A retry would store another report otherwise."""
    pages = {render(examine(frames, days, schema, DAY_BEFORE), subject, DAY_BEFORE) for _ in range(2)}
    assert len(pages) == 1


def test_the_offending_day_is_marked(frames, days, schema):
    frames[days[-1]] = frames[days[-1]].head(50)
    bars = day_bars(examine(frames, days, schema, DAY_BEFORE))
    assert [(bar.height, bar.marked) for bar in bars] == [(100, False)] * 4 + [(50, True)]


def test_an_empty_snapshot_has_a_report(days, schema, subject):
    assert "The snapshot has no rows" in Page(render(examine({}, days, schema, DAY_BEFORE), subject, DAY_BEFORE)).text


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        pytest.param(1360371723, "Datetime(time_unit='us', time_zone='UTC')", "2013-02-09 01:02", id="instant"),
        pytest.param(86_400, "Date", "1970-01-02", id="date"),
        pytest.param(1e18, "Date", "1000000000000000000 s", id="no date of ours"),
        pytest.param(1234567.8, "Float64", "1,234,568", id="large"),
        pytest.param(0.12345, "Float64", "0.1235", id="small"),
        pytest.param(1608, "Int64", "1608", id="integer"),
        pytest.param(float("inf"), "Float64", "inf", id="infinite"),
        pytest.param(3e20, "Float64", "3e+20", id="huge"),
    ],
)
def test_numbers_are_for_people(value, dtype, text):
    assert format_number(value, dtype) == text
