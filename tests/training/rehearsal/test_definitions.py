"""What a run looks at before it stores anything: names in the recipe's text, and columns of the table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from mlops.contract.refs import DatasetRef
from mlops.contract.step import BadConfigError, RunIdentity, StepInput
from mlops.process import ProcessSettings
from mlops.steps.execution import execute
from mlops.store import Store

FEATURES = """
from mlops import FeatureSet, Passthrough

FEATURES = FeatureSet(label="bought", order_by=("visit",), transforms=[Passthrough("spent")])
TYPED_WRONG = FeatureSet(label="buoght", order_by=("vist",), transforms=[Passthrough("spend")])
"""
SECTIONS: dict[str, dict[str, Any]] = {
    "validate": {"schema_path": "include/looks/schema.pbtxt", "slices": ["shop"]},
    "features": {"feature_set": "include.looks.features:FEATURES"},
    "train": {"learner": "lightgbm", "objective": "binary", "metric": "auc"},
    "evaluate": {"registered_model": "looks", "metric": "auc", "slices": ["shop"]},
}
INGEST: dict[str, Any] = {
    "sources": {"visits": {"kind": "files", "path": "visits.csv", "event_time": "at"}}, "event_time": "at",
    "window": 7, "split": {"validation": 1, "test": 1},
}  # fmt: skip
Looked = Callable[..., DatasetRef]


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looked]:
    """Ingest as a run does, with the settings of all steps."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    home = tmp_path / "project"
    recipe = home / "include/looks"
    recipe.mkdir(parents=True)
    (recipe / "features.py").write_text(FEATURES)
    start = datetime(2024, 1, 1, 8, tzinfo=UTC)
    times = [(start + timedelta(days=n // 10, minutes=n)).isoformat() for n in range(70)]
    table = {"at": times, "visit": range(70), "shop": "north", "spent": 2.5, "bought": [n % 2 for n in range(70)]}
    pl.DataFrame(table).write_csv(home / "visits.csv")

    def run(ingest: dict[str, Any] | None = None, **changes: dict[str, Any]) -> DatasetRef:
        config = {**INGEST, **(ingest or {})}
        sections = {name: {**settings, **changes.get(name, {})} for name, settings in SECTIONS.items()}
        identity = RunIdentity(
            pipeline="looks", run_key="k", interval_start="2024-01-07T00:00:00+00:00",
            interval_end="2024-01-08T00:00:00+00:00", timezone="UTC", dag_id="looks", task_id="ingest", run_id="r",
            try_number=1,
        )  # fmt: skip
        document = StepInput(step="ingest", run=identity, config=config, sections={"ingest": config, **sections})
        deployment = ProcessSettings(
            home=home, store=f"file://{tmp_path}/store", tracking_uri="", result_path=tmp_path / "result.json", rank=0
        )
        ref = execute(StepInput.load(document.dump()), deployment)
        assert isinstance(ref, DatasetRef)
        return ref

    yield run
    for name in [name for name in sys.modules if name.split(".")[0] == "include"]:
        del sys.modules[name]


def test_names_that_are_there_change_nothing_of_the_snapshot(looked: Looked, tmp_path: Path) -> None:
    """Otherwise a changed setting of a later step would be another input of an equal snapshot."""
    ref = looked()
    told = Store(f"file://{tmp_path}/store").read(ref.artifacts["input"]).decode()
    assert ref.num_rows == 70
    assert StepInput.load(told).sections == {}


def test_all_that_does_not_fit_is_said_and_nothing_is_stored(looked: Looked, tmp_path: Path) -> None:
    with pytest.raises(BadConfigError) as caught:
        looked(
            validate={"slices": ["shp"], "unique": [["visit", "vist"]]},
            features={"feature_set": "include.looks.features:TYPED_WRONG"},
            train={"objective": "include.looks.aim:AIM"},
            evaluate={"slices": ["shops"]},
        )
    lines = str(caught.value).split("\n")
    assert [line.partition(": ")[0] for line in lines[1:]] == [
        "- train.objective", "- validate.unique.0.1", "- validate.slices.0", "- evaluate.slices.0",
        "- features.feature_set", "- features.feature_set", "- features.feature_set",
    ]  # fmt: skip
    assert "there is no file include/looks/aim.py" in lines[1]
    assert lines[-1].endswith("Passthrough('spend'): there is no column 'spend'; did you mean 'spent'?")
    assert list(Store(f"file://{tmp_path}/store").list("")) == []


def test_a_source_that_cannot_be_read_hides_no_other_mistake(looked: Looked) -> None:
    lost = {"visits": {"kind": "files", "path": "visit.csv", "event_time": "at"}}
    with pytest.raises(BadConfigError, match=r"(?s)there is no file .*visit\.csv.*- train\.objective: .*aim\.py"):
        looked(ingest={"sources": lost}, train={"objective": "include.looks.aim:AIM"})


def test_what_another_image_may_have_is_left_to_it(looked: Looked, tmp_path: Path) -> None:
    """The training's image may hold packages that the ingest's does not: only the recipe's own text is looked at."""
    recipe = tmp_path / "project/include/looks"
    (recipe / "aim.py").write_text("from exotic_package import AIM\n")
    (recipe / "features.py").write_text("import exotic_package\n" + FEATURES)
    assert looked(train={"objective": "include.looks.aim:AIM"}).num_rows == 70
