"""
Rows per second of our loader beside a plain gather and other loaders: 1M rows of 31 float32 and a label, shuffled, in
batches of 1024, from local disk, in the process itself.

The rate of readers by the row does not depend on the size, so they have a part of the table.

And what one of 1,024 ranks computes to know its samples, beside torch's sampler, which holds an index of them all.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from benchmarks.rounds import OURS, in_rotation, paired, records
from benchmarks.training.programs import formats
from benchmarks.training.programs.formats import BATCH, Reader
from benchmarks.training.programs.ours import features_ref
from benchmarks.training.programs.workloads import NUM_FEATURES, SEED, table
from mlops.data.shards.batch import IntArray
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.loader import Loader
from mlops.data.shards.shard_reading import open_source
from mlops.data.shards.shard_writing import write_split
from mlops.store import Store

NUM_ROWS: Final = 1_000_000
BY_THE_ROW: Final = 5_000
ROUNDS: Final = 5
ROW_BYTES: Final = 4 * (NUM_FEATURES + 1)
RANKS: Final = 1024
MANY_SAMPLES: Final = 10_000_000
LARGE_BATCH: Final = 64 * RANKS
TARGETS: Final = {"gather": 0.8}
"""Of the others: to be ahead."""


def readers(scratch: Path) -> dict[str, Reader]:
    """Write the table in every format."""
    features, labels = table(NUM_ROWS)
    few = features[:BY_THE_ROW], labels[:BY_THE_ROW]
    for name, array in (("features", features), ("labels", labels)):
        np.save(scratch / f"{name}.npy", array)
    mapped = [np.load(scratch / f"{name}.npy", mmap_mode="r") for name in ("features", "labels")]
    rows = formats.write_webdataset(scratch / "rows", *few, rows=1)
    blocks = formats.write_webdataset(scratch / "blocks", features, labels, rows=BATCH)
    formats.write_mosaic(scratch / "mosaic", *few)
    formats.write_litdata(scratch / "litdata", *few)

    def reader(description: str, num_rows: int, batches: Callable[[], Iterator[Sequence[Any]]]) -> Reader:
        return Reader(description=description, num_rows=num_rows, batches=batches)

    return {
        OURS: reader("", NUM_ROWS, ours(scratch, features, labels)),
        "gather": reader("a plain memory-mapped gather", NUM_ROWS, partial(formats.plain, *mapped)),
        "torchdata": reader("torchdata's StatefulDataLoader", NUM_ROWS, partial(formats.stateful, *mapped)),
        "webdataset_blocks": reader(
            "WebDataset, blocks of 1024 rows, which stay as they are", NUM_ROWS,
            partial(formats.read_webdataset, blocks, BATCH),
        ),
        "webdataset": reader("WebDataset, by the row", BY_THE_ROW, partial(formats.read_webdataset, rows, 1)),
        "streaming": reader("MosaicML Streaming", BY_THE_ROW, partial(formats.read_mosaic, scratch / "mosaic")),
        "litdata": reader("litdata", BY_THE_ROW, partial(formats.read_litdata, scratch / "litdata")),
    }  # fmt: skip


def ours(
    scratch: Path, features: formats.FloatArray, labels: formats.FloatArray
) -> Callable[[], Iterator[Sequence[Any]]]:
    """Shards as the features step writes them, in a local store; an epoch of the only rank."""
    store = Store(f"file://{scratch}/store")
    split = FeatureTable(features=features, labels=labels, offsets=np.arange(len(features) + 1))
    ref = features_ref(store, {"train": write_split(store, "features", "train", split)})
    source = open_source(store, ref, "train", scratch / "cache")
    loader = Loader(source=source, global_batch=BATCH, seed=SEED, rank=0, world_size=1)

    def batches() -> Iterator[Sequence[Any]]:
        for step in loader.epoch(1):
            for batch in step.batches:
                yield batch.features, batch.labels

    return batches


def read(reader: Reader, seconds_of: Callable[[], float], rates: dict[str, float]) -> float:
    """
    Rows per second; of all processors together in ``rates``.

    :raises RuntimeError: where rows are missing
    """
    begin, cpu_begin = time.perf_counter(), seconds_of()
    num_rows = sum(len(batch[0]) for batch in reader.batches())
    if num_rows != reader.num_rows:
        raise RuntimeError(f"{reader.description or 'ours'} read {num_rows} of {reader.num_rows} rows")
    rates[reader.description] = num_rows / (seconds_of() - cpu_begin)
    return num_rows / (time.perf_counter() - begin)


class Unread:
    """As many samples of which none is read: what is left is the order, and a rank's share of it."""

    grouped = False
    shard_sizes = np.full(100, MANY_SAMPLES // 100)
    window_samples = 1 << 22
    block_samples = 1

    def lengths(self, samples: IntArray) -> IntArray:
        return np.ones(len(samples), np.int64)

    def gather(self, samples: IntArray, weight: float = 1.0) -> Any:
        return samples

    def gather_many(self, parts: Sequence[IntArray], weights: Sequence[float]) -> Any:
        return parts

    def prefetch(self, samples: IntArray) -> None:
        pass


def order_records() -> list[dict[str, Any]]:
    """Milliseconds for each global batch, of one rank and over an epoch."""
    num_batches = math.ceil(MANY_SAMPLES / LARGE_BATCH)
    rank = RANKS // 2

    def computed() -> float:
        loader = Loader(
            source=Unread(), global_batch=LARGE_BATCH, seed=SEED, rank=rank, world_size=RANKS, prefetch=0
        )  # fmt: skip
        begin = time.perf_counter()
        steps = sum(1 for _ in loader.epoch(1))
        assert steps == num_batches
        return 1000 * (time.perf_counter() - begin) / num_batches

    def indexed() -> float:
        begin = time.perf_counter()
        sampler = DistributedSampler(range(MANY_SAMPLES), num_replicas=RANKS, rank=rank, seed=SEED)  # type: ignore[var-annotated,arg-type]
        assert len(list(sampler)) == math.ceil(MANY_SAMPLES / RANKS)
        return 1000 * (time.perf_counter() - begin) / num_batches

    results = in_rotation({OURS: computed, "sampler": indexed}, ROUNDS)
    baselines = {"sampler": ("torch's DistributedSampler, 1,024 ranks, 10 M samples", 1.0)}
    return records("training.order", results, unit="ms", baselines=baselines, better="lower")


def main(scratch: Path) -> list[dict[str, Any]]:
    found = readers(scratch)
    rates: dict[str, list[float]] = {name: [] for name in found}

    def timed(name: str) -> float:
        latest: dict[str, float] = {}
        rate = read(found[name], time.process_time, latest)
        rates[name] += latest.values()
        return rate

    results = in_rotation({name: partial(timed, name) for name in found}, ROUNDS)
    baselines = {name: (reader.description, TARGETS.get(name, 1.0)) for name, reader in found.items() if name != OURS}
    made = records("training.loader", results, unit="rows/s", baselines=baselines)
    return made + gather_records(results, rates) + order_records()


def gather_records(
    results: Mapping[str, Sequence[float]], rates: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """The same beside the plain gather in bytes, and per second of processor, in which our thread counts too."""
    megabytes = {name: [rate * ROW_BYTES / 1e6 for rate in results[name]] for name in (OURS, "gather")}
    # Their first round is not measured.
    cpu = {name: rates[name][1:] for name in (OURS, "gather")}
    made = []
    for name, unit, values in (("loader_bytes", "MB/s", megabytes), ("loader_cpu", "rows/CPU s", cpu)):
        mine, theirs = paired(values[OURS], values["gather"])
        made.append(
            {
                "name": f"training.{name}_vs_gather", "unit": unit, "ours": mine, "baseline_value": theirs,
                "baseline": "a plain memory-mapped gather", "better": "higher", "target": TARGETS["gather"],
            }
        )  # fmt: skip
    return made


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print(json.dumps(main(Path(sys.argv[2]))))
