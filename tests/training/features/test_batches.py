from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import narwhals as nw
import numpy as np
import polars as pl
import pytest
from feature_tables import apply, fit
from turns import on_turn

from mlops.data.engine.engines import on_spark, spark_session
from mlops.data.shards.feature_table import concat
from mlops.data.shards.shard_writing import SplitWriter
from mlops.features import fitting
from mlops.features.applied import FittedFeatures
from mlops.features.batches import batches_of
from mlops.features.feature_set import FeatureSet
from mlops.features.transforms import Bucketise, Passthrough, Standardise, Vocabulary
from mlops.store import Store


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    chance = random.Random(1)
    return pl.DataFrame(
        {
            "group": [f"g{i % 211}" for i in range(3000)],
            "item": list(range(3000)),
            "x": [chance.gauss(2013, 0.1) for _ in range(3000)],
            "kind": [chance.choice([None, "a", "b", "c"]) for _ in range(3000)],
            "grade": [1] * 3000,
        },
        schema_overrides={"item": pl.UInt16},
    )


def test_few_rows_are_one_batch(rows: pl.DataFrame) -> None:
    with batches_of(nw.from_native(rows.lazy()), []) as batches:
        assert list(batches.map(lambda frame: frame.height)) == [3000]


def test_rows_are_cut_anywhere_and_none_is_lost(rows: pl.DataFrame) -> None:
    with batches_of(nw.from_native(rows.lazy()), [], rows=1024) as batches:
        for _ in range(2):  # as fitting does, and then applying
            frames = list(batches.map(lambda frame: frame))

            assert len(frames) >= 3
            assert max(frame.height for frame in frames) <= 1024
            assert pl.concat(frames).equals(rows)


def test_groups_stay_whole_and_batches_small(rows: pl.DataFrame) -> None:
    """Otherwise the rank within a query would be one within a part of it."""
    with batches_of(nw.from_native(rows.lazy()), ["group"], rows=500) as batches:
        for _ in range(2):
            frames = list(batches.map(lambda frame: frame))

            assert len(frames) == 6
            assert max(frame.height for frame in frames) < 1000
            assert pl.concat(frames).sort("item").equals(rows)
            groups = [set(frame["group"]) for frame in frames]
            assert sum(map(len, groups)) == 211


def features_of(group_by: tuple[str, ...]) -> FeatureSet:
    place = nw.col("x").rank("min").over("group") if group_by else nw.col("x") * 2
    return FeatureSet(
        label="grade",
        group_by=group_by,
        order_by=("item",),
        derived={"place": place},
        transforms=[
            Standardise("x"),
            Bucketise("place", buckets=5),
            Vocabulary("kind", min_count=700, missing="indicator"),
            Passthrough("place"),
        ],
    )


GROUPED = pytest.mark.parametrize("group_by", [(), ("group",)], ids=["rows", "groups"])


@GROUPED
def test_state_does_not_depend_on_the_batches(rows: pl.DataFrame, group_by: tuple[str, ...]) -> None:
    """Otherwise a machine with more memory would train another model."""
    states = []
    for size in (5000, 700, 64):
        with batches_of(nw.from_native(rows.lazy()), group_by, rows=size) as batches:
            states.append(fitting.fit(features_of(group_by), batches))

    assert states[0] == states[1] == states[2]


@pytest.mark.server
@GROUPED
def test_spark_makes_the_same_features(rows: pl.DataFrame, group_by: tuple[str, ...]) -> None:
    """Otherwise a pipeline could not move to Spark when its data grows: state and features must be equal to the bit."""
    features = features_of(group_by)
    state = fit(features, rows)
    expected = apply(features, rows, state)
    table = on_spark([rows[::2].lazy, rows[1::2].lazy], spark_session())

    with batches_of(table, group_by, rows=1500) as batches:
        assert fitting.fit(features, batches) == state
        made = concat(list(batches.map(FittedFeatures(features, state).apply)))

    assert made.ids is not None
    assert expected.ids is not None
    made, expected = made.take(np.argsort(made.ids)), expected.take(np.argsort(expected.ids))
    assert np.array_equal(made.features.view(np.uint32), expected.features.view(np.uint32))
    assert np.array_equal(made.offsets, expected.offsets)


def test_rows_that_are_alike_are_stored_as_the_same_bytes(rows: pl.DataFrame, tmp_path: Path) -> None:
    """Without keys: whatever order, batch or bucket they come in, the model sees each as often as it is there."""
    features = FeatureSet(
        label="grade", transforms=[Bucketise("x", buckets=5), Vocabulary("kind", missing="indicator")]
    )
    alike = rows.with_columns(pl.col("x").round(1))
    fitted = FittedFeatures(features, fit(features, alike))
    stored = []
    for number, (frame, size, num_bytes) in enumerate(
        [(alike, 5000, 0), (alike.sample(fraction=1, shuffle=True, seed=3), 700, 1 << 20)]
    ):
        store = Store(f"file://{tmp_path}/{number}")
        limits = {"num_bytes": num_bytes, "bucket_bytes": 1 << 17, "max_shard_bytes": 1 << 15}
        with (
            batches_of(nw.from_native(frame.lazy()), [], rows=size) as batches,
            SplitWriter(store, "f", "train", alike=True, **limits) as writer,
        ):
            for table in batches.map(fitted.apply):
                writer.add(table)
            part = writer.finish()
        assert (part["num_rows"], part["num_samples"]) == (3000, 3000)
        stored.append([shard["sha256"] for shard in part["shards"]])
    assert stored[0] == stored[1]
    assert len(stored[0]) > 1


LARGE = """
import resource, sys
from pathlib import Path
import narwhals as nw, numpy as np, polars as pl
from mlops.data.shards.shard_writing import SplitWriter
from mlops.features.applied import FittedFeatures
from mlops.features.batches import batches_of
from mlops.features.feature_set import FeatureSet
from mlops.features.fitting import fit
from mlops.features.transforms import Standardise
from mlops.store import Store

FILES, ROWS, COLUMNS = 20, 40_000, 64
folder = Path(sys.argv[1])
for number in range(FILES):
    rng = np.random.default_rng(number)
    item = np.arange(ROWS) + number * ROWS
    columns = {f"x{k}": rng.normal(size=ROWS) for k in range(COLUMNS)}
    rows = pl.DataFrame({"item": item, "group": rng.permutation(item) // 5, "y": item % 2, **columns})
    rows.write_parquet(folder / f"{number:02d}.parquet", compression="uncompressed")

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

before = peak()
features = FeatureSet(
    label="y", group_by=("group",), order_by=("item",), transforms=[Standardise(f"x{k}") for k in range(COLUMNS)]
)
with batches_of(nw.from_native(pl.scan_parquet(folder / "*.parquet")), features.group_by, rows=20_000) as batches:
    fitted = FittedFeatures(features, fit(features, batches))
    num_bytes = 4 * COLUMNS * batches.num_rows
    store, limits = Store(f"file://{folder}/store"), {"bucket_bytes": 1 << 23, "max_shard_bytes": 1 << 24}
    with SplitWriter(store, "f", "train", num_bytes=num_bytes, **limits) as writer:
        for table in batches.map(fitted.apply):
            writer.add(table)
        part = writer.finish()
assert part["num_rows"] == FILES * ROWS
print(peak() - before)
"""


@on_turn(1, 2)
def test_a_split_need_not_fit_into_memory(tmp_path: Path) -> None:
    """410 MB of rows and 205 MB of features, grouped and shuffled by way of the disk."""
    done = subprocess.run([sys.executable, "-c", LARGE, str(tmp_path)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 300, done.stdout
