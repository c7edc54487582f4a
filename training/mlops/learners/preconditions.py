"""What must hold before a training begins: metrics, objective, learner and features fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mlops.code import load_extension
from mlops.contract.extensions import is_of_recipe, recipe_of
from mlops.contract.learners import LEARNERS, TORCH, LearnerSpec, check_learns_kind
from mlops.contract.objectives import check_fit
from mlops.contract.sections.train import Train
from mlops.contract.step import BadConfigError, BadDataError
from mlops.metrics.metric import load_metric
from mlops.objectives.objective import LoadedObjective, load_objective


def check_features(config: Train, manifest: Mapping[str, Any], own: Callable[[str], object]) -> None:
    """
    Check that the features are such as the section ``train`` asks for, before anything costs time.

    :param manifest: of the features
    :param own: loads code of the recipe by its import path
    :raises BadConfigError: where metrics, objective, learner and features do not fit each other
    :raises BadDataError: where a split has a label that the objective is not defined for
    """
    objective = load_objective(config.objective, config.objective_settings, own)
    spec = objective.spec
    for name in (config.metric, *config.metrics):
        check_fit(name, load_metric(name, own).spec, config.objective, objective.kind)
    made = "tokens" if "vocab_size" in manifest else "rows"
    if spec.inputs != made:
        raise BadConfigError(
            f"objective {config.objective!r} does not fit the features, which are {made}: it needs a "
            f"{'TokenSet' if spec.inputs == 'tokens' else 'FeatureSet'}"
        )
    if config.sequence_lengths and made != "tokens":
        raise BadConfigError("train.sequence_lengths are of tokens, and the features are rows; remove them")
    for each in config.sequence_lengths:
        if manifest["context"] % each.tokens:
            raise BadConfigError(
                f"train.sequence_lengths: {each.tokens} tokens do not divide the context of the TokenSet, "
                f"{manifest['context']}"
            )
    if made == "rows":
        _check_labels(objective, manifest)
    stated, classes = getattr(objective.settings, "classes", None), manifest.get("classes")
    if classes and stated is not None and list(stated) != classes:
        raise BadConfigError(
            f"train.objective_settings.classes must be those of the feature set, [{', '.join(classes)}], got "
            f"[{', '.join(stated)}]: a served answer would name the wrong ones"
        )
    if config.learner != TORCH:
        _check_learner(config, objective, manifest["feature_set"], own)
    if spec.needs_groups and not manifest["grouped"]:
        raise BadConfigError(
            f"objective {config.objective!r} needs groups of rows, but the feature set groups nothing; set its group_by"
        )


def _check_labels(objective: LoadedObjective, manifest: Mapping[str, Any]) -> None:
    """Check that the rows have as many labels as the objective learns, and values that it is defined for."""
    names, name = manifest["label_names"], objective.name
    if not manifest["several_labels"]:
        if objective.spec.several_labels:
            raise BadConfigError(
                f"objective {name!r} learns several labels of a row, and FeatureSet.label is one column, {names[0]!r}; "
                "name the columns of all of them in a list"
            )
        for split in manifest["splits"].values():
            objective.functions.check_labels(np.array(split["labels"], np.float32))
        return
    if not objective.spec.several_labels:
        raise BadConfigError(
            f"objective {name!r} learns one label of a row, and FeatureSet.label names {len(names)} columns; name one, "
            "or take objective: multilabel"
        )
    stated = getattr(objective.settings, "labels", None)
    if stated is not None and list(stated) != names:
        raise BadConfigError(
            f"train.objective_settings.labels must be the columns of FeatureSet.label, [{', '.join(names)}], got "
            f"[{', '.join(stated)}]: a served answer would name the wrong ones"
        )
    for split in manifest["splits"].values():
        for label, values in zip(names, split["labels"], strict=True):
            try:
                objective.functions.check_labels(np.array(values, np.float32))
            except BadDataError as error:
                raise BadDataError(f"label {label!r}: {error}") from error


def _check_learner(config: Train, objective: LoadedObjective, feature_set: str, own: Callable[[str], object]) -> None:
    """
    Check that a learner beside torch can learn the objective, and that their code lies in the recipe of the features,
    which is stored with the model.
    """
    spec = load_extension(LEARNERS, config.learner, LearnerSpec, own)
    try:
        check_learns_kind(config.learner, spec, objective.kind, config.objective)
    except ValueError as error:
        raise BadConfigError(f"train must be {error}") from None
    recipe = recipe_of(feature_set)
    named = {"learner": config.learner, "objective": config.objective}
    named |= {f"learner_settings.{name}": str(config.learner_settings[name]) for name in spec.code_settings}
    for name, path in named.items():
        if is_of_recipe(path) and recipe_of(path) != recipe:
            raise BadConfigError(
                f"train.{name} must be in {'.'.join(recipe)}, as the feature set, which is stored with the model; got "
                f"{path!r}"
            )
