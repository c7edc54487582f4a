"""What the features operator hands to the step's process, and what ``features.online`` may say."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from airflow.sdk import DAG

from mlops.contract.section import SpecError, check_section
from mlops.contract.sections.features import Features
from mlops.contract.step import connection_variable
from mlops_provider.connections import connection_environment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.operators.features import FeaturesOperator

SET = "include.shop.features:FEATURES"


def operator(**online: Any) -> FeaturesOperator:
    with DAG(dag_id="shop", schedule=None, start_date=datetime(2024, 1, 1)):
        return FeaturesOperator(task_id="features", validation="{}", feature_set=SET, online=online or None)


def test_the_online_store_s_connection_travels_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_ONLINE", "redis://:s3cret@redis.example:6380?db=2")
    features = operator(store="redis", connection="redis_online")

    environment = connection_environment(features.connections(features.settings))

    found = json.loads(environment[connection_variable("redis_online")])
    assert (found["host"], found["port"], found["password"]) == ("redis.example", 6380, "s3cret")
    assert "s3cret" not in json.dumps(features.settings)
    for without in (operator(), operator(store="sqlite")):
        assert connection_environment(without.connections(without.settings)) == {}


def test_a_connection_that_airflow_does_not_have_is_named() -> None:
    features = operator(store="redis", connection="nowhere")

    with pytest.raises(StepFailedError, match=r"features.online.connection: Airflow has no connection 'nowhere'"):
        connection_environment(features.connections(features.settings))


@pytest.mark.parametrize(
    ("online", "message"),
    [
        ({"store": "redis"}, "online must be complete: for store redis name the Airflow connection"),
        ({"connection": "redis"}, "online must be consistent: a connection goes with store: redis"),
        ({"ttl_hours": 0}, "online.ttl_hours must be > 0, got 0"),
        ({"ttl": 4}, "unknown key 'online.ttl'; known keys are store, connection, ttl_hours"),
    ],
    ids=["no connection", "connection of a file", "ttl", "key"],
)
def test_mistakes_are_explained(online: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        check_section(Features, {"feature_set": SET, "online": online}, "features")

    assert message in str(raised.value)
