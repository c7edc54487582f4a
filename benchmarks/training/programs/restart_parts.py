"""
``python -m benchmarks.training.programs.restart_parts features STORE``: store splits to train on; prints their ref.
``... parts STORE PLACE``: seconds that a process needs to start, to import torch, and to load the newest checkpoint.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def features(store_folder: Path) -> dict[str, Any]:
    import numpy as np

    from benchmarks.training.programs.ours import features_ref
    from benchmarks.training.programs.workloads import table
    from mlops.data.shards.feature_table import FeatureTable
    from mlops.data.shards.shard_writing import write_split
    from mlops.store import Store

    store = Store(f"file://{store_folder}")
    splits = {}
    for name, num_rows in (("train", 1_000_000), ("validation", 2_000)):
        values, labels = table(num_rows)
        split = FeatureTable(features=values, labels=labels, offsets=np.arange(num_rows + 1))
        splits[name] = write_split(store, "features", name, split)
    ref = features_ref(store, splits)
    # A step takes what others have committed.
    for made in ref.lineage():
        store.commit(made)
    return ref.to_wire()


def parts(store_folder: Path, place: str) -> dict[str, float]:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    imported = time.perf_counter()
    # The import of torch contains another start.
    start = started - begin
    return {"start": start, "import": imported - started - start, "load": load(store_folder, place)}


def load(store_folder: Path, place: str) -> float:
    from mlops.store import Store
    from mlops.trainer.checkpoint.checkpoints import Checkpoints
    from mlops.trainer.parallel import Ranks

    store = Store(f"file://{store_folder}")
    begin = time.perf_counter()
    checkpoints = Checkpoints(store=store, place=place, ranks=Ranks())
    saved = checkpoints.newest()
    assert saved is not None, "the training has left one"
    checkpoints.load_whole(saved)
    return time.perf_counter() - begin


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    print(json.dumps(features(Path(folder)) if what == "features" else parts(Path(folder), *rest)))
