from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser

import polars as pl
import pytest

from mlops.contract.sections.validate import Volume
from mlops.contract.step import RunIdentity
from mlops.validation.anomalies import Anomaly, ColumnDistance, Distribution, ReferenceComparison
from mlops.validation.charts import MAX_PAIRS, distance_bars, format_number, pairs, percent, period_bars
from mlops.validation.data_report import Subject, render

DAY_BEFORE = Volume(tolerance=0.2, against=1)
ATTACK = "<script>alert('x')</script>"


@pytest.fixture
def subject(frames, schema) -> Subject:
    return Subject(
        dataset="flights",
        version="0" * 64,
        timezone="UTC",
        grain="day",
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
        self.ids: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"src", "href", "action"}]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        self.text += data


def distribution(*bins: tuple[str, float, float]) -> Distribution:
    labels, expected, found = zip(*bins, strict=True)
    return Distribution(
        labels=labels, expected=expected, found=found, expected_name="champion's snapshot", found_name="this snapshot"
    )


DRIFTED = distribution(("AA", 0.75, 0.125), ("<i>UA</i>", 0.25, 0.875))


def comparison(*distances: float, threshold: float = 0.1) -> ReferenceComparison:
    columns = [
        ColumnDistance(
            column=f"column{number}", measure="L-infinity", distance=value, threshold=threshold, distribution=DRIFTED
        )
        for number, value in enumerate(distances)
    ]
    return ReferenceComparison(
        reference="champion", description="2013-01-01 to 2013-01-30", compared=True, columns=(*columns,)
    )


def test_values_of_the_data_are_escaped(frames, days, schema, subject, examined):
    """The data is not ours: a value must not run in the reader's browser."""
    frames[days[0]] = frames[days[0]].with_columns(carrier=pl.lit(ATTACK))
    verdict = examined(frames, days, schema, slices=["carrier"])
    drifted = Anomaly(
        column=ATTACK, kind=ATTACK, title=ATTACK, expected=ATTACK, found=ATTACK, examples=(ATTACK,), slice=ATTACK,
        fix=ATTACK, distribution=distribution((ATTACK, 1, 0)),
    )  # fmt: skip
    uncompared = ReferenceComparison(reference=ATTACK, description=ATTACK, compared=False)
    verdict = dataclasses.replace(
        verdict, anomalies=(*verdict.anomalies, drifted), comparisons=(uncompared, comparison(1)), notes=(ATTACK,)
    )
    page = Page(render(verdict, subject, DAY_BEFORE))
    assert "script" not in page.tags
    assert page.text.count(ATTACK) >= 10
    assert "<i>UA</i>" in page.text


def test_the_page_needs_nothing_from_outside(frames, days, schema, subject, examined):
    """It is read offline, and from an artifact store that serves one file."""
    frames[days[-1]] = frames[days[-1]].with_columns(carrier=pl.lit("ZZ"))
    html = render(examined(frames, days, schema), subject, DAY_BEFORE)
    page = Page(html)
    assert page.links
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert not re.search(r"url\(|@import|https?://", html)


def test_every_anomaly_and_every_column_is_on_the_page(frames, days, schema, subject, examined):
    frames[days[-1]] = frames[days[-1]].head(10).with_columns(carrier=pl.lit("ZZ"), distance=pl.col("distance") * 0)
    verdict = examined(frames, days, schema)
    text = Page(render(verdict, subject, DAY_BEFORE)).text
    assert len(verdict.anomalies) == 3
    for anomaly in verdict.anomalies:
        assert anomaly.found in text
        assert anomaly.expected in text
        assert anomaly.fix in text
    for column in subject.types:
        assert column in text


def test_the_verdict_comes_first(frames, days, schema, subject, examined):
    """Whoever was woken reads one line."""
    page = Page(render(examined(frames, days, schema), subject, DAY_BEFORE))
    assert page.text.split("</style>")[-1].index("Passed: the data of 2013-02-09 fits") < page.text.index("Columns")
    frames[days[-1]] = frames[days[-1]].with_columns(carrier=pl.lit("ZZ"))
    text = Page(render(examined(frames, days, schema), subject, DAY_BEFORE)).text
    assert text.index("Failed: the data of 2013-02-09 does not fit") < text.index("What is wrong")


def test_what_was_not_checked_is_said_even_where_the_data_passed(frames, days, schema, subject, examined):
    """A pass without a comparison is no pass of the comparison."""
    missing = ReferenceComparison(reference="champion", description="No model is in production yet", compared=False)
    verdict = dataclasses.replace(
        examined(frames, days, schema), comparisons=(missing,), notes=("The serving log is empty.",)
    )
    text = Page(render(verdict, subject, DAY_BEFORE)).text
    assert verdict.passed
    assert "2 things could not be checked" in text
    assert "Not compared with the champion. No model is in production yet." in text
    assert "The serving log is empty." in text


def test_both_distributions_are_drawn_with_their_names(frames, days, schema, subject, examined):
    drifted = Anomaly(
        column="carrier", kind="DRIFT", title="Drift", expected="e", found="f", distribution=DRIFTED
    )  # fmt: skip
    verdict = dataclasses.replace(examined(frames, days, schema), anomalies=(drifted,))
    html = render(verdict, subject, DAY_BEFORE)
    assert "champion's snapshot" in Page(html).text
    assert "75.0% → 12.5%" in html
    assert "width:100.0%" in html


def test_slices_with_anomalies_come_first(frames, days, schema, subject, examined):
    """With a hundred airports the one that is wrong must not be the fiftieth."""
    several = {
        day: frame.with_columns(carrier=pl.Series([f"C{row % 20:02}" for row in range(frame.height)]))
        for day, frame in frames.items()
    }
    verdict = examined(several, days, schema, slices=["carrier"])
    wrong = Anomaly(column=None, kind="SLICE", title="Slice", expected="e", found="f", slice="carrier=C19")
    text = Page(render(dataclasses.replace(verdict, anomalies=(wrong,)), subject, DAY_BEFORE)).text
    table = text[text.index("Rows in the window") :]
    assert table.index("C19") < table.index("C00")
    assert "The other 10" in table


def test_equal_verdicts_give_equal_pages(frames, days, schema, subject, examined):
    """A retry would store another report otherwise."""
    pages = {render(examined(frames, days, schema), subject, DAY_BEFORE) for _ in range(2)}
    assert len(pages) == 1


def test_the_offending_day_is_marked():
    bars = period_bars({"2013-02-08": 100, "2013-02-09": 50}, ["2013-02-08", "2013-02-09"], {"2013-02-09"})
    assert [(bar.height, bar.marked) for bar in bars] == [(100, False), (50, True)]


def test_an_empty_snapshot_has_a_report(days, schema, subject, examined):
    assert "The snapshot has no rows" in Page(render(examined({}, days, schema), subject, DAY_BEFORE)).text


def test_pairs_have_one_scale_and_leave_empty_bins_out():
    """Two scales would make equal shares look different."""
    drawn = pairs(distribution(("a", 0.5, 0.25), ("b", 0, 0), ("c", 0.5, 0.75)))
    assert [(pair.label, pair.expected_width, pair.found_width) for pair in drawn] == [
        ("a", pytest.approx(200 / 3), pytest.approx(100 / 3)),
        ("c", pytest.approx(200 / 3), 100),
    ]


def test_of_many_bins_those_that_differ_are_drawn():
    bins = [(str(value), 0.01, 0.01) for value in range(98)] + [("changed", 0.02, 0), ("more", 0, 0.02)]
    drawn = pairs(distribution(*bins))
    assert len(drawn) == MAX_PAIRS
    assert {"changed", "more", "81 others"} <= {pair.label for pair in drawn}
    assert drawn[-1].expected == percent(0.81)


def test_the_farthest_column_comes_first_and_the_threshold_is_in_the_middle():
    bars = distance_bars(comparison(0.05, 0.3, 0.1, 0))
    assert [(bar.column.column, bar.width, bar.exceeded) for bar in bars] == [
        ("column1", 100, True),
        ("column2", 50, False),
        ("column0", 25, False),
        ("column3", 0, False),
    ]


def test_a_page_of_many_columns_stays_small(frames, days, schema, subject, examined):
    """It is opened on a telephone."""
    verdict = dataclasses.replace(examined(frames, days, schema), comparisons=(comparison(*[0.05] * 500),))
    html = render(verdict, subject, DAY_BEFORE)
    assert "column499" in html
    assert len(html) < 250_000


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0%"), (0.0001, "<0.1%"), (0.12345, "12.3%"), (1, "100.0%")]
)  # fmt: skip
def test_a_rare_value_is_not_called_absent(share, text):
    assert percent(share) == text


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
