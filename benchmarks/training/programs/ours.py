"""Our loop as a contender: shards in a local store, memory-mapped, read by the loader; and the data for the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.rounds import OURS
from benchmarks.training.programs.contenders import CLIP_NORM, LEARNING_RATE, WEIGHT_DECAY, Contender, Task
from benchmarks.training.programs.workloads import (
    CONTEXT,
    NUM_FEATURES,
    SEED,
    VOCABULARY,
    Stopwatch,
    Workload,
    binary_losses,
    table,
    tokens,
)
from mlops.code import load_attribute
from mlops.contract.refs import DatasetRef, FeaturesRef, ValidationRef, canonical_json
from mlops.contract.sections.checkpointing import Checkpointing
from mlops.contract.sections.train import Train
from mlops.data.shards.batch import Batch
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.loader import Loader
from mlops.data.shards.shard_reading import open_source
from mlops.data.shards.shard_writing import write_split
from mlops.data.shards.tokens import write_tokens
from mlops.elastic.node_memory import NodeMemory
from mlops.metrics.metric import load_metric
from mlops.objectives.objective import load_objective
from mlops.store import Store
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.health import Heartbeat
from mlops.trainer.job import TrainingJob
from mlops.trainer.loop import Trainer
from mlops.trainer.memory.peer_memory import PeerMemory
from mlops.trainer.memory.seats import seats_from_environment
from mlops.trainer.optimizer import build_optimizer
from mlops.trainer.parallel import Ranks, join, leave
from mlops.trainer.strategies import ParallelStrategy, build_strategy
from mlops.trainer.training_loss import TrainingLoss
from mlops.trainer.validation import Validation

EPOCH: Final = 1
"""The only one."""
NO_RECIPE: Final = partial(load_attribute, home=Path())
NO_TABLE: Final = FeatureTable(
    features=np.empty((0, 1), np.float32), labels=np.empty(0, np.float32), offsets=np.zeros(1, np.int64)
)


def write(store: Store, workload: Workload) -> FeaturesRef:
    """The training split that the features step would leave. Rank 0 alone."""
    if workload.losses is binary_losses:
        features, labels = table(workload.num_samples)
        split = FeatureTable(features=features, labels=labels, offsets=np.arange(len(features) + 1))
        train = write_split(store, "features", "train", split)
    else:
        stream = tokens(workload.num_samples * CONTEXT + 1)
        train = write_tokens(
            store, "features", "train", [stream], context=CONTEXT, eos=None, vocab_size=VOCABULARY
        )  # fmt: skip
    return features_ref(store, {"train": train})


def features_ref(store: Store, splits: Mapping[str, Mapping[str, Any]]) -> FeaturesRef:
    """:param splits: their parts of the manifest"""
    manifest = canonical_json({"grouped": False, "splits": splits})
    dataset = DatasetRef(
        place="ingest/bench",
        name="bench",
        version="1" * 64,
        schema_hash="2" * 64,
        num_rows=1,
        num_bytes=1,
        interval_start="2013-01-09T05:00:00+00:00",
        interval_end="2013-02-08T05:00:00+00:00",
    )
    return FeaturesRef(
        place="features",
        artifacts={"manifest": store.put_artifact("features", "manifest.json", manifest)},
        version="4" * 64,
        num_features=NUM_FEATURES,
        num_samples={name: split["num_samples"] for name, split in splits.items()},
        parent=ValidationRef(place="validate/bench", schema_sha256="3" * 64, num_checks=1, parent=dataset),
    )


class Unvalidated(Validation):
    """The clock stops before the end of the epoch: what comes then is not measured."""

    def measure(
        self,
        strategy: ParallelStrategy,
        ranks: Ranks,
        beat: Callable[[], None] = lambda: None,
        *,
        seed: Sequence[int] = (),
    ) -> tuple[float, Mapping[str, float]]:
        return 0.0, {}


class Ours:
    """
    A seat in the gang, and what is trained there.

    :param folder: rank 0's counts
    """

    def __init__(self, workload: Workload, folder: Path) -> None:
        self._workload, self._own_folder = workload, folder
        self._number = 0

    def __enter__(self) -> Ours:
        self.ranks: Ranks = join()
        # What ours asks for, the others need not bear.
        torch.use_deterministic_algorithms(False)
        self._folder = Path(self.ranks.from_leader(str(self._own_folder)))
        self._store = Store(f"file://{self._folder}/store")
        # As the agent of a node gives them to its ranks; here each has its own.
        memory = NodeMemory(self.ranks.world_size)
        os.environ.update(memory.environment())
        self._seats = seats_from_environment()
        self._features = self.ranks.from_leader(write(self._store, self._workload) if self.leads else None)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is None:
            leave(self.ranks)

    @property
    def leads(self) -> bool:
        return self.ranks.leads

    def loader(self, logical_shards: int | None = None) -> Loader:
        assert self._features is not None, "rank 0 has written them"
        return Loader(
            source=open_source(self._store, self._features, "train", self._folder / "cache"),
            global_batch=self._workload.global_batch,
            seed=SEED,
            rank=self.ranks.data_rank,
            world_size=self.ranks.data_world_size,
            logical_shards=logical_shards,
        )

    def task(self) -> Task:
        """The same samples in the same global batches, in memory, and who takes which."""
        assert self._features is not None, "rank 0 has written them"
        source = open_source(self._store, self._features, "train", self._folder / "cache")
        whole = source.gather(np.arange(self._workload.num_samples), 1.0)
        order = [
            torch.from_numpy(np.concatenate([batch.samples for batch in step.batches]))
            for step in self.loader().epoch(EPOCH)
        ]
        return Task(
            workload=self._workload,
            features=whole.features,
            labels=whole.labels,
            order=order,
            world_size=self.ranks.world_size,
        )

    def contenders(self) -> dict[str, Contender]:
        plain: dict[str, Contender] = {OURS: partial(self.train, None)}
        gangs: dict[str, Contender] = {
            # As many logical shards as processes, a power of two: the default.
            "exact": partial(self.train, self._workload.processes),
            "peers": partial(self.train, None, peers=True),
        }
        return plain | (gangs if self._workload.processes > 1 else {})

    def train(self, logical_shards: int | None, task: Task, watch: Stopwatch, *, peers: bool = False) -> nn.Module:
        """
        As the train step does, without tracking, which has a benchmark of its own.

        :param peers: ready to keep the state where a rank is lost
        """
        torch.use_deterministic_algorithms(True)
        try:
            return self._train(logical_shards, task, watch, peers)
        finally:
            torch.use_deterministic_algorithms(False)

    def _train(self, logical_shards: int | None, task: Task, watch: Stopwatch, peers: bool) -> nn.Module:
        ranks = self.ranks
        config = train_config(logical_shards)
        strategy = build_strategy(task.workload.build(), ranks, logical_shards=logical_shards)
        self._number += 1
        calls = count(1)
        calls_per_step = 1 if logical_shards is None else logical_shards // ranks.world_size

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            if next(calls) % calls_per_step == 0:
                watch.tick()
            return task.workload.losses(model, batch.features, batch.labels)

        job = TrainingJob(
            config=config,
            strategy=strategy,
            optimizer=build_optimizer(config, strategy.model, None),
            loss=TrainingLoss(loss=loss),
            loader=self.loader(logical_shards),
            validation=Unvalidated.of_table(
                NO_TABLE,
                grouped=False,
                objective=load_objective("binary", {}, NO_RECIPE),
                metric=load_metric("auc", NO_RECIPE),
            ),
            checkpoints=Checkpoints(
                store=self._store,
                place=f"train/{self._number}",
                ranks=ranks,
            ),
            heartbeat=Heartbeat(self._folder if ranks.leads else None, ranks.rank),
            memory=PeerMemory(ranks, place="bench", seats=self._seats if peers else ()),
        )
        Trainer(job, ranks).train()
        return strategy.model


def train_config(logical_shards: int | None) -> Train:
    """The defaults of :class:`mlops.contract.sections.train.Train`, but for the sizes."""
    return Train(
        model="include.bench.model:build",
        objective="binary",
        metric="auc",
        epochs=1,
        global_batch=1,  # the loader's counts
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        clip_norm=CLIP_NORM,
        self_test="never",
        max_restarts=0,
        elastic="fast" if logical_shards is None else "exact",
        logical_shards=logical_shards or 1,
        collective_timeout_seconds=60.0,
        hang_seconds=60.0,
        checkpoint=Checkpointing(peers=0),
        seed=SEED,
    )
