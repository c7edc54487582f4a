"""Runs and curves in a notebook: the kernel is IPython's own."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import RichOutput, capture_output

from mlops.client import ClientError, Curve, Curves, Run, Runs, RunSummary, Value
from mlops.client.notebook import Picture

ODD = "<script>alert('&\"')</script>"
ENDED: dict[str, Any] = {
    "id": f"events.experiments@{ODD}", "kind": "experiment", "pipeline": "events", "state": "success", "user": ODD,
    "asked": {"as_of": "2024-01-10", "settings": {"train.epochs": 1, ODD: ODD}}, "queued_at": None,
    "started_at": "2024-01-10T00:00:00Z", "ended_at": "2024-01-10T00:01:30Z", "note": ODD,
    "airflow": "http://airflow/dags/events.experiments/runs/one", "tasks": [], "failure": ODD,
    "steps": [{"step": "ingest", "place": "experiments/ana/events/ingest/1"}],
    "result": {"trainings": [{
        "seed": 1, "epoch": 2, "passed": False, "reason": ODD, "champion": "3", "tracking": "http://mlflow/#/runs/1",
        "report": "javascript:alert(1)", "validation": {"loss": 0.25},
        "metrics": {"candidate.ndcg@10": 0.5, "candidate.ndcg@10.low": 0.4, "champion.ndcg@10": 0.75, "samples": 3.0},
    }]},
}  # fmt: skip


def curve(metric: str, values: list[float | None], run: str = "r") -> Curve:
    steps = list(range(1, len(values) + 1))
    return Curve(run=run, name=f"train {run}", metric=metric, steps=steps, values=values, at=steps)


def parsed(html: str) -> ET.Element:
    """:raises ET.ParseError: where it is not well-formed"""
    return ET.fromstring(f"<cell>{html}</cell>")


def texts(html: str) -> list[str]:
    return [text for text in parsed(html).itertext() if text.strip()]


@pytest.mark.parametrize("shown", [Run(**ENDED), RunSummary(**ENDED), Runs([RunSummary(**ENDED)])])
def test_what_people_write_is_text(shown: Any) -> None:
    """Broken: a note or a setting of a colleague would run in the notebook of whoever lists the runs."""
    html = shown._repr_html_()
    assert parsed(html).find(".//script") is None
    assert any(ODD in text for text in texts(html))
    links = [link.get("href") for link in parsed(html).iter("a")]
    assert links
    assert all(link and link.startswith("http://") for link in links)


def test_a_run_shows_its_verdict_beside_the_champion() -> None:
    told = texts(Run(**ENDED)._repr_html_())
    assert {"events", "success", "90 s", "would not be registered", "0.5000", "0.7500"} <= set(told)
    assert "version 3, the champion" in told
    assert not any(".low" in text for text in told), "intervals are in the report"
    until_train = {**ENDED, "result": {"trainings": [{"seed": 1, "epoch": 2, "validation": {"loss": 0.25}}]}}
    assert {"best epoch 2", "loss", "0.2500"} <= set(texts(Run(**until_train)._repr_html_()))
    waiting = {
        **ENDED,
        "state": "queued",
        "started_at": None,
        "ended_at": None,
        "result": None,
        "steps": [],
        "failure": None,
    }
    assert "queued" in texts(Run(**waiting)._repr_html_())
    assert texts(Runs()._repr_html_()) == ["no runs"]


@pytest.mark.parametrize(
    "curves",
    [
        [],
        [curve("loss", [0.5])],
        [curve("loss", [None, None])],
        [curve("loss", [1e300, -1e300, None, 3])],
        [curve("loss", [1.0, 0.5], run) for run in "abcdefghijkl"],
        [curve("<&>\"'", [0.5, 0.25], "<&>")],
        [curve("$\\frac{$", [0.5, 0.25], run) for run in ("$\\x{$", "b")],
        [curve("_hidden", [0.5], run) for run in ("_a", "b")],
    ],
)
def test_any_curves_can_be_drawn(curves: list[Curve]) -> None:
    html = Curves(curves)._repr_html_()
    figures = parsed(html).findall(".//{http://www.w3.org/2000/svg}svg")
    assert len(figures) == len({curve.metric for curve in curves})


def test_points_become_curves_and_each_is_drawn_in_the_colour_of_the_page() -> None:
    values = [
        Value(run=run, name=run, metric="loss", step=step, value=step / 2, at=9) for step in (1, 2) for run in "ab"
    ]
    curves = Curves.of(values)
    assert [(each.run, each.steps, each.values) for each in curves] == [
        ("a", [1, 2], [0.5, 1.0]),
        ("b", [1, 2], [0.5, 1.0]),
    ]
    assert "currentColor" in curves._repr_html_()
    assert Curves.of([Value(run="a", name="a", metric="m", step=1, value=None, at=1)])[0].values == [None]
    assert not math.isnan(curves[0].values[0] or 0.0)


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_a_cell_changes_while_the_run_goes_on(shell: InteractiveShell) -> None:
    running = Run(**{**ENDED, "id": "events.experiments@one", "state": "running", "ended_at": None, "result": None})
    points = [Value(run="r", name="train", metric=metric, step=1, value=0.5, at=1) for metric in ("loss", "rate")]
    with capture_output(stdout=False, stderr=False) as cell:
        picture = Picture(running, ["loss"])
        picture.add(points)
        picture.add(points[:1])
        picture.finish(Run(**ENDED))
    shown: list[RichOutput] = cell.outputs
    assert [each.update for each in shown] == [False, True, True], "one second has not passed between the last two"
    assert len({each.transient["display_id"] for each in shown}) == 1
    first, second, last = (texts(each.data["text/html"]) for each in shown)
    assert "running" in first
    assert "loss" in second
    assert "rate" not in second
    assert "would not be registered" in last


def test_without_a_notebook_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "IPython.display", None)
    with pytest.raises(ClientError, match="there is no IPython: print what watch yields"):
        Picture(Run(**ENDED), [])
