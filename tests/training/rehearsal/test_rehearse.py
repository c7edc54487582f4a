"""``mlops lint --with-data``: a pipeline is tried out on some rows, and all that is wrong is said at once."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mlops.contract.code_files import code_digest
from mlops.contract.sections.ingest import Ingest
from mlops.contract.step import RunIdentity, StepInput
from mlops.process import ProcessSettings
from mlops.rehearsal.rehearse import Rehearsal, rehearse
from mlops.steps.execution import execute
from mlops.store import Store

NOW = datetime(2024, 3, 1, tzinfo=UTC)
NUM_DAYS, PER_DAY = 30, 20

FEATURES = """
import narwhals as nw

from mlops import FeatureSet, Standardise, Vocabulary

FEATURES = FeatureSet(
    label="returned",
    order_by=("at", "visit"),
    derived={"long": nw.col("minutes") > 30},
    transforms=[Standardise("minutes"), Standardise("spent", missing="indicator"), Vocabulary("shop")],
)
TYPED_WRONG = FeatureSet(
    label="retuned",
    order_by=("att", "visit"),
    derived={"long": nw.col("minuets") > 30, "twice": nw.col("long").cast(nw.Int64) * 2},
    transforms=[
        Standardise("twice"),
        Standardise("spend"),
        Standardise("shop"),
        Vocabulary("shop"),
    ],
)
EUROS = FeatureSet(
    label="spent", where=~nw.col("spent").is_null(), order_by=("at", "visit"), transforms=[Standardise("minutes")]
)
"""

MODEL = """
from torch import nn


def build(config):
    first, last = nn.Linear(config.num_features, config.hidden), nn.Linear(config.hidden, 1)
    return nn.Sequential(first, nn.Tanh(), last, nn.Flatten(-2))


def build_wide(config):
    return nn.Sequential(nn.Linear(config.num_features + 1, 1), nn.Flatten(-2))


class Counting(nn.Linear):
    calls = 0

    def forward(self, rows):
        self.calls += self.training
        return super().forward(rows).squeeze(-1) / (1 + self.calls)


def build_counting(config):
    return Counting(config.num_features, 1)
"""

DATASET = """
import narwhals as nw


def visits(sources):
    return sources["visits"].with_columns(spent=nw.col("spent") * 2)


def failing(sources):
    return sources["visits"].with_columns(spent=sum(sources["visits"].columns))


def by_shop(sources):
    of_shop = sources["visits"].group_by("shop").agg(
        usual=nw.col("spent").mean(), visits=nw.col("visit").sum(), about=nw.col("spent").mean().round(3),
    )
    return sources["visits"].join(of_shop, on="shop")


def misread(sources):
    return sources["visits"].with_columns(spent=nw.col("spend") * 2)
"""

DOCUMENT: dict[str, Any] = {
    "pipeline": "shops",
    "timezone": "UTC",
    "ingest": {
        "sources": {"visits": {"kind": "files", "path": "data/visits.csv", "event_time": "at"}},
        "transform": "include.shops.dataset:visits", "event_time": "at",
    },
    "validate": {
        "schema_path": "include/shops/schema.pbtxt", "unique": [["at", "visit"]], "slices": ["shop"],
        "newest": {"leave_out": ["minutes"]}, "drift": {"columns": {"spent": 0.3}},
    },
    "features": {"feature_set": "include.shops.features:FEATURES"},
    "train": {
        "model": "include.shops.model:build", "model_args": {"hidden": 8}, "objective": "binary", "metric": "auc",
    },
    "evaluate": {"registered_model": "shops", "metric": "auc", "slices": ["shop"]},
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project of a CSV with visits to shops, in January 2024."""
    home = tmp_path / "project"
    recipe = home / "include/shops"
    recipe.mkdir(parents=True)
    for name, text in {"features.py": FEATURES, "model.py": MODEL, "dataset.py": DATASET}.items():
        (recipe / name).write_text(text)
    (home / "data").mkdir()
    numbers = range(NUM_DAYS * PER_DAY)
    start = datetime(2024, 1, 1, 8, tzinfo=UTC)
    pl.DataFrame(
        {
            "at": [(start + timedelta(days=n // PER_DAY, minutes=n % PER_DAY)).isoformat() for n in numbers],
            "visit": list(numbers),
            "shop": [("north", "south", "west")[n % 3] for n in numbers],
            "minutes": [5 + 7 * n % 50 for n in numbers],
            "spent": [None if n % 9 == 0 else n % 31 / 2 for n in numbers],
            "returned": [int(7 * n % 50 > 20) for n in numbers],
        }
    ).write_csv(home / "data/visits.csv")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield home
    for name in [name for name in sys.modules if name.split(".")[0] == "include"]:
        del sys.modules[name]


Tried = Callable[..., Rehearsal]


@pytest.fixture
def tried(home: Path, tmp_path: Path) -> Tried:
    def run(**changes: dict[str, Any]) -> Rehearsal:
        document = copy.deepcopy(DOCUMENT)
        for section, settings in changes.items():
            document[section] |= settings
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        store = Store(f"file://{tmp_path}/store")
        return rehearse(document, home=home, store=store, scratch=scratch, now=NOW)

    return run


def told(rehearsal: Rehearsal) -> dict[str, str]:
    return {".".join(problem.keys): problem.message for problem in rehearsal.problems}


def test_a_sound_pipeline_is_tried_to_its_training(tried: Tried, tmp_path: Path) -> None:
    rehearsal = tried()
    assert told(rehearsal) == {}
    assert list(rehearsal.done) == [
        "there is no include/shops/schema.pbtxt yet: the first run proposes it, for you to review",
        "tried on 600 rows of the sources",
        "7 features of 600 samples",
        "some steps of the training; resumed after two of them it gives the same bits",
    ]
    assert list(Store(f"file://{tmp_path}/store").list("")) == [], "nothing is written but to the scratch folder"


def test_a_mean_that_is_another_each_time_is_told(tried: Tried, home: Path) -> None:
    """Broken: each night would store all its days again, a lost file could never be made again, and none knew why."""
    rows = pl.read_csv(home / "data/visits.csv")
    newest = rows.tail(1).select(pl.all().repeat_by(9000).explode())
    newest = newest.with_columns(
        visit=pl.int_range(9000), spent=pl.int_range(9000).sqrt(), shop=pl.Series(["north", "south", "west"] * 3000)
    )
    pl.concat([rows, newest.cast(dict(rows.schema))]).write_csv(home / "data/visits.csv")

    done = tried(ingest={"transform": "include.shops.dataset:by_shop"}).done

    (sentence,) = (each for each in done if "other last bits" in each)
    assert sentence.startswith("column 'usual' of the transform"), "what is whole or rounded is the same each time"


def test_all_mistakes_are_said_at_once(tried: Tried) -> None:
    """Each would cost a run to find, up to the step that falls over it."""
    found = told(
        tried(
            ingest={"split": {"key": "customer"}},
            validate={
                "unique": [["at", "visti"]], "slices": ["shp"], "newest": {"leave_out": ["minuets"]},
                "drift": {"columns": {"spend": 0.3}},
            },
            features={"feature_set": "include.shops.features:TYPED_WRONG"},
            train={"model": "include.shops.model:biuld", "loss": "include.shops.losses:mine"},
            evaluate={"slices": ["returned", "shops"], "fairness": ["visit"]},
        )
    )  # fmt: skip
    features = found.pop("features.feature_set").split("\n")
    assert found.pop("train.model").endswith("module 'include.shops.model' has no 'biuld'; did you mean 'build'?")
    assert "No module named 'include.shops.losses'" in found.pop("train.loss")
    assert "column 'visit' has 600 values" in found.pop("evaluate.fairness.0")
    assert "ingest.split.key names" in found.pop("ingest.split")
    assert {keys: message.split("; ")[1] for keys, message in found.items()} == {
        "validate.unique.0.1": "did you mean 'visit'?",
        "validate.slices.0": "did you mean 'shop'?",
        "validate.newest.leave_out.0": "did you mean 'minutes'?",
        "validate.drift.columns.spend": "did you mean 'spent'?",
        "evaluate.slices.1": "did you mean 'shop'?",
    }
    assert features == [
        "include/shops/features.py:13: FeatureSet.label: there is no column 'retuned'; did you mean 'returned'?",
        "include/shops/features.py:14: FeatureSet.order_by: there is no column 'att'; did you mean 'at'?",
        "include/shops/features.py:15: derived column 'long': there is no column 'minuets'; did you mean 'minutes'?",
        "include/shops/features.py:18: Standardise('spend'): there is no column 'spend'; did you mean 'spent'?",
        "include/shops/features.py:19: Standardise('shop'): the column is String, not a number; use "
        "Vocabulary or Hash, or derive a number from it",
    ]


@pytest.mark.parametrize(
    ("changes", "keys", "message"),
    [
        pytest.param({"ingest": {"sources": {"visits": {"path": "data/visit.csv", "event_time": "at"}}}},
                     "ingest.sources.visits", "visit.csv", id="no such file"),
        pytest.param({"ingest": {"sources": {"visits": {"path": "data/visits.csv", "event_time": "spent"}}}},
                     "ingest.sources.visits", "spent", id="no instant"),
        pytest.param({"ingest": {"transform": "include.shops.dataset:misread"}}, "ingest.transform",
                     "asks for a missing column", id="the transform misreads a column"),
        pytest.param({"ingest": {"transform": "include.shops.dataset:failing"}}, "ingest.transform",
                     "include/shops/dataset.py:10: TypeError", id="the transform fails"),
        pytest.param({"ingest": {"transform": "include/shops/dataset.sql"}}, "ingest.transform", "there is no file",
                     id="no such SQL"),
        pytest.param({"ingest": {"event_time": "visit"}}, "ingest.transform", "not an instant", id="event time"),
        pytest.param({"train": {"model": "include.shops.model:build_wide"}}, "train", "shapes cannot be multiplied",
                     id="shapes"),
        pytest.param({"train": {"model_args": {}}}, "train", "hidden", id="model_args"),
        pytest.param({"train": {"model": "include.shops.model:build_counting", "model_args": {}}}, "train",
                     "calls (Counting)", id="a resume would change the model"),
        pytest.param({"features": {"feature_set": "include.shops.features:EUROS"}}, "train", "binary", id="labels"),
        pytest.param({"train": {"objective": "ranking", "metric": "mrr"}, "evaluate": {"metric": "mrr"}}, "train",
                     "needs groups of rows", id="groups"),
        pytest.param(
            {"train": {"learner": "lightgbm", "model": None, "model_args": {}},
             "features": {"feature_set": "include.shops.features:EUROS"}},
            "train", "label", id="labels of trees"),
    ],
)  # fmt: skip
def test_a_mistake_has_its_place(tried: Tried, changes: dict[str, Any], keys: str, message: str) -> None:
    found = told(tried(**changes))
    assert list(found) == [keys], found
    assert message in found[keys]


def test_trees_are_tried_too(tried: Tried) -> None:
    rehearsal = tried(train={"learner": "lightgbm", "model": None, "model_args": {}})
    assert (told(rehearsal), rehearsal.done[-1]) == ({}, "an epoch of lightgbm")


def test_weights_of_a_registered_model_are_left_out(tried: Tried) -> None:
    """Broken: a pipeline that fine-tunes cannot be tried out, or is called ok with weights that nobody looked at."""
    rehearsal = tried(train={"initialise": {"model": "shops@champion", "leave_out": ["2.*"]}, "freeze": ["0.*"]})
    assert told(rehearsal) == {}
    left_out, *_, last = rehearsal.done[2:]
    assert left_out == (
        "shops@champion is looked up when a run begins: whether its weights are the model's is not tried"
    )
    assert last == "some steps of the training; resumed after two of them it gives the same bits"


def test_a_module_that_is_not_installed_is_named(tried: Tried, home: Path) -> None:
    (home / "include/shops/model.py").write_text("import exotic_package.layers\n" + MODEL)
    found = told(tried())
    assert "Install 'exotic_package' in the runtime of the step's process" in found["train.model"]


def test_a_snapshot_is_used_where_these_settings_would_make_the_same(tried: Tried, home: Path, tmp_path: Path) -> None:
    """Reading a source again may take as long as the night's ingest."""
    code_paths = ["include/shops"]
    code = code_digest([home / path for path in code_paths])
    settings = Ingest.model_validate(DOCUMENT["ingest"]).model_dump(mode="json")
    run = RunIdentity(
        pipeline="shops", run_key="k", interval_start="2024-01-30T00:00:00+00:00",
        interval_end="2024-01-31T00:00:00+00:00", timezone="UTC", dag_id="shops", task_id="ingest", run_id="r",
        try_number=1,
    )  # fmt: skip
    document = StepInput(step="ingest", run=run, config=settings, code_paths=code_paths, code=code)
    deployment = ProcessSettings(
        home=home, store=f"file://{tmp_path}/store", tracking_uri="", result_path=tmp_path / "result.json", rank=0
    )
    execute(document, deployment)
    (home / "data/visits.csv").unlink()
    rehearsal = tried()
    assert told(rehearsal) == {}
    assert rehearsal.done[1].startswith("tried on 600 rows of the snapshot shops@")
    assert list(told(tried(ingest={"event_time": "at", "window": 29}))) == ["ingest.sources.visits"]
    (home / "include/shops/dataset.py").write_text(DATASET + "# other code\n")
    assert list(told(tried())) == ["ingest.sources.visits"]
