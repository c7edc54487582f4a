"""Take weights as they are, whatever has trained them: what they are worth is measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from mlops.code import load_extension
from mlops.contract.learners import LEARNERS, TORCH, LearnerSpec
from mlops.contract.metrics import short_name
from mlops.contract.refs import CheckpointRef
from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError, BadDataError, StepError
from mlops.data.shards.shard_reading import open_split
from mlops.learners.learner import load_learner
from mlops.metrics.metric import load_metric
from mlops.objectives.objective import load_objective
from mlops.steps import StepContext
from mlops.steps.publish import TRACKING_SECONDS, Origin, publish, tracked_run
from mlops.trainer.assembly import open_validation
from mlops.trainer.checkpoint.weights import serialise
from mlops.trainer.parallel import Ranks, join
from mlops.trainer.recipe import Recipe
from mlops.trainer.script import ProgramOutput
from mlops.trainer.strategies import build_strategy
from mlops.trainer.trained import Trained
from mlops.trainer.warm_start import keep_weights, read_weights


def take_given(context: StepContext, config: Train, manifest: Mapping[str, Any]) -> CheckpointRef:
    """:return: the weights of ``train.initialise``, with their metrics on the validation split"""
    assert config.initialise is not None, "checked by the section"
    home, is_torch = context.deployment.home, config.learner == TORCH
    ranks = join(deterministic=config.deterministic, float32_matmul=config.float32_matmul) if is_torch else Ranks()
    origin = Origin.of(context, config.model or manifest["feature_set"], ranks)
    origin = replace(origin, initial_weights=keep_weights(config.initialise, context.store, home, context.place))
    found = _measured_torch(context, config, manifest, ranks) if is_torch else _measured_rows(context, config, manifest)
    metrics = {short_name(config.metric): found.value, **found.further}
    with tracked_run(context, config, ranks, found.num_parameters, origin.tags()) as tracked:
        assert tracked is not None, "one process alone"
        tracked.log(ProgramOutput(weights={}, epoch=0, metrics=metrics).point())
        trained = Trained(
            weights=found.weights,
            history=[{"epoch": 0, "validation_metric": found.value, "further_metrics": dict(found.further)}],
            epoch=0,
            metrics={short_name(config.metric): found.value},
            world_size=1,
        )
        ref = publish(context, config, trained, origin, tracked, manifest)
    tracked.finish(TRACKING_SECONDS)
    return ref


class _Measured(NamedTuple):
    weights: bytes
    """As the learner stores them."""
    value: float
    """Of ``train.metric``."""
    further: Mapping[str, float]
    """Of ``train.metrics``."""
    num_parameters: int


def _measured_torch(context: StepContext, config: Train, manifest: Mapping[str, Any], ranks: Ranks) -> _Measured:
    recipe = Recipe(
        config=config, ranks=ranks, home=context.deployment.home, store=context.store, features=context.features,
        manifest=manifest,
    )  # fmt: skip
    model = recipe.model()
    if name := _not_finite(model, recipe):
        raise BadDataError(f"train.initialise: the weights have values in {name} that are not finite")
    weights = serialise(model.state_dict())
    strategy = build_strategy(model, ranks, precision=config.precision)
    value, further = open_validation(recipe, context.scratch).measure(strategy, ranks)
    return _Measured(weights, value, further, sum(parameter.numel() for parameter in model.parameters()))


def _not_finite(model: nn.Module, recipe: Recipe) -> str | None:
    """
    Return the name of a parameter or buffer with values that are not finite; None where there is none.

    A buffer may have them where the model that the recipe builds has them too, as a mask of ``-inf`` does.
    """
    for name, parameter in model.named_parameters():
        if not _finite(parameter).all():
            return name
    odd = {name: finite for name, buffer in model.named_buffers() if not (finite := _finite(buffer)).all()}
    if not odd:
        return None
    built = dict(replace(recipe, config=recipe.config.model_copy(update={"initialise": None})).model().named_buffers())
    return next((name for name, finite in odd.items() if (_finite(built[name]) & ~finite).any()), None)


def _finite(values: torch.Tensor) -> torch.Tensor:
    """Return which values are finite."""
    if values.layout is not torch.strided or not (values.is_floating_point() or values.is_complex()):
        return torch.tensor(True)  # torch cannot tell it of sparse tensors and of quantised ones
    # Nor of floating-point numbers of 8 bits, as they are.
    return (values.float() if values.itemsize == 1 else values).isfinite()


def _measured_rows(context: StepContext, config: Train, manifest: Mapping[str, Any]) -> _Measured:
    assert config.initialise is not None, "checked by the section"
    if not load_extension(LEARNERS, config.learner, LearnerSpec, context.own).reads_only_data:
        raise BadConfigError(
            f"train.epochs: 0: what learner {config.learner} stores may run code, so that nothing of it is taken from "
            "elsewhere; its LearnerSpec says otherwise by reads_only_data"
        )
    objective = load_objective(config.objective, config.objective_settings, context.own)
    where, data = read_weights(config.initialise, context.store, context.deployment.home)
    model = load_learner(config.learner, config.learner_settings, context.own).load(data, objective)
    table = open_split(context.store, context.features, "validation", context.scratch)
    names, own = getattr(model, "feature_names", None), [*manifest["feature_names"]]
    if names is not None and [*names] != own:
        raise BadDataError(
            f"train.initialise: {where} was fitted to the columns {', '.join(names)}, and the features have "
            f"{', '.join(own)}, in this order"
        )
    try:
        scores = model.predict(table)
    except StepError:
        raise
    except Exception as error:  # what it was fitted to may be other columns, and libraries say so as they like
        raise BadDataError(
            f"train.initialise: {where} cannot score the features of {context.features.place}: "
            f"{type(error).__name__}: {error}"
        ) from error
    predictions = objective.predictions(table.labels, scores, table.offsets, by=f"train.initialise: {where}")
    metric, *others = (load_metric(name, context.own) for name in (config.metric, *config.metrics))
    return _Measured(model.save(), *metric.measure_with(others, predictions), 0)
