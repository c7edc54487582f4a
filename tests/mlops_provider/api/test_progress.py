"""How far trainings are, by what MLflow answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from rest_world import World
from served_metrics import Served

from mlops_provider.api import progress
from mlops_provider.api.progress import trainings_under_way
from mlops_provider.progress import live_first, progress_of

BEGUN = 1_767_225_600_000
CLOSED = "http://127.0.0.1:9"


def run(
    metrics: dict[str, tuple[float | str, int, float]], num_steps: str | None = "200", dag_id: str = "flights"
) -> dict[str, Any]:
    """:param metrics: value, step and seconds since the beginning, by name"""
    params = [{"key": "epochs", "value": "4"}]
    params += [] if num_steps is None else [{"key": "num_steps", "value": num_steps}]
    tags = {"mlops.airflow.dag_id": dag_id, "mlops.airflow.run_id": "night"}
    told = [
        {"key": name, "value": value, "step": step, "timestamp": BEGUN + int(1000 * seconds)}
        for name, (value, step, seconds) in metrics.items()
    ]
    return {
        "info": {"run_id": "7", "run_name": f"{dag_id} 2026-01-01", "start_time": BEGUN, "status": "RUNNING"},
        "data": {"params": params, "metrics": told, "tags": [{"key": k, "value": v} for k, v in tags.items()]},
    }


def test_how_far_a_training_is() -> None:
    """Broken: who waits for a night would not know for how long, or that half of it went into restarts."""
    found = progress_of(run({"training_seconds": (30.0, 50, 60), "loss": (0.5, 50, 60), "train_loss": (0.9, 1, 40)}))
    assert found is not None
    assert (found.step, found.num_steps, found.loss) == (50, 200, 0.5)
    assert (found.seconds_left, found.goodput) == (90.0, 0.5)
    assert found.told_at == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("metrics", "num_steps", "expected"),
    [
        ({}, "200", (0, None, None, None)),
        ({"training_seconds": (1.0, 0, 1)}, "200", (0, None, None, None)),
        ({"training_seconds": (30.0, 50, 60), "loss": ("NaN", 50, 60)}, "200", (50, None, 90.0, 0.5)),
        ({"training_seconds": (30.0, 50, 60), "loss": ("Infinity", 50, 60)}, "200", (50, None, 90.0, 0.5)),
        ({"training_seconds": (30.0, 2, 60), "train_loss": (0.4, 2, 60)}, "4", (2, 0.4, 30.0, 0.5)),
        # Another clock than MLflow's.
        ({"training_seconds": (30.0, 50, 20)}, "200", (50, None, 90.0, 1.0)),
        ({"training_seconds": (30.0, 50, -5)}, "200", (50, None, 90.0, None)),
        ({"training_seconds": (30.0, 250, 60)}, "200", (250, None, 0.0, 0.5)),
    ],
    ids=["nothing", "no step", "nan", "infinite", "epochs", "clock", "clock before", "more steps"],
)
def test_what_is_not_known_is_not_said(metrics: dict[str, Any], num_steps: str, expected: tuple[Any, ...]) -> None:
    found = progress_of(run(metrics, num_steps))
    assert found is not None
    assert (found.step, found.loss, found.seconds_left, found.goodput) == expected


@pytest.mark.parametrize("num_steps", [None, "", "many", "-1", "1e3"])
def test_what_has_no_length_has_no_progress(num_steps: str | None) -> None:
    """Such as a search, a script of one's own, or a run that somebody has edited."""
    assert progress_of(run({"training_seconds": (30.0, 50, 60)}, num_steps)) is None


@pytest.fixture
def mlflows(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Served]]:
    """Of the deployment and of the team ads, each with a training of its pipeline."""
    servers = {"flights": Served(), "ads_clicks": Served()}
    for name, server in servers.items():
        server.answers = {
            f"experiment_name={name}": (200, {"experiment": {"experiment_id": "1"}}),
            "runs/search": (200, {"runs": [run({"training_seconds": (30.0, 50, 60)}, dag_id=name)]}),
        }
    monkeypatch.setattr(progress, "_experiments", {})
    monkeypatch.setenv("AIRFLOW__MLOPS__TRACKING_URI", servers["flights"].url)
    monkeypatch.setenv("AIRFLOW__MLOPS__TEAMS_FILE", str(tmp_path / "teams.yaml"))
    write_team(tmp_path, servers["ads_clicks"].url)
    yield servers
    for server in servers.values():
        server.close()


def write_team(folder: Path, mlflow: str) -> None:
    team = {"dags": ["ads"], "names": "ads_", "store": f"file://{folder}/ads", "tracking_uri": mlflow}
    (folder / "teams.yaml").write_text(yaml.safe_dump({"teams": {"ads": team}}))


RUNS = [("flights", "night"), ("ads_clicks", "night")]


def look(*runs: tuple[str, str]) -> tuple[dict[tuple[str, str], list[int]], dict[str, str]]:
    found, problems = asyncio.run(trainings_under_way(runs))
    return {run: [each.step for each in several] for run, several in found.items()}, dict(problems)


def test_each_team_s_mlflow_is_asked_for_its_own(mlflows: dict[str, Served]) -> None:
    assert look(*RUNS) == ({each: [50] for each in RUNS}, {})
    assert look(("flights", "another night")) == ({}, {})
    assert look() == ({}, {})
    for server in mlflows.values():
        assert sum("get-by-name" in path for path in server.asked) == 1, "what is known is not asked for at each look"


def test_where_one_is_away_those_of_the_others_are_shown(mlflows: dict[str, Served], tmp_path: Path) -> None:
    """Broken: nobody would see how any training goes while one team's server is down, or would not know why."""
    write_team(tmp_path, CLOSED)
    found, problems = look(*RUNS)
    assert (found, list(problems)) == ({("flights", "night"): [50]}, ["ads_clicks"])
    assert problems["ads_clicks"].startswith(f"MLflow at {CLOSED} cannot be reached")


def test_a_mistake_in_the_teams_file_hides_progress_alone(mlflows: dict[str, Served], tmp_path: Path) -> None:
    """Broken: nobody would see how any pipeline stands while somebody edits a file."""
    (tmp_path / "teams.yaml").write_text("teams: 7")
    found, problems = look(*RUNS)
    assert (found, set(problems)) == ({}, {"flights", "ads_clicks"})


def test_nobody_waits_for_a_server_that_does_not_answer(
    mlflows: dict[str, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: Tonight would come half a minute late while one team's MLflow hangs, or show no training at all."""
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 1.5)
    released = threading.Event()

    class Late(dict[str, Any]):
        def __iter__(self) -> Any:
            released.wait(60)
            return super().__iter__()

    mlflows["ads_clicks"].answers = Late(mlflows["ads_clicks"].answers)
    try:
        found, problems = look(*RUNS)
    finally:
        released.set()
    assert found == {("flights", "night"): [50]}
    assert problems == {"ads_clicks": f"MLflow at {mlflows['ads_clicks'].url} has not answered within 1.5 s"}


def test_an_experiment_that_is_made_anew_is_found(mlflows: dict[str, Served], monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: once somebody has removed an experiment, how its trainings go is not shown until the server restarts."""
    flights = mlflows["flights"]
    for _ in range(2):
        assert look(RUNS[0])[0] == {RUNS[0]: [50]}
    monkeypatch.setattr(progress, "_KNOWN_SECONDS", 0.0)
    assert look(RUNS[0])[0] == {RUNS[0]: [50]}
    assert sum("get-by-name" in path for path in flights.asked) == 2


def test_those_that_were_killed_do_not_hide_those_that_go_on() -> None:
    """Broken: of a search whose first trials ran out of memory the page would show these for the rest of the night."""
    found = [
        progress_of(run({"training_seconds": (3.0, 5, seconds)}, dag_id=name))
        for name, seconds in (("killed", 60), ("goes on", 3600), ("as well", 3599))
    ]
    found.append(progress_of(run({}, dag_id="begins")))
    names = [each.name.removesuffix(" 2026-01-01") for each in live_first([each for each in found if each])]
    assert names == ["goes on", "as well", "begins", "killed"]


@pytest.mark.parametrize("name", ["num_steps", "value", "step", "timestamp", "start_time", "metrics"])
@pytest.mark.parametrize("value", [None, "", "x", "9" * 400, "9" * 5000, 10**18, "NaN", "Infinity", -1, {}, []])
def test_what_somebody_has_edited_is_no_error(name: str, value: Any) -> None:
    """Broken: whoever may write to one team's MLflow could take Tonight away from all."""
    edited = run({"training_seconds": (30.0, 50, 60), "loss": (0.5, 50, 60)}, value if name == "num_steps" else "200")
    if name == "start_time":
        edited["info"]["start_time"] = value
    elif name == "metrics":
        edited["data"]["metrics"] = value
    elif name != "num_steps":
        edited["data"]["metrics"][0][name] = value
    found = progress_of(edited)
    assert found is None or found.model_dump_json()
