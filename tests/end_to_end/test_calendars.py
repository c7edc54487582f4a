"""Tables that do not come every day, as pipelines: on business days, and once a week."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest
from live_airflow import LiveAirflow
from turns import on_turn

from mlops.contract.refs import DatasetRef, ModelVersionRef
from mlops_provider.operators.base import FAILURE_KEY

RUN_SECONDS = 300
FEATURES = """
from mlops import FeatureSet, Passthrough, Vocabulary

FEATURES = FeatureSet(
    label="bought", order_by=("visit",), transforms=[Passthrough("spent"), Vocabulary("shop", encoding="id")]
)
"""
PIPELINE = """
pipeline: {name}
start_date: 2024-01-01
ingest:
  sources: {{visits: {{path: data/{name}.csv, event_time: at, time_zone: UTC}}}}
  event_time: at
  window_days: {window}
  calendar: {calendar}
  split: {{validation_days: 2, test_days: 2}}
validate: {{schema_path: include/calendars/schema.pbtxt}}
features: {{feature_set: "include.calendars.features:FEATURES"}}
train: {{learner: lightgbm, learner_settings: {{rounds_per_epoch: 5}}, objective: binary, metric: auc, epochs: 2}}
evaluate: {{registered_model: {name}, metric: auc}}
register: {{registered_model: {name}}}
"""
SCHEMA = """
feature { name: "at" type: INT time_domain { integer_format: UNIX_SECONDS } presence { min_fraction: 1 min_count: 1 } }
feature { name: "visit" type: INT presence { min_fraction: 1 min_count: 1 } }
feature { name: "shop" type: BYTES domain: "shop" presence { min_fraction: 1 min_count: 1 } }
feature { name: "spent" type: FLOAT presence { min_fraction: 1 min_count: 1 } }
feature { name: "bought" type: INT presence { min_fraction: 1 min_count: 1 } }
string_domain { name: "shop" value: "north" value: "south" }
"""
SUNDAY = date(2024, 1, 7)


def write_visits(file: Path, days: list[date]) -> None:
    chance = random.Random(5)
    lines = ["at,visit,shop,spent,bought"]
    for day in days:
        for _ in range(60):
            spent = chance.randrange(1000) / 10
            bought = int(spent + chance.randrange(40) > 60)
            lines.append(f"{day}T10:00:00,{len(lines)},{chance.choice(['north', 'south'])},{spent},{bought}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def airflow(new_airflow: Callable[[], LiveAirflow]) -> LiveAirflow:
    """With a pipeline of each kind, and 60 days up to a Sunday; New Year's Day was a Monday."""
    airflow = new_airflow()
    home = airflow.home
    recipe = home / "include/calendars"
    recipe.mkdir(parents=True)
    (recipe / "features.py").write_text(FEATURES)
    (recipe / "schema.pbtxt").write_text(SCHEMA)
    days = [SUNDAY - timedelta(days=back) for back in range(60)][::-1]
    holidays = {date(2023, 12, 25), date(2024, 1, 1)}
    write_visits(home / "data/weekdays.csv", [day for day in days if day.weekday() < 5 and day not in holidays])
    write_visits(home / "data/fridays.csv", [day for day in days if day.weekday() == 4])
    for name, window, calendar in (("weekdays", 28, "{holidays: DE-NW}"), ("fridays", 56, "{gaps: 6}")):
        text = PIPELINE.format(name=name, window=window, calendar=calendar)
        (home / f"dags/{name}.pipeline.yaml").write_text(text)
    return airflow


@on_turn(0, 2)
@pytest.mark.timeout(900)
def test_days_off_stop_no_night_and_lost_days_do(airflow: LiveAirflow) -> None:
    """Broken: a pipeline of business days would fail on each Sunday, or would not miss a Friday that is lost."""
    runs = {name: airflow.trigger(8, name) for name in ("weekdays", "fridays")}
    for name, run_id in runs.items():
        assert airflow.client.wait(name, run_id, RUN_SECONDS) == "success", airflow.states(run_id, name)
        version = ModelVersionRef.from_wire(airflow.client.xcom(name, run_id, "register"))
        dataset = version.ancestor(DatasetRef)
        # Four weeks without Christmas and New Year's Day; and eight Fridays.
        assert dataset.num_rows == 60 * {"weekdays": 18, "fridays": 8}[name]

    csv = airflow.home / "data/fridays.csv"
    csv.write_text("".join(line for line in csv.read_text().splitlines(keepends=True) if "2024-01-05" not in line))
    lost = airflow.trigger(9, "fridays")
    assert airflow.client.wait("fridays", lost, RUN_SECONDS) == "failed"
    message = airflow.client.xcom("fridays", lost, "ingest", FAILURE_KEY)["message"]
    assert (
        "no rows for the 10 days up to 2024-01-08 (newest: 2023-12-29), and ingest.calendar allows gaps of 6" in message
    )
