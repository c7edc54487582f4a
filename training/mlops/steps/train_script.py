"""Train with a torchrun script of the recipe's own in the place of our loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mlops.contract.metrics import short_name
from mlops.contract.refs import CheckpointRef
from mlops.contract.sections.train import Train
from mlops.steps import StepContext
from mlops.steps.publish import TRACKING_SECONDS, Origin, publish, tracked_run
from mlops.trainer.checkpoint.weights import serialise
from mlops.trainer.parallel import Ranks, own_device, seed_everything
from mlops.trainer.recipe import Recipe
from mlops.trainer.script import ProgramOutput, run_script
from mlops.trainer.trained import Trained


def run_program(context: StepContext, config: Train, manifest: Mapping[str, Any]) -> CheckpointRef | None:
    """:return: on rank 0 the checkpoint that the script handed back; None on the others"""
    features, deployment = context.features, context.deployment
    assert config.program is not None
    assert config.model is not None, "checked by the section"
    # The process group is the script's.
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    ranks = Ranks(rank=deployment.rank, world_size=world_size, device=own_device())
    recipe = Recipe(
        config=config, ranks=ranks, home=deployment.home, store=context.store, features=features, manifest=manifest
    )
    model = recipe.model()
    seed_everything(config.seed)
    origin = Origin.of(deployment.home, config.model, ranks) if ranks.leads else None
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    ref = None
    with tracked_run(context, config, ranks, num_parameters, origin.tags() if origin else {}) as tracked:
        output = run_script(
            deployment.home,
            config.program,
            context.input.dump(),
            checkpoints=f"{context.store.uri}/{context.place}/checkpoints",
            scratch=context.scratch,
        )
        if origin is not None and tracked is not None:
            left = ProgramOutput.read(output, program=config.program, metric=short_name(config.metric), model=model)
            tracked.log(left.point())
            metric = short_name(config.metric)
            best = Trained(
                weights=serialise(left.weights),
                history=[{"epoch": left.epoch, "validation_metric": left.metrics[metric], **left.metrics}],
                epoch=left.epoch,
                metrics=left.metrics,
                world_size=ranks.world_size,
            )
            ref = publish(context, config, best, origin, tracked, manifest)
    if tracked is not None:
        tracked.finish(TRACKING_SECONDS)
    return ref
