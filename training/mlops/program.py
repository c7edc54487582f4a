"""
The interface for a torchrun script of your own (``train.program``): its inputs, and how it returns its model::

    from mlops import Program

    program = Program.start()
    model = program.build_model()
    for step in program.loader("train").epoch(1):
        for batch in step.batches:
            losses = program.loss(model, batch) * batch.weights
            ...
    program.finish(model.state_dict(), epoch=1, metrics=program.measure(model))

A script can do without it: the input document is its argument, and its results are two files in ``MLOPS_OUTPUT``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor, nn

from mlops.code import load_attribute
from mlops.contract.refs import FeaturesRef
from mlops.contract.section import check_section
from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError, StepInput
from mlops.data.shards.batch import Batch
from mlops.data.shards.feature_table import FeatureTable
from mlops.data.shards.loader import Loader
from mlops.data.shards.shard_cache import node_folder
from mlops.data.shards.shard_reading import open_source, open_split
from mlops.features.fitted import read_manifest
from mlops.metrics.metric import load_metric
from mlops.objectives.objective import LoadedObjective, load_objective
from mlops.objectives.scoring import SCORING_TOKENS, predict_batches, predict_table
from mlops.process import ProcessSettings
from mlops.store import Store
from mlops.trainer.checkpoint.weights import serialise
from mlops.trainer.model import build_model
from mlops.trainer.script import CHECKPOINTS_VARIABLE, METRICS, OUTPUT_VARIABLE, WEIGHTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One rank's view of the training that the script has to run."""

    config: Train
    """Settings of the ``train`` section."""
    features: FeaturesRef
    rank: int
    world_size: int
    checkpoints: str
    """URI of the folder for the script's checkpoints, the same for each attempt; ``file://`` or ``s3://``."""
    output: Path
    """Local folder for the script's result files."""
    _home: Path
    _store: Store
    _objective: LoadedObjective

    @classmethod
    def start(cls) -> Self:
        """
        Read the training from the environment and the arguments of the script.

        :raises BadConfigError: where this is not the script of a train step
        """
        if OUTPUT_VARIABLE not in os.environ:
            raise BadConfigError(f"{OUTPUT_VARIABLE} is not set: run {sys.argv[0]} by train.program")
        document, deployment = StepInput.load(Path(sys.argv[-1]).read_text()), ProcessSettings.from_environment()
        assert isinstance(document.ref, FeaturesRef)
        config = check_section(Train, document.config, "train")
        own = partial(load_attribute, home=deployment.home)
        return cls(
            config=config,
            features=document.ref,
            rank=deployment.rank,
            world_size=int(os.environ.get("WORLD_SIZE", "1")),
            checkpoints=os.environ[CHECKPOINTS_VARIABLE],
            output=Path(os.environ[OUTPUT_VARIABLE]),
            _home=deployment.home,
            _store=Store(deployment.store),
            _objective=load_objective(config.objective, config.objective_settings, own),
        )

    def build_model(self) -> nn.Module:
        """Build the model in the same way as evaluation will."""
        assert self.config.model is not None, "of learner: torch"
        factory = load_attribute(self.config.model, self._home)
        return build_model(
            factory,
            self.config.model,
            self.features.num_features,
            self.config.model_args,
            vocab_size=self._manifest.get("vocab_size"),
            num_outputs=self._objective.functions.num_outputs,
            tells_unread=True,
        )

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of each sample by the objective, ``[B]``; multiply it by ``batch.weights``."""
        return self._objective.functions.loss(model, batch)

    def measure(self, model: nn.Module, split: str = "validation") -> dict[str, float]:
        """
        Measure ``train.metric`` and ``train.metrics`` on a split, in this process alone.

        :raises BadDataError: where one is not defined on it
        """
        objective, device = self._objective, next(model.parameters()).device
        if objective.spec.inputs == "tokens":
            source = open_source(self._store, self.features, split, node_folder())
            num_samples, block = int(source.shard_sizes.sum()), max(1, SCORING_TOKENS // self.features.num_features)
            labels = np.full(num_samples, self.features.num_features, np.float32)
            offsets = np.arange(num_samples + 1)
            blocks = [np.arange(first, min(first + block, num_samples)) for first in range(0, num_samples, block)]
            predicted = predict_batches(objective.functions, model, map(source.gather, blocks), device)
        else:
            table, grouped = self.table(split), bool(self._manifest["grouped"])
            labels, offsets = table.labels, table.offsets
            predicted = predict_table(objective.functions, model, table, device, grouped=grouped)
        predictions = objective.predictions(labels, predicted, offsets)
        metrics = [load_metric(name, objective.own) for name in (self.config.metric, *self.config.metrics)]
        return {metric.name: metric.measure(predictions) for metric in metrics}

    def table(self, split: str) -> FeatureTable:
        """Return all rows of ``train``, ``validation`` or ``test``."""
        # Of a remote store, fetched into the step's own scratch folder, which the output lies in.
        cache = Path(tempfile.mkdtemp(prefix="shards-", dir=self.output.parent))
        return open_split(self._store, self.features, split, cache)

    def loader(self, split: str = "train") -> Loader:
        """Return this rank's share of each global batch, in the order of ``train.seed``."""
        return Loader(
            source=open_source(self._store, self.features, split, node_folder()),
            global_batch=self.config.global_batch,
            seed=self.config.seed,
            rank=self.rank,
            world_size=self.world_size,
            micro_batch=self.config.micro_batch,
            micro_batch_rows=self.config.micro_batch_rows,
        )

    def finish(self, weights: Mapping[str, Any], *, epoch: int, metrics: Mapping[str, float]) -> None:
        """
        Store the result of the training; does nothing on ranks other than 0.

        :param weights: state dict of what :meth:`build_model` builds
        :param epoch: epoch that the weights are from
        :param metrics: values on the validation split; must include ``train.metric``
        """
        if self.rank == 0:
            (self.output / WEIGHTS).write_bytes(serialise(dict(weights)))
            (self.output / METRICS).write_text(json.dumps({"epoch": epoch, "metrics": dict(metrics)}))

    @property
    def _manifest(self) -> dict[str, Any]:
        return read_manifest(self._store, self.features)
