from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from mlops.contract.refs import DatasetRef, FeaturesRef, ValidationRef
from mlops.contract.sections.ingest import KeySplit, TimeSplit
from mlops.contract.step import BadConfigError, BadDataError, RunIdentity, StepInput
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.shard_reading import open_split
from mlops.data.snapshots.snapshot import write_snapshot
from mlops.data.sources.window import Window
from mlops.features import batches, materialise
from mlops.features.fitted import held_out, load_fitted
from mlops.process import ProcessSettings
from mlops.steps import StepContext, features
from mlops.store import Store

RECIPE = """
import narwhals as nw
from mlops import Bucketise, Cross, FeatureSet, Hash, RobustScale, Standardise, Vocabulary

FEATURES = FeatureSet(
    label="grade", group_by=("query",), min_group_size=2, order_by=("at",), entity=("kind",),
    derived={"double": nw.col("value") * FACTOR},
    transforms=[Standardise("double"), Vocabulary("kind")],
)
ROWS = FeatureSet(
    label="grade", order_by=("at",),
    transforms=[Standardise("value"), RobustScale("other"), Bucketise("value", buckets=3),
                Vocabulary("kind", min_count=2), Hash(Cross("kind", "query"), buckets=4)],
)
UNFAIR = FeatureSet(
    label="grade", order_by=("at",), transforms=[Standardise("gap")],
    derived={"gap": nw.col("value") - nw.col("value").mean()},
)
EMPTY = FeatureSet(label="grade", where=nw.col("value") < 50, order_by=("at",), transforms=[Standardise("value")])
TYPO = FeatureSet(
    label="grade", order_by=("at",),
    transforms=[
        Standardise("valeu"),
    ],
)
NO_SET = {"label": "grade"}
"""

Run = Callable[..., FeaturesRef]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    recipe = tmp_path / "project/include/features_toy"
    recipe.mkdir(parents=True)
    (recipe / "features.py").write_text(RECIPE.replace("FACTOR", "2"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "project"
    for name in [name for name in sys.modules if name.startswith(("include.features_toy", "_bundle_"))]:
        del sys.modules[name]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"file://{tmp_path / 'store'}")


@pytest.fixture
def table() -> pl.DataFrame:
    """Ten days of thirteen rows: six queries of two, and a row alone."""
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return pl.DataFrame(
        [
            {
                "at": start + timedelta(days=d, minutes=i),
                "query": f"{d}-{i // 2}",
                "value": float(d * 13 + i),
                "other": float(i),
                "kind": "abc"[i % 3],
                "grade": i % 5,
            }
            for d in range(10)
            for i in range(13)
        ]
    )


@pytest.fixture
def run(home: Path, store: Store, table: pl.DataFrame, tmp_path: Path) -> Run:
    def run_features(
        name: str = "FEATURES", rows: pl.DataFrame = table, place: str = "k",
        split: TimeSplit | KeySplit | None = None, sample: float | None = None,
    ) -> FeaturesRef:  # fmt: skip
        manifest = write_snapshot(
            store, nw.from_native(rows.lazy()), name="toy", event_time="at",
            window=Window.before(datetime(2024, 1, 11, tzinfo=UTC), 10, "UTC"),
            sources={}, split=split or TimeSplit(validation=2, test=3), creator={},
            engine="polars", scratch=tmp_path,
        )  # fmt: skip
        dataset = DatasetRef(
            place="d", artifacts={"manifest": store.put_artifact("d", "manifest.json", manifest.to_json())},
            name="toy", version=manifest.version, schema_hash=manifest.schema_hash, num_rows=manifest.num_rows,
            num_bytes=manifest.num_bytes, interval_start=manifest.interval_start, interval_end=manifest.interval_end,
        )  # fmt: skip
        validation = ValidationRef(place="v", schema_sha256="", num_checks=1, parent=dataset)
        identity = RunIdentity(
            pipeline="toy", run_key=place, interval_start="", interval_end=manifest.interval_end, timezone="UTC",
            dag_id="toy", task_id="features", run_id="r", try_number=1,
        )  # fmt: skip
        settings = {"feature_set": f"include.features_toy.features:{name}", "online": None, "sample": sample}
        context = StepContext(
            input=StepInput(step="features", run=identity, config=settings, ref=validation),
            deployment=ProcessSettings(home=home, store=store.uri, tracking_uri="", result_path=tmp_path / "r", rank=0),
            store=store,
            scratch=tmp_path,
        )
        return features.run(context)

    return run_features


def manifest_of(store: Store, ref: FeaturesRef) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(store.read(ref.artifacts["manifest"]))
    return manifest


def by_id(table: FeatureTable) -> dict[int, tuple[bytes, bytes]]:
    assert table.ids is not None
    singles = [table.samples(i, i + 1) for i in range(table.num_samples)]
    return {
        int(id_): (one.features.tobytes(), one.labels.tobytes()) for id_, one in zip(table.ids, singles, strict=True)
    }


def test_splits_are_materialised(run: Run, store: Store, tmp_path: Path) -> None:
    """What training reads: rows of the right days, queries whole, single rows left out."""
    ref = run()

    assert ref.num_samples == {"train": 30, "validation": 12, "test": 18}
    assert ref.num_features == 5
    train = open_split(store, ref, "train", tmp_path)
    assert train.features.shape == (60, 5)
    assert np.diff(train.offsets).tolist() == [2] * 30
    # Fitted on the training split alone: there, and only there, the mean is 0.
    assert abs(train.features[:, 0].mean()) < 1e-6
    assert open_split(store, ref, "test", tmp_path).features[:, 0].min() > train.features[:, 0].max()


@pytest.mark.parametrize("name", ["FEATURES", "ROWS"])
def test_a_sample_is_of_whole_samples_to_train_on(run: Run, store: Store, tmp_path: Path, name: str) -> None:
    """Broken: a quick look would cut queries apart, or be measured on other rows than the model that it is for."""
    whole, some, more = run(name), run(name, place="s", sample=0.3), run(name, place="m", sample=0.6)
    all_of_them, few, many = (
        by_id(open_split(store, ref, "train", tmp_path / ref.place)) for ref in (whole, some, more)
    )  # fmt: skip
    assert 0 < len(few) < len(many) < len(all_of_them)
    assert by_id(open_split(store, run(name, place="a", sample=1.0), "train", tmp_path / "a")) == all_of_them
    assert few.items() <= many.items() <= all_of_them.items(), "as they are among all, fitted on all"
    for split in ("validation", "test"):
        assert by_id(open_split(store, some, split, tmp_path / f"{split} some")) == by_id(
            open_split(store, whole, split, tmp_path / f"{split} whole")
        )
    assert whole.version == some.version == more.version, "the same features, of fewer samples"
    assert len({ref.digest() for ref in (whole, some, more)}) == 3
    with pytest.raises(BadDataError, match=r"no samples in the split 'train'.*raise features\.sample"):
        run(name, place="n", sample=1e-6)


def test_again_gives_the_same_ref(run: Run) -> None:
    """Otherwise a retry would train on other bytes."""
    assert run() == run()


@pytest.mark.parametrize(
    "split",
    [TimeSplit(validation=2, test=3), KeySplit(key="query", validation=0.2, test=0.3)],
    ids=["time", "key"],
)
def test_what_is_held_out_cannot_influence_the_training_split(
    run: Run, store: Store, table: pl.DataFrame, split: TimeSplit | KeySplit
) -> None:
    """Otherwise a model is judged on rows that it has, in part, been fitted to."""
    before = run("ROWS", split=split)
    held = pl.concat([held_out(store, before, name) for name in ("validation", "test")])
    changed = table.with_columns(
        pl.when(pl.col("at").is_in(held["at"])).then(new).otherwise(pl.col(name)).alias(name)
        for name, new in {
            "value": pl.lit(-1e9),
            "other": pl.lit(1e6),
            "kind": pl.lit("new"),
            "grade": pl.lit(4),
        }.items()
    )
    after = run("ROWS", rows=changed, place="changed", split=split)

    assert held.height > 30
    assert store.read(before.artifacts["state"]) == store.read(after.artifacts["state"])
    shards = [
        {
            name: [shard["sha256"] for shard in part["shards"]]
            for name, part in manifest_of(store, ref)["splits"].items()
        }
        for ref in (before, after)
    ]
    assert shards[0]["train"] == shards[1]["train"]
    # The change is one that the features do see, so that the comparison means something.
    assert shards[0]["validation"] != shards[1]["validation"]
    assert shards[0]["test"] != shards[1]["test"]


@pytest.mark.parametrize("name", ["FEATURES", "ROWS"])
def test_batches_leave_no_trace(run: Run, store: Store, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that does not fit into memory is worked on in batches: the same bytes must come out."""
    whole = run(name, place="whole")
    # Far fewer rows than a split has; the default holds it whole.
    monkeypatch.setattr(
        materialise, "batches_of", lambda table, group_by, rows: batches.batches_of(table, group_by, rows=10)
    )
    batched = run(name, place="batched")

    first, second = ([s["shards"] for s in manifest_of(store, ref)["splits"].values()] for ref in (whole, batched))
    assert [[shard["sha256"] for shard in part] for part in first] == [
        [shard["sha256"] for shard in part] for part in second
    ]
    assert whole.artifacts["state"].sha256 == batched.artifacts["state"].sha256
    assert whole.version == batched.version


def test_manifest_says_what_the_shards_hold(run: Run, store: Store) -> None:
    manifest = manifest_of(store, run())

    assert manifest["feature_names"] == ["double", "kind=a", "kind=b", "kind=c", "kind=<other>"]
    assert manifest["grouped"] is True
    assert manifest["engine"]["polars"] == pl.__version__
    rows = {name: (part["num_samples"], part["num_rows"]) for name, part in manifest["splits"].items()}
    assert rows == {"train": (30, 60), "validation": (12, 24), "test": (18, 36)}


def test_shards_hold_the_entity_and_the_time(run: Run, store: Store, table: pl.DataFrame) -> None:
    """The feature store finds a row by them."""
    [shard] = manifest_of(store, run())["splits"]["test"]["shards"]
    rows = pl.DataFrame(pa.ipc.open_file(store.get(shard["key"])).get_batch(0))

    joined = rows.select("label", kind="key.kind", at="event_time").join(table, on=["at", "kind"])
    assert joined.height == rows.height == 36
    assert (joined["label"] == joined["grade"]).all()


def test_stored_features_outlive_the_checkout(run: Run, store: Store, home: Path, tmp_path: Path) -> None:
    """Otherwise the champion would be evaluated with the candidate's features."""
    ref = run()
    (home / "include/features_toy/features.py").write_text(RECIPE.replace("FACTOR", "-3"))

    fitted = load_fitted(store, ref, tmp_path / "scratch")
    frame = held_out(store, ref)

    table = fitted.apply(frame)
    assert by_id(table) == by_id(open_split(store, ref, "test", tmp_path))
    assert fitted.arranged(frame).rows["grade"].to_list() == table.labels.tolist()


def test_changed_code_is_another_version(run: Run, home: Path) -> None:
    """Otherwise two meanings of a feature could not be told apart."""
    before = run().version
    path = home / "include/features_toy/features.py"
    path.write_text(path.read_text() + "# changed\n")

    assert run().version != before


def test_features_of_another_engine_are_not_loaded(
    run: Run, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of Polars may compute another last bit than the model was trained on."""
    ref = run()
    monkeypatch.setattr(pl, "__version__", "99.1")

    expected = r"made with polars 2.*, transforms 2, and here are polars 99\.1.*run features and training again"
    with pytest.raises(BadConfigError, match=expected):
        load_fitted(store, ref, tmp_path / "scratch")


def test_an_unknown_split_is_refused(run: Run, store: Store) -> None:
    with pytest.raises(BadDataError, match="no split 'tset'; its splits: train, validation, test"):
        held_out(store, run(), "tset")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        pytest.param("NOTHING", BadConfigError, "has no 'NOTHING'", id="no such name"),
        pytest.param("NO_SET", BadConfigError, "is a dict, not a FeatureSet", id="not a set"),
        pytest.param(
            "TYPO", BadConfigError,
            r"^include/features_toy/features.py:23: Standardise\('valeu'\): there is no column 'valeu'; did you mean "
            r"'value'\?$",
            id="column",
        ),
        pytest.param("UNFAIR", BadConfigError, "features.py:15: served values of 'gap' differ", id="serving parity"),
        pytest.param("EMPTY", BadDataError, "no samples in the split 'validation'", id="empty split"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(run: Run, name: str, error: type[Exception], message: str) -> None:
    """The user must learn from the message what to change; a retry cannot help."""
    with pytest.raises(error, match=message):
        run(name)


def test_a_definition_that_fails_while_it_is_imported_says_so_itself(run: Run, home: Path) -> None:
    """ "cannot import, check the path" would lead away from the mistake."""
    path = home / "include/features_toy/features.py"
    path.write_text(path.read_text() + 'FEATURES = Bucketise("value", buckets=1)\n')
    line = path.read_text().count("\n")

    expected = f"include/features_toy/features.py:{line}: Bucketise('value'): buckets must be at least 2, got 1"
    with pytest.raises(BadConfigError, match=f"^{re.escape(expected)}$"):
        run()
