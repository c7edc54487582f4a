"""Start from weights that there are: a registered model's, or a file's; and learn some layers slower, or not at all."""

from __future__ import annotations

import difflib
import hashlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import nn

from mlops.contract.refs import Artifact
from mlops.contract.sections.warm_start import Initialise, LearningRate
from mlops.contract.step import BadConfigError
from mlops.store import Store
from mlops.trainer.checkpoint.weights import deserialise

_SHOWN: Final = 4
_CPU: Final = torch.device("cpu")
_Tensor = TypeVar("_Tensor", bound=torch.Tensor)


def load_weights(model: nn.Module, start: Initialise, store: Store, home: Path, *, as_they_are: bool = False) -> None:
    """
    Put weights into a whole model, on the CPU, before it is laid out over processes.

    :param as_they_are: nothing is learnt then, so that nothing can start anew
    :raises BadConfigError: where the file is not the one that was pinned, or its weights are not the model's
    """
    where, data = read_weights(start, store, home)
    try:
        given = deserialise(data, _CPU)
    except Exception as error:  # what is no file of torch may raise anything
        raise BadConfigError(
            f"train.initialise: {where} holds no state dict: {type(error).__name__}: {error}"
        ) from error
    own = model.state_dict()
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise BadConfigError(f"train.initialise: {where} holds no state dict, a mapping of names to tensors")
    given = _in_names_of(own, given, start.rename)
    left = matching(start.leave_out, {**own, **given}, "train.initialise.leave_out")
    taken = {name: value for name, value in given.items() if name not in left}
    wanted = [name for name in own if name not in left]
    for tie in _ties(model):
        if (part := left & tie) and part != tie:
            raise BadConfigError(
                f"train.initialise.leave_out: {', '.join(sorted(tie))} are one parameter; name all of them, or none"
            )
    for tie in _ties(model):
        names = sorted(tie & taken.keys())
        if differing := [name for name in names[1:] if not _equal(taken[names[0]], taken[name])]:
            raise BadConfigError(
                f"train.initialise: {where} has other values of {', '.join(differing)} than of {names[0]}, which in "
                "the model are one parameter"
            )
    problems = [
        *_listed("has no", [name for name in wanted if name not in taken]),
        *_listed("has, and the model has not,", [name for name in taken if name not in own]),
        *_listed(
            "has another shape of",
            [
                f"{name} ({_shape(taken[name])}, the model's is {_shape(own[name])})"
                for name in wanted
                if name in taken and _shape(taken[name]) != _shape(own[name])
            ],
        ),
        *_listed(
            "has whole numbers where the model has fractions, or the other way round, in",
            [
                name
                for name in wanted
                if name in taken
                and _shape(own[name]) is not None is not _shape(taken[name])
                and taken[name].is_floating_point() != own[name].is_floating_point()
            ],
        ),
    ]
    if problems:
        advice = (
            "Save model.state_dict() of what train.model builds, or say by rename how its parts are called there"
            if as_they_are
            else "Name what shall start anew in train.initialise.leave_out"
        )
        raise BadConfigError(f"train.initialise: {where} {'; it '.join(problems)}. {advice}")
    try:
        model.load_state_dict(taken, strict=False)
    except RuntimeError as error:  # of a tensor without storage, say
        raise BadConfigError(f"train.initialise: {where} cannot be loaded: {error}") from error


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """
    Leave parameters as they are. One of several names is frozen by any of them.

    :raises BadConfigError: where a pattern means no parameter, or all of them are left
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in matching(patterns, parameters, "train.freeze"):
        parameters[name].requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in parameters.values()):
        raise BadConfigError("train.freeze leaves no parameter to learn")


def groups(
    named: Iterable[tuple[Collection[str], nn.Parameter]], rates: Sequence[LearningRate], learning_rate: float
) -> list[dict[str, Any]]:
    """
    Return the optimizer's groups, one for each learning rate, in the order of the parameters.

    :param named: parameters, each with its names in the whole model
    :param rates: of some of them; the first that matches counts
    """
    found: dict[float, list[nn.Parameter]] = {}
    for names, parameter in named:
        meant = (each.factor for each in rates if any(fnmatchcase(name, each.parameters) for name in names))
        factor = next(meant, 1.0)
        found.setdefault(factor, []).append(parameter)
    return [{"params": parameters, "lr": factor * learning_rate} for factor, parameters in found.items()]


def _in_names_of(own: Iterable[str], given: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, Any]:
    """Return weights by the model's names; those that it has not keep theirs."""
    called = {name: reduce(lambda text, pair: text.replace(*pair), rename.items(), name) for name in own}
    known = {*called.values()}
    others = {name: value for name, value in given.items() if name not in known}
    return others | {name: given[there] for name, there in called.items() if there in given}


def gathered(named: Iterable[tuple[str, _Tensor]]) -> list[tuple[list[str], _Tensor]]:
    """Return each tensor once, with all its names."""
    found: dict[int, tuple[list[str], _Tensor]] = {}
    for name, tensor in named:
        found.setdefault(id(tensor), ([], tensor))[0].append(name)
    return list(found.values())


def _ties(model: nn.Module) -> list[set[str]]:
    """Return the names of each parameter and buffer that has several."""
    named = (each(remove_duplicate=False) for each in (model.named_parameters, model.named_buffers))
    return [set(names) for names, _ in gathered(itertools.chain(*named)) if len(names) > 1]


def matching(patterns: Sequence[str], names: Collection[str], setting: str) -> set[str]:
    """
    Return the names that one of the patterns means.

    :raises BadConfigError: where a pattern means none
    """
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            near = difflib.get_close_matches(pattern, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {_shown(list(names))}"
            raise BadConfigError(f"{setting}: {pattern!r} means no parameter of the model; {hint}")
        found |= matched
    return found


def keep_weights(start: Initialise | None, store: Store, home: Path, place: str) -> Artifact | None:
    """
    Keep the file that a training starts from with its results, for it may be gone when the training is made again.

    :param place: of the training in the store
    :return: None where it starts from none, or from those of a version, which are kept with that
    """
    if start is None or start.path is None:
        return None
    return store.put_artifact(place, "initial_weights.pt", read_weights(start, store, home)[1])


def read_weights(start: Initialise, store: Store, home: Path) -> tuple[str, bytes]:
    """
    :return: where they are, for messages, and the file
    :raises BadConfigError: where it is not the file that was pinned
    """
    if (found := start.found) is not None:
        artifact = Artifact(key=found.key, sha256=found.sha256, num_bytes=found.num_bytes)
        return start.path or f"version {found.version} of {start.model}", store.read(artifact)
    assert start.path is not None, "the operator looks a model up"
    remote = "://" in start.path
    folder, _, name = start.path.rpartition("/") if remote else ("", "", "")
    try:
        data = Store(folder).get(name) if remote else (home / start.path).read_bytes()
    except OSError as error:
        raise BadConfigError(f"train.initialise.path: cannot read {start.path}: {error}") from error
    if (sha256 := hashlib.sha256(data).hexdigest()) != start.sha256:
        raise BadConfigError(
            f"train.initialise: {start.path} is not the file that was pinned: its SHA-256 is {sha256}, not "
            f"{start.sha256}"
        )
    return start.path, data


def _equal(one: object, other: object) -> bool:
    return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)


def _shape(value: object) -> list[int] | None:
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _listed(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what} {_shown(names)}"] if names else []


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
