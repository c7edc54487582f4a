"""The rehearsal: names, rows, columns, features, and some steps of the training, each as far as the others allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import polars as pl

from mlops.code import bundle, load_attribute, recipe_folder
from mlops.contract.learners import TORCH
from mlops.contract.refs import DatasetRef, FeaturesRef, ValidationRef, canonical_json
from mlops.contract.section import check_section
from mlops.contract.sections.evaluate import Evaluate
from mlops.contract.sections.features import Features
from mlops.contract.sections.ingest import Ingest
from mlops.contract.sections.train import Train
from mlops.contract.sections.validate import Validate
from mlops.data.engine.engines import as_table
from mlops.features.fitted import as_feature_set
from mlops.features.materialise import Materialised, materialise
from mlops.features.token_set import TokenSet
from mlops.learners.learner import load_learner
from mlops.learners.lesson import open_lesson
from mlops.learners.preconditions import check_features
from mlops.objectives.objective import load_objective
from mlops.rehearsal.columns import check_columns
from mlops.rehearsal.names import check_names
from mlops.rehearsal.problems import Problem, Problems
from mlops.rehearsal.sample import Sample, of_snapshot, of_sources
from mlops.store import Store

_PLACE: Final = "rehearsal"
_ALONE: Final[Mapping[str, Any]] = {
    "processes": 1, "nodes": 1, "parallel": {"dp_replicate": 1, "dp_shard": 1, "tp": 1, "pp": 1},
    "self_test": "always",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    problems: Sequence[Problem]
    done: Sequence[str]
    """What was tried and holds, and what could not be, a sentence each."""


def rehearse(document: Mapping[str, Any], *, home: Path, store: Store, scratch: Path, now: datetime) -> Rehearsal:
    """
    Try a pipeline out on a sample. Nothing is written but below ``scratch``.

    :param document: the pipeline's settings, its sections in their JSON form
    :param home: project folder
    :param store: that may hold a snapshot of the pipeline
    :param now: the sources are read as they are known then
    """
    problems, done = Problems(home), list[str]()
    check_names({name: value for name, value in document.items() if isinstance(value, Mapping)}, problems)
    ingest = check_section(Ingest, document["ingest"], "ingest")
    validate = check_section(Validate, document["validate"], "validate")
    if not (home / validate.schema_path).is_file():
        done.append(f"there is no {validate.schema_path} yet: the first run proposes it, for you to review")
    sample = of_snapshot(store, document["pipeline"], ingest, home) or of_sources(
        ingest, home=home, scratch=scratch / "sources", now=now, timezone=document["timezone"], problems=problems
    )
    if sample is not None:
        done += [*sample.notes, f"tried on {sample.origin}"]
        evaluate = check_section(Evaluate, document["evaluate"], "evaluate")
        check_columns(ingest, validate, evaluate, sample.rows, problems)
        _Trial(document, home, scratch, problems, done).run(sample)
    return Rehearsal(problems=problems.found, done=done)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Features and training of a sample, in a store of its own."""

    document: Mapping[str, Any]
    home: Path
    scratch: Path
    problems: Problems
    done: list[str]

    def run(self, sample: Sample) -> None:
        store = Store(f"file://{self.scratch / 'store'}")
        section = check_section(Features, self.document["features"], "features")
        config = self._train()
        made: Materialised | None = None
        with self.problems.caught("features", "feature_set"):
            made = self._features(store, section, sample.rows)
        if made is None:
            return
        manifest = {"feature_set": section.feature_set, **made.manifest}
        features = FeaturesRef(
            place=_PLACE,
            artifacts={"manifest": store.put_artifact(_PLACE, "manifest.json", canonical_json(manifest))},
            version=made.version,
            num_features=made.num_features,
            num_samples={name: part["num_samples"] for name, part in made.manifest["splits"].items()},
            parent=_nothing_before(),
        )
        self.done.append(f"{made.num_features} features of {features.num_samples['train']:,} samples")
        with self.problems.caught("train"):
            check_features(config, manifest, self._own)
            if config.program is not None:
                self.done.append(f"{config.program} trains with a loop of its own, which is not tried")
            elif config.learner == TORCH:
                self._steps(store, config, features, manifest)
                self.done.append("some steps of the training; resumed after two of them it gives the same bits")
            else:
                self._epoch(store, config, features, manifest)
                self.done.append(f"an epoch of {config.learner}")

    def _train(self) -> Train:
        """Return the section as it can be tried here: by a process, and with no weights that are looked up."""
        train = dict(self.document["train"])
        if train.get("learner", TORCH) == TORCH:
            train |= _ALONE
        if ((train.get("initialise") or {}).get("model")) is not None:
            self.done.append(
                f"{train.pop('initialise')['model']} is looked up when a run begins: whether its weights are the "
                "model's is not tried"
            )
        return check_section(Train, train, "train")

    def _features(self, store: Store, section: Features, rows: pl.DataFrame) -> Materialised:
        definition = load_attribute(section.feature_set, self.home)
        code = store.put_artifact(_PLACE, "code.zip", bundle(recipe_folder(self.home, section.feature_set)))
        # A sample is not dealt out: the groups of a few days would be torn.
        tables = {name: as_table(rows.lazy()) for name in ("train", "validation")}
        if isinstance(definition, TokenSet):
            from mlops.features.tokenise import tokenise  # and with it torch, two seconds

            return tokenise(store, _PLACE, definition, tables, code)
        feature_set = as_feature_set(definition, section.feature_set)
        event_time = self.document["ingest"]["event_time"]
        return materialise(store, _PLACE, feature_set, tables, code, event_time, self.scratch)

    def _steps(self, store: Store, config: Train, features: FeaturesRef, manifest: Mapping[str, Any]) -> None:
        from mlops.trainer.parallel import join
        from mlops.trainer.recipe import Recipe

        ranks = join(config.parallel, deterministic=config.deterministic, float32_matmul=config.float32_matmul)
        recipe = Recipe(config=config, ranks=ranks, home=self.home, store=store, features=features, manifest=manifest)
        recipe.self_test(recipe.loader()).run()

    def _epoch(self, store: Store, config: Train, features: FeaturesRef, manifest: Mapping[str, Any]) -> None:
        objective = load_objective(config.objective, config.objective_settings, self._own)
        learner = load_learner(config.learner, config.learner_settings, self._own)
        lesson = open_lesson(
            store, features, manifest, objective, seed=config.seed, num_threads=1, epochs=config.epochs,
            scratch=self.scratch,
        )  # fmt: skip
        learner.learn(learner.begin(lesson), lesson, 1)

    def _own(self, import_path: str) -> object:
        return load_attribute(import_path, self.home)


def _nothing_before() -> ValidationRef:
    """Return what features are made of; of these, nothing that was committed."""
    dataset = DatasetRef(
        place=_PLACE, name=_PLACE, version="", schema_hash="", num_rows=0, num_bytes=0, interval_start="",
        interval_end="",
    )  # fmt: skip
    return ValidationRef(place=_PLACE, schema_sha256="", num_checks=0, parent=dataset)
