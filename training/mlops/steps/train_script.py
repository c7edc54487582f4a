"""Train with a torchrun script of the recipe's own in the place of our loop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from mlops.contract.metrics import short_name
from mlops.contract.refs import CheckpointRef
from mlops.contract.sections.train import Train
from mlops.random_states import seed_everything
from mlops.steps import StepContext
from mlops.steps.publish import TRACKING_SECONDS, Origin, publish, tracked_run
from mlops.tracking.run import TrackedRun
from mlops.trainer.checkpoint.weights import serialise
from mlops.trainer.parallel import Ranks, own_device
from mlops.trainer.recipe import Recipe
from mlops.trainer.script import ProgramOutput, run_script
from mlops.trainer.trained import Trained


def run_program(context: StepContext, config: Train, manifest: Mapping[str, Any]) -> CheckpointRef | None:
    """:return: on rank 0 the checkpoint that the script handed back; None on the others"""
    assert config.model is not None, "checked by the section"
    ranks, ref = seat(), None
    origin = Origin.of(context, config.model, ranks) if ranks.leads else None
    with follow_program(context, config, ranks, manifest, origin.tags() if origin else {}) as (left, tracked):
        if left is not None and origin is not None and tracked is not None:
            metric = short_name(config.metric)
            best = Trained(
                weights=serialise(left.weights),
                history=[{"epoch": left.epoch, "validation_metric": left.metrics[metric], **left.metrics}],
                epoch=left.epoch,
                metrics=left.metrics,
                world_size=ranks.world_size,
            )
            ref = publish(context, config, best, origin, tracked, manifest)
    return ref


def seat() -> Ranks:
    """Return this process's place among others, of which it knows nothing: the process group is the script's."""
    return Ranks(
        rank=int(os.environ.get("RANK", "0")), world_size=int(os.environ.get("WORLD_SIZE", "1")), device=own_device()
    )


@contextmanager
def follow_program(
    context: StepContext, config: Train, ranks: Ranks, manifest: Mapping[str, Any], tags: Mapping[str, str]
) -> Iterator[tuple[ProgramOutput | None, TrackedRun | None]]:
    """
    Run the script to its end; the run in MLflow ends with the context.

    :param config: what a study has found is in it
    :param tags: of the run
    :return: on rank 0 what the script left; None on the others
    """
    deployment, program = context.deployment, config.program
    assert program is not None
    recipe = Recipe(
        config=config, ranks=ranks, home=deployment.home, store=context.store, features=context.features,
        manifest=manifest,
    )  # fmt: skip
    model = recipe.model()
    seed_everything(config.seed)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    told = replace(context.input, step="train", config=config.model_dump(mode="json"), ref=context.features)
    with tracked_run(context, config, ranks, num_parameters, tags) as tracked:
        output = run_script(
            deployment.home,
            program,
            told.dump(),
            checkpoints=f"{context.store.uri}/{context.place}/checkpoints",
            scratch=context.scratch,
        )
        left = None
        if ranks.leads and tracked is not None:
            left = ProgramOutput.read(output, program=program, metric=short_name(config.metric), model=model)
            tracked.log(left.point())
        yield left, tracked
    if tracked is not None:
        tracked.finish(TRACKING_SECONDS)
