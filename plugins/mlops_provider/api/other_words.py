"""What the words in which other platforms ask mean for a pipeline: its settings, by their names in its file."""

from __future__ import annotations

import difflib
import glob
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from mlops.contract.extensions import by_import_path
from mlops.contract.learners import LEARNERS, TORCH
from mlops.contract.metrics import spec_of
from mlops.contract.section import SpecError
from mlops.contract.sections.train import OF_EVERY_LEARNER, Train
from mlops_provider.deployment import Deployment
from mlops_provider.spec import Pipeline

_OTHER_NAMES: Final = {
    "batch_size": "global_batch",
    "depth": "max_depth",
    "eta": "learning_rate",
    "lr": "learning_rate",
    "wd": "weight_decay",
}
"""Short names of hyperparameters, and what learners call them."""
_DIMENSION_WORDS: Final = {"min": "low", "max": "high", "values": "choices", "options": "choices"}
_KINDS: Final = frozenset({"float", "double", "uniform", "int", "integer", "categorical", "choice", "discrete"})
_LOG_KINDS: Final = frozenset({"loguniform", "log_uniform"})
"""Kinds of dimensions: what they are otherwise follows from their bounds or choices."""


def source_settings(pipeline: Pipeline, place: str, deployment: Deployment) -> dict[str, Any]:
    """:raises SpecError: where the pipeline has no source of files, or several, or one that is pinned"""
    sources = pipeline.ingest.sources
    paths = {name: path for name, source in sources.items() if (path := getattr(source, "path", None)) is not None}
    if len(paths) != 1:
        raise SpecError(
            f"data_source: {pipeline.pipeline} has {len(paths)} sources of files ({', '.join(paths) or 'none'}); say "
            'which one by POST /runs with settings: {"ingest.sources.NAME.path": ...}'
        )
    ((name, path),) = paths.items()
    if not deployment.experiment_sources:
        raise SpecError(
            "data_source: experiments may read no other files here; whoever runs the deployment says which by [mlops] "
            "experiment_sources, of a team in the teams' file"
        )
    for pin in ("sha256", "version"):
        if getattr(sources[name], pin, None) is not None:
            raise SpecError(f"data_source: ingest.sources.{name}.{pin} of {pipeline.pipeline} names what is read")
    if not place.endswith("/"):
        return {f"ingest.sources.{name}.path": place}
    parts = path.split("/")
    first = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return {f"ingest.sources.{name}.path": place + "/".join(parts[first:])}


def training_settings(
    pipeline: Pipeline,
    learner: str | None,
    hyperparameters: Mapping[str, Any],
    given_as: str,
    model_args: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """
    :param learner: None: as the pipeline's file says
    :param given_as: name of the hyperparameters in the request, for messages
    :raises SpecError: naming a learner that there is not, or a hyperparameter that it does not have, or lacks
    """
    trains = learner or pipeline.train.learner
    try:
        LEARNERS.import_path(trains)
    except SpecError:
        raise SpecError(f"model type {trains}: name {LEARNERS.wanted(trains)}") from None
    if model_args and trains != TORCH:
        raise SpecError(f"model.args: they are of build_model, by which torch trains, and not {trains}")
    settings: dict[str, Any] = {f"train.model_args.{name}": value for name, value in model_args.items()}
    is_other = trains != pipeline.train.learner
    if is_other:
        settings["train.learner"] = trains
        if trains != TORCH:
            settings |= {f"train.{name}": value for name, value in pipeline.train.without_torch().items()}
        settings["train.learner_settings"] = {}
    for key, value in named(hyperparameters, lambda name: keys_of(pipeline, trains, name, given_as)).items():
        first, *inner = key.split(".")
        if is_other and first == "learner_settings":
            place = settings["train.learner_settings"]
            for each in inner[:-1]:
                place = place.setdefault(each, {})
            place[inner[-1]] = value
        elif settings.setdefault(f"train.{key}", value) is not value:
            raise SpecError(f"{given_as}: train.{key} is given twice, also by model.args; keep one of the two")
    if is_other and trains != TORCH and not by_import_path(trains):
        for name, field in LEARNERS.load(trains).section.model_fields.items():
            if field.is_required() and name not in settings["train.learner_settings"]:
                raise SpecError(f"{given_as}.{name}: it is missing, and learner {trains} has to be told")
    if pipeline.tune is not None and settings:
        settings["tune"] = None  # what it finds would take the place of what is given
    return settings


def training_fields(
    pipeline: Pipeline,
    learner: str | None,
    hyperparameters: Mapping[str, Any],
    given_as: str,
    model_args: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, str]:
    """
    Return by which fields of the request settings of the training are given; for the parameters see
    :func:`training_settings`.
    """
    trains = learner or pipeline.train.learner
    fields = {name: f"{given_as}.{name}" for name in hyperparameters}
    return {
        "train.learner_settings": given_as,
        **{f"train.model_args.{name}": f"model.args.{name}" for name in model_args},
        **{
            f"train.{key}": field
            for key, field in named(fields, lambda name: keys_of(pipeline, trains, name, given_as)).items()
        },
    }


def resource_fields(given_as: str) -> dict[str, str]:
    """:param given_as: name of the resources in the request"""
    return {
        "train.processes": f"{given_as}.gpus",
        **{f"pods.train.{name}": f"{given_as}.{name}" for name in ("gpus", "cpu", "memory")},
    }


def named(
    given: Mapping[str, Any],
    place_of: Callable[[str], Sequence[str]],
    value_of: Callable[[Any], Any] = lambda value: value,
) -> dict[str, Any]:
    """
    Give things the names of the pipeline's settings.

    :param place_of: says where below ``train`` the setting of a name stands
    :raises SpecError: where two names are of one setting
    """
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in given.items():
        key = ".".join(place_of(name))
        if (other := names.setdefault(key, name)) != name:
            raise SpecError(f"{other} and {name} are both train.{key}: keep one of the two")
        found[key] = value_of(value)
    return found


def keys_of(pipeline: Pipeline, learner: str, name: str, given_as: str) -> Sequence[str]:
    """Where below ``train`` a hyperparameter stands."""
    usual = _OTHER_NAMES.get(name, name)
    if name.partition(".")[0] in Train.model_fields and "." in name:  # as tune.space and --set write it
        return name.split(".")
    is_torch = learner == TORCH
    own = set(pipeline.train.model_args) if is_torch else _settings_of(learner, pipeline)
    below = ["model_args" if is_torch else "learner_settings"]
    general = set(Train.model_fields) if is_torch else OF_EVERY_LEARNER
    for each in (name, usual):
        if own is not None and each in own:
            return [*below, each]
        if each in general:
            return [each]
    if own is None:
        return [*below, name]
    if "parameters" in own and not is_torch:
        return [*below, "parameters", name]
    known = sorted({*own, *general} - {"learner", "learner_settings"})
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
    raise SpecError(f"{given_as}.{name}: learner {learner} of {pipeline.pipeline} has no such setting; {hint}")


def _settings_of(learner: str, pipeline: Pipeline) -> set[str] | None:
    """
    Return the names of a learner's settings; None where only its own code knows them.

    :raises SpecError: where there is no such learner
    """
    if not by_import_path(learner):
        return set(LEARNERS.load(learner).section.model_fields)
    if learner != pipeline.train.learner:
        raise SpecError(f"model type {learner}: name a learner that is installed; one of a recipe by POST /runs")
    return None


def metric_of(metric: str, direction: str | None) -> str:
    """:raises SpecError: where it goes the other way"""
    spec = None if by_import_path(metric) else spec_of(metric)
    own = None if spec is None else "maximize" if spec.higher_is_better else "minimize"
    if own is not None and direction not in (None, own):
        raise SpecError(f"objective.direction {direction}: of {metric} it is {own}; leave it out")
    return metric


def dimension_of(asked: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """A dimension of a search space, in the words of ``tune.space``, which checks it."""
    if not isinstance(asked, Mapping):
        return {"choices": list(asked)}
    given: dict[str, Any] = {}
    for word, value in asked.items():
        usual = _DIMENSION_WORDS.get(word, word)
        if usual in given:
            raise SpecError(f"search_space: {usual} is given twice, also as {word}; keep one of the two")
        given[usual] = value
    kind = given.get("type")
    if isinstance(kind, str) and kind in _LOG_KINDS | _KINDS:
        del given["type"]
        if kind in _LOG_KINDS:
            given.setdefault("log", True)
    return given


def resource_settings(
    pipeline: Pipeline, asked: Mapping[str, Any], learner: str | None, deployment: Deployment
) -> dict[str, Any]:
    """:param asked: of each pod of the training: ``gpus``, ``cpu``, ``memory``"""
    settings = {f"pods.train.{name}": value for name, value in asked.items()}
    # As pods, or otherwise away from Airflow's workers.
    is_remote = (pipeline.launcher or deployment.launcher) != "process"
    if is_remote and asked.get("gpus") and (learner or pipeline.train.learner) == TORCH:
        settings["train.processes"] = asked["gpus"]
    return settings
