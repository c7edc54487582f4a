"""``mlops features``, as the command line's process runs it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from redis import Redis

from mlops.commands.__main__ import main
from mlops.contract.sections.features import Online
from mlops.store import Store

END = datetime.fromisoformat("2024-05-08T04:00:00+00:00")


@pytest.fixture
def ask(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command; its exit code, output and errors."""
    monkeypatch.setenv("MLOPS_HOME", str(tmp_path))
    monkeypatch.setenv("MLOPS_STORE", store.uri)
    monkeypatch.setenv("COLUMNS", "120")

    def ask_for(*arguments: str) -> tuple[int, str, str]:
        code = main(["features", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ask_for


@pytest.fixture
def night(make_shards: Any, put_online: Any) -> Any:
    """User 7 of shop s, three hours before the night's end."""
    rows = pl.DataFrame({"shop": ["s"], "user": [7], "event_time": [END - timedelta(hours=3)]})
    night = make_shards(0, rows)
    put_online(night)
    return night


ENTITY = ("--entity", "shop=s", "--entity", "user=7")


@pytest.mark.server
def test_get_reads_one_row_back(ask: Any, pipeline: str, night: Any, online: Online) -> None:
    code, out, _ = ask("get", pipeline, *ENTITY, "--as-of", "2024-05-08T04:00")

    assert code == 0
    assert out.splitlines()[:4] == [
        f"{pipeline}  shop=s user=7",
        "served; 3 h 0 min old, time to live 48 h 0 min",
        "event time  2024-05-08 01:00:00 UTC",
        f"made by     {night.ref.place}",
    ]
    shown = dict(line.split() for line in out.splitlines()[5:])
    assert shown == {name: str(value) for name, value in zip(night.names, night.features[0], strict=True)}


@pytest.mark.parametrize("online", ["sqlite"], indirect=True)
def test_get_as_json_has_the_very_bits(ask: Any, pipeline: str, night: Any) -> None:
    code, out, _ = ask("get", pipeline, *ENTITY, "--as-of", "2024-05-08T05:00+01:00", "--json")

    document = json.loads(out)
    assert code == 0
    assert np.array([*document.pop("features").values()], np.float32).tobytes() == night.features[0].tobytes()
    assert document == {
        "pipeline": pipeline,
        "entity": {"shop": "s", "user": 7},
        "status": "served",
        "event_time": "2024-05-08T01:00:00+00:00",
        "age_seconds": 3 * 3600.0,
        "ttl_seconds": 48 * 3600.0,
        "features_place": night.ref.place,
    }


@pytest.mark.parametrize("online", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("night")
def test_what_a_server_is_not_given_is_said(ask: Any, pipeline: str) -> None:
    code, out, _ = ask("get", pipeline, *ENTITY)
    assert (code, out.splitlines()[1].partition(";")[0]) == (1, "expired: a server is given nothing")

    code, out, _ = ask("get", pipeline, "--entity", "shop=s", "--entity", "user=8")
    assert (code, out.splitlines()[1].partition(":")[0]) == (1, "missing")


@pytest.mark.parametrize("online", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("night")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--entity", "shop"], "--entity 'shop' is not COLUMN=VALUE"),
        (["--entity", "shpo=s"], "--entity 'shpo=s': there is no column 'shpo'; did you mean 'shop'?"),
        (["--entity", "shop=s", "--entity", "user=x"], "--entity 'user=x': user is a whole number"),
        (["--entity", "shop=s"], "is shop, user; give --entity user=... too"),
    ],
    ids=["no value", "column", "type", "missing"],
)
def test_a_wrong_entity_is_explained(ask: Any, pipeline: str, arguments: list[str], message: str) -> None:
    code, _, err = ask("get", pipeline, *arguments)

    assert code == 2
    assert message in err


@pytest.mark.parametrize("online", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("online")
def test_list_says_what_is_published(ask: Any, pipeline: str, request: pytest.FixtureRequest) -> None:
    assert ask("list") == (0, "nothing is published; a pipeline publishes where it has a section features.online\n", "")
    assert "published are none" in ask("get", pipeline)[2]

    request.getfixturevalue("night")

    header, line = ask("list")[1].splitlines()
    assert line.split("  ")[0] == pipeline
    assert [header.find("entity"), header.find("as of")] == [line.find("shop, user"), line.find("2024-05-08 04:00")]
    [document] = json.loads(ask("list", "--json")[1])
    assert document == {
        "pipeline": pipeline,
        "entity": ["shop", "user"],
        "num_features": 4,
        "as_of": "2024-05-08T04:00:00+00:00",
        "online": "sqlite",
        "ttl_hours": 48,
    }
    assert f"did you mean '{pipeline}'?" in ask("get", pipeline[:-1])[2]


@pytest.mark.parametrize("online", ["redis"], indirect=True)
def test_publish_fills_an_online_store_that_lost_its_data(
    ask: Any, store: Store, pipeline: str, night: Any, redis_server: str
) -> None:
    """Clearing the task would not do: its features are committed, and are the answer."""
    Redis.from_url(redis_server).flushall()
    assert ask("get", pipeline, *ENTITY)[0] == 1
    assert "is not committed" in ask("publish", pipeline)[2]
    store.commit(night.ref)

    assert ask("publish", pipeline) == (0, f"{pipeline}: 1 entities written; what was there stays\n", "")

    assert ask("get", pipeline, *ENTITY, "--as-of", "2024-05-08T04:00")[0] == 0
    assert json.loads(ask("publish", pipeline, "--json")[1]) == {"pipeline": pipeline, "written": 0}
