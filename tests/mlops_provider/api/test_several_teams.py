"""Lists of what several teams have, where the MLflow or the store of one of them does not answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from rest_world import NAME, World
from served_metrics import Served

from mlops.contract.step import place
from mlops_provider.api import datasets
from mlops_provider.connections import store_of
from mlops_provider.registry import PIPELINE_TAG

TEAMS = ("ads", "search")
CLOSED = "http://127.0.0.1:9"


@pytest.fixture
def mlflows() -> Iterator[dict[str, Served]]:
    """The servers of the deployment and its teams, each with the model of one pipeline."""
    servers = {name: Served() for name in (NAME, *(f"{team}_clicks" for team in TEAMS))}
    for name, server in servers.items():
        version = {"name": name, "version": "1", "tags": [{"key": PIPELINE_TAG, "value": name}]}
        server.answers = {
            "page_token=": (200, {"registered_models": [{"name": name}]}),
            "max_results=1": (200, {"model_versions": [version]}),
        }
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture
def teams(world: World, mlflows: dict[str, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the teams' file says; of each team the asker may read one pipeline."""
    asked_before = world.answer

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v2/dags":
            return httpx.Response(200, json={"dags": [{"dag_id": each} for each in mlflows], "total_entries": 3})
        return asked_before(request)

    monkeypatch.setattr(world, "answer", answer)
    monkeypatch.setenv("AIRFLOW__MLOPS__TRACKING_URI", mlflows[NAME].url)
    monkeypatch.setenv("AIRFLOW__MLOPS__TEAMS_FILE", str(tmp_path / "teams.yaml"))
    return {
        team: {
            "dags": [team],
            "names": f"{team}_",
            "store": f"file://{tmp_path}/{team}",
            "tracking_uri": mlflows[f"{team}_clicks"].url,
        }
        for team in TEAMS
    }


def write(teams: dict[str, Any], folder: Path) -> None:
    (folder / "teams.yaml").write_text(yaml.safe_dump({"teams": teams}))


def test_models_are_listed_though_a_team_s_mlflow_is_away(world: World, teams: dict[str, Any], tmp_path: Path) -> None:
    """Broken: nobody sees any model while the server of one team is down; or it looks as if that team had none."""
    write(teams, tmp_path)
    status, whole = world.ask("GET", "/models")
    assert (status, sorted(each["name"] for each in whole["models"])) == (200, ["ads_clicks", NAME, "search_clicks"])
    assert whole["unreachable"] == []
    teams["search"]["tracking_uri"] = CLOSED
    write(teams, tmp_path)
    status, found = world.ask("GET", "/models")
    assert (status, sorted(each["name"] for each in found["models"])) == (200, ["ads_clicks", NAME])
    (said,) = found["unreachable"]
    assert said.startswith(f"team search: MLflow at {CLOSED} cannot be reached: ")


def test_where_no_mlflow_answers_there_is_no_list(
    world: World, mlflows: dict[str, Served], teams: dict[str, Any], tmp_path: Path
) -> None:
    """Broken: it looks as if nobody had a model."""
    write(teams, tmp_path)
    for server in mlflows.values():
        server.answers, server.status = {}, 503
    status, said = world.ask("GET", "/models")
    assert (status, "answered 503" in said) == (502, True), said


def test_datasets_are_listed_though_a_team_s_store_is_away(
    world: World, teams: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: nobody sees any dataset while the store of one team is down; or it looks as if that team had none."""
    write(teams, tmp_path)
    for store, name in (("store", NAME), ("search", "search_clicks"), ("ads", "ads_clicks")):
        ref = tmp_path / store / place(name, "20240109T000000Z-0", "ingest") / "ref.json"
        ref.parent.mkdir(parents=True)
        ref.write_text("{}")
    status, whole = world.ask("GET", "/datasets")
    assert (status, [each["name"] for each in whole["datasets"]]) == (200, ["ads_clicks", NAME, "search_clicks"])
    assert whole["unreachable"] == []
    away = {"conn_type": "aws", "login": "x", "password": "x", "extra": {"endpoint_url": CLOSED}}
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps(away))
    monkeypatch.setattr(datasets, "store_of", partial(store_of, retry=False))
    teams["search"] |= {"store": "s3://search/mlops", "store_connection": "away"}
    write(teams, tmp_path)
    status, found = world.ask("GET", "/datasets")
    assert (status, [each["name"] for each in found["datasets"]]) == (200, ["ads_clicks", NAME])
    (said,) = found["unreachable"]
    assert said.startswith("team search: the store cannot be read: ")
    teams["search"]["store_connection"] = "gone"
    write(teams, tmp_path)
    status, found = world.ask("GET", "/datasets")
    assert (status, [each["name"] for each in found["datasets"]]) == (200, ["ads_clicks", NAME]), found
    assert "team search: store_connection of team 'search': " in found["unreachable"][0]
    assert "'gone'" in found["unreachable"][0]
