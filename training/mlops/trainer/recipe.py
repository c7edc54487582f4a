"""What a training makes of a recipe: the model, its optimizer, the loss, and the loader of its features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.optim import Optimizer

from mlops.code import load_attribute, recipe_folder
from mlops.contract.code_files import code_digest
from mlops.contract.refs import DatasetRef, FeaturesRef, digest_of
from mlops.contract.resumption import TrainingFacts
from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError, BadDataError
from mlops.data.shards.batch import Batch
from mlops.data.shards.dealing import PASS_WORTH_ROWS
from mlops.data.shards.loader import Difficulty, Loader
from mlops.data.shards.shard_cache import node_folder
from mlops.data.shards.shard_reading import open_source
from mlops.metrics.metric import Metric, load_metric
from mlops.objectives.objective import LoadedObjective, load_objective
from mlops.random_states import seed_everything
from mlops.store import Store
from mlops.trainer.model import build_model, refuse_untrainable
from mlops.trainer.optimizer import build_optimizer
from mlops.trainer.parallel import Ranks
from mlops.trainer.self_test import SelfTest
from mlops.trainer.strategies import ParallelStrategy, build_strategy
from mlops.trainer.training_loss import TrainingLoss
from mlops.trainer.warm_start import freeze, load_weights, matching


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """
    Called by all ranks, with the same settings.

    :param home: folder that holds ``include/``
    :param manifest: of the features
    """

    config: Train
    ranks: Ranks
    home: Path
    store: Store
    features: FeaturesRef
    manifest: Mapping[str, Any]

    def model(self) -> nn.Module:
        """The same at each call: random numbers begin anew."""
        config = self.config
        assert config.model is not None, "of learner: torch"
        seed_everything(config.seed)
        factory = load_attribute(config.model, self.home)
        vocab_size = self.manifest.get("vocab_size")
        model = build_model(
            factory,
            config.model,
            self.features.num_features,
            config.model_args,
            vocab_size=vocab_size,
            num_outputs=self.objective.functions.num_outputs,
            tells_unread=True,
        )
        refuse_untrainable(model, config.model)
        if config.initialise is not None:
            load_weights(model, config.initialise, self.store, self.home, as_they_are=config.epochs == 0)
        freeze(model, config.freeze)
        patterns = [each.parameters for each in config.learning_rates]
        matching(patterns, dict(model.named_parameters(remove_duplicate=False)), "train.learning_rates")
        return model

    def parallelise(self, model: nn.Module) -> tuple[ParallelStrategy, Optimizer]:
        """Over the processes; see :func:`build_strategy`."""
        config = self.config
        strategy = build_strategy(
            model,
            self.ranks,
            precision=config.precision,
            activation_checkpointing=config.activation_checkpointing,
            compile=config.compile,
            logical_shards=self._logical_shards,
            unused_parameters=config.unused_parameters,
        )
        configure = self.function("configure_optimizer")
        return strategy, build_optimizer(config, strategy.model, configure, strategy.names)

    def facts(self, optimizer: Optimizer) -> TrainingFacts:
        """
        Return what the training is, for its checkpoints.

        :param optimizer: as it was built
        """
        assert self.config.model is not None, "of learner: torch"
        splits = {name: dict(self.manifest["splits"][name]) for name in ("train", "validation")}
        for split in splits.values():
            # Not where they lie: features that were made again are the same.
            split["shards"] = [{name: shard[name] for name in shard.keys() - {"key"}} for shard in split["shards"]]
        mine = {
            f"{name}={value!r}"
            for group in optimizer.param_groups
            for name, value in group.items()
            if name not in ("params", "lr", "initial_lr")
        }
        # Stages of a pipeline have parameters of their own.
        options = {option for found in self.ranks.gather_objects(mine) or () for option in found}
        return TrainingFacts(
            settings=self.config.model_dump(mode="json"),
            samples=digest_of({"splits": splits, "grouped": self.manifest["grouped"]}),
            dataset=self.features.ancestor(DatasetRef).version,
            code=code_digest([recipe_folder(self.home, self.config.model)]),
            optimizer=self.ranks.from_leader(sorted(options)),
        )

    @property
    def loss(self) -> TrainingLoss:
        return TrainingLoss(
            loss=self.function("loss") or self.objective.functions.loss,
            curriculum=self.function("curriculum"),
            lengths=self.config.sequence_lengths,
        )

    @property
    def objective(self) -> LoadedObjective:
        return load_objective(self.config.objective, self.config.objective_settings, self._own)

    def metric(self, name: str) -> Metric:
        return load_metric(name, self._own)

    def loader(self) -> Loader:
        """Return the loader of the training split."""
        config, ranks = self.config, self.ranks
        return Loader(
            source=open_source(self.store, self.features, "train", node_folder()),
            global_batch=config.global_batch,
            seed=config.seed,
            rank=ranks.data_rank,
            world_size=ranks.data_world_size,
            micro_batch=config.micro_batch,
            micro_batch_rows=config.micro_batch_rows,
            # What a pass takes beside its rows was measured on CPUs only.
            pass_worth_rows=PASS_WORTH_ROWS if ranks.device.type == "cpu" else None,
            one_shape=ranks.parallel.pp > 1,
            logical_shards=self._logical_shards,
            difficulty=self._difficulty,
            ordered_epochs=config.sample_order.ordered_epochs(config.epochs) if config.sample_order else 0,
            pin=ranks.device.type == "cuda",
        )

    def self_test(self, loader: Loader) -> SelfTest:
        named = [self.function(name) for name in ("loss", "curriculum", "configure_optimizer")]
        return SelfTest(
            config=self.config,
            ranks=self.ranks,
            loader=loader,
            build=lambda: self.parallelise(self.model()),
            loss=self.loss,
            functions=[type(self.objective.functions), *(each for each in named if each is not None)],
        )

    def function(self, setting: str) -> Any:
        """The recipe's function that a setting names; None where it names none."""
        import_path = getattr(self.config, setting)
        return None if import_path is None else self._named(import_path, setting)

    def _named(self, import_path: str, setting: str) -> Any:
        function = load_attribute(import_path, self.home)
        if not callable(function):
            raise BadConfigError(f"train.{setting}: {import_path} is a {type(function).__name__}, not a function")
        return function

    @property
    def _difficulty(self) -> Difficulty | None:
        if (order := self.config.sample_order) is None:
            return None
        function = self._named(order.by, "sample_order.by")

        def measure(batch: Batch) -> npt.NDArray[np.float64]:
            with torch.no_grad():
                found = torch.as_tensor(function(batch), dtype=torch.float64)
            if found.shape != (size := len(batch.samples),):
                raise BadConfigError(
                    f"train.sample_order.by: {order.by} returned the shape {tuple(found.shape)} for {size} samples; it "
                    "must be a number for each"
                )
            if not bool((known := found.isfinite()).all()):
                wrong = int(known.int().argmin())
                raise BadDataError(
                    f"train.sample_order.by: {order.by} measures the training sample {batch.samples[wrong]} as "
                    f"{found[wrong].item()}; it must be a finite number"
                )
            values: npt.NDArray[np.float64] = found.numpy()
            return values

        return measure

    def _own(self, import_path: str) -> object:
        return load_attribute(import_path, self.home)

    @property
    def _logical_shards(self) -> int | None:
        return self.config.logical_shards if self.config.exact else None
