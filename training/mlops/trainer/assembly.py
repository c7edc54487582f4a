"""Put together what a training consists of: the model over its processes, its data, and where its checkpoints go."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from mlops.data.shards.shard_cache import node_folder
from mlops.data.shards.shard_reading import open_source, open_split
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.checkpoint.listing import read_listing
from mlops.trainer.checkpoint.resumption import take
from mlops.trainer.determinism import watched
from mlops.trainer.health import REST, Heartbeat
from mlops.trainer.job import TrainingJob
from mlops.trainer.memory.peer_memory import PeerMemory
from mlops.trainer.recipe import Recipe
from mlops.trainer.validation import Validation


def build_job(recipe: Recipe, *, place: str, scratch: Path, heartbeat: Heartbeat) -> tuple[TrainingJob, int]:
    """
    Build the job of a recipe, after its self-test where that is due. Called by all ranks.

    :param place: of the training in the store, below which its checkpoints lie
    :param scratch: local folder for files that the training itself needs
    :return: the job, and the number of the model's parameters
    """
    config, ranks, store = recipe.config, recipe.ranks, recipe.store
    checkpoints = Checkpoints(
        store=store,
        place=place,
        ranks=ranks,
        keep_latest=config.checkpoint.keep_latest,
        timeout=timedelta(seconds=config.collective_timeout_seconds),
    )
    loader = recipe.loader()
    test = recipe.self_test(loader)
    # A training that goes on was tested when it began.
    if test.due and not ranks.from_leader(ranks.leads and bool(read_listing(store, place).complete)):
        heartbeat.beat(0, REST)
        with watched(recipe.home):
            test.run()
    model = recipe.model()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    strategy, optimizer = recipe.parallelise(model)
    facts = recipe.facts(optimizer)
    if (origin := config.resume_from) is not None:
        checkpoints.begin_at(lambda: take(store, place, origin, facts))
    job = TrainingJob(
        config=config,
        strategy=strategy,
        optimizer=optimizer,
        loss=recipe.loss,
        loader=loader,
        validation=open_validation(recipe, scratch),
        checkpoints=checkpoints,
        facts=facts.model_dump(),
        heartbeat=heartbeat,
        memory=PeerMemory.of(
            ranks,
            peers=config.checkpoint.peers,
            place=place,
            seconds=config.collective_timeout_seconds,
        ),
    )
    return job, num_parameters


def open_validation(recipe: Recipe, scratch: Path) -> Validation:
    """:param scratch: local folder for shards of a remote store"""
    config, features, store = recipe.config, recipe.features, recipe.store
    objective = recipe.objective
    metric, further = recipe.metric(config.metric), [recipe.metric(name) for name in config.metrics]
    if objective.spec.inputs == "tokens":
        return Validation.of_tokens(
            open_source(store, features, "validation", node_folder()),
            context=features.num_features,
            objective=objective,
            metric=metric,
            further=further,
        )
    return Validation.of_table(
        open_split(store, features, "validation", scratch),
        grouped=bool(recipe.manifest["grouped"]),
        objective=objective,
        metric=metric,
        further=further,
    )
