"""Code of a recipe against what is in production: whatever step it runs in, it may not change registered models."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from live_airflow import PIPELINE, LiveAirflow

NIGHT_SECONDS = 400
ATTACK = """

def attack():
    import base64
    import json
    import os
    import sys
    from pathlib import Path
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    step = Path(sys.argv[-1]).parent.name
    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    login = base64.b64encode(f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}".encode()).decode()
    request = Request(
        os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow/registered-models/create",
        json.dumps({"name": f"taken_by_{step}"}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Basic {login}"},
    )
    try:
        with urlopen(request) as answer:
            status = answer.status
    except HTTPError as error:
        status = error.code
    with (Path(os.environ["MLOPS_HOME"]) / "attacks").open("a") as file:
        file.write(f"{step} {user or 'nobody'} {status}\\n")


attack()
"""


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[..., LiveAirflow]) -> LiveAirflow:
    return new_airflow(mlflow_login=True)


def test_code_of_a_recipe_has_no_login_that_changes_models(airflow: LiveAirflow) -> None:
    """Attack: `register` asked the packed model for rows, with the login that may replace the champion's files."""
    for name in ("model.py", "features.py", "dataset.py"):
        path = airflow.home / "include/events" / name
        path.write_text(path.read_text() + ATTACK)
    run_id = airflow.trigger(10)
    assert airflow.client.wait(PIPELINE, run_id, NIGHT_SECONDS) == "success", airflow.states(run_id)
    attacks = [line.split() for line in (airflow.home / "attacks").read_text().splitlines()]
    assert {user for _, user, _ in attacks} == {"steps", "nobody"}
    assert {status for _, _, status in attacks} == {"401", "403"}
    steps = {step.split("-")[2] for step, _, _ in attacks}
    assert steps == {"ingest", "features", "train", "evaluate"}, "no other step runs code of a recipe"
    url = f"{airflow.stack.mlflow_url}/api/2.0/mlflow/registered-models/search"
    found = httpx.get(url, auth=airflow.stack.mlflow_admin).raise_for_status().json()
    assert [model["name"] for model in found["registered_models"]] == [PIPELINE]
    assert airflow.aliases() == {"champion": "1"}
