"""``mlops lint --with-data``: steps of a training, taken again after a resume, on the newest features."""

from __future__ import annotations

import argparse
import json
import logging

from rich.console import Console

from mlops.commands import Places, Subparsers
from mlops.contract.learners import TORCH
from mlops.contract.refs import FeaturesRef
from mlops.contract.section import check_section
from mlops.contract.sections.train import Train
from mlops.store import REF_FILE, Store
from mlops.trainer.parallel import join
from mlops.trainer.recipe import Recipe

_ALONE = {"processes": 1, "nodes": 1, "parallel": {"dp_replicate": 1, "dp_shard": 1, "tp": 1, "pp": 1}}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("lint", help=__doc__, description=__doc__)
    parser.set_defaults(run=_run)
    parser.add_argument("pipeline", metavar="PIPELINE")
    parser.add_argument("train", metavar="JSON", help="the pipeline's section train")


def _run(options: argparse.Namespace, places: Places, console: Console) -> int:
    """Run the test. Errors name the place in the recipe, and the fix."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    given = json.loads(options.train)
    if given["learner"] != TORCH:
        console.print(
            f"{options.pipeline}: ok; learner {given['learner']} goes on from whole epochs, which needs no test"
        )
        return 0
    config = check_section(Train, {**given, **_ALONE, "self_test": "always"}, "train")
    if config.program is not None:
        console.print(f"{options.pipeline}: {config.program} trains with a loop of its own, which is not tested")
        return 0
    features = newest_features(places.store, options.pipeline)
    if features is None:
        console.print(
            f"{options.pipeline}: not tested with data: no features are committed in {places.store.uri}; run the "
            "pipeline's steps up to features once"
        )
        return 0
    manifest = json.loads(places.store.read(features.artifacts["manifest"]))
    ranks = join(config.parallel, deterministic=config.deterministic, float32_matmul=config.float32_matmul)
    recipe = Recipe(
        config=config, ranks=ranks, home=places.home, store=places.store, features=features, manifest=manifest
    )
    recipe.self_test(recipe.loader()).run()
    console.print(f"{options.pipeline}: ok with {features.place}: a resumed training gives the same bits")
    return 0


def newest_features(store: Store, pipeline: str) -> FeaturesRef | None:
    """Return the features that the pipeline's features step committed last, in whatever run."""
    commits = [
        each for each in store.stored(f"pipelines/{pipeline}/features") if each.key.rpartition("/")[2] == REF_FILE
    ]
    for commit in sorted(commits, key=lambda each: each.modified, reverse=True):
        ref = store.committed(commit.key.rpartition("/")[0])
        if isinstance(ref, FeaturesRef):
            return ref
    return None
