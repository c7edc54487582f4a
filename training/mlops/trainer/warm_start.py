"""Start from weights that there are: a registered model's, or a file's; and learn some layers slower, or not at all."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from mlops.contract.refs import Artifact
from mlops.contract.sections.warm_start import Initialise
from mlops.contract.step import BadConfigError
from mlops.store import Store
from mlops.trainer.checkpoint.weights import deserialise

_SHOWN: Final = 4
_CPU: Final = torch.device("cpu")


def load_weights(model: nn.Module, start: Initialise, store: Store, home: Path) -> None:
    """
    Put weights into a whole model, on the CPU, before it is laid out over processes.

    :raises BadConfigError: where the file is not the one that was pinned, or its weights are not the model's
    """
    where, data = _read(start, store, home)
    try:
        given = deserialise(data, _CPU)
    except Exception as error:  # what is no file of torch may raise anything
        raise BadConfigError(
            f"train.initialise: {where} holds no state dict: {type(error).__name__}: {error}"
        ) from error
    own = model.state_dict()
    left = matching(start.leave_out, {**own, **given}, "train.initialise.leave_out")
    taken = {name: value for name, value in given.items() if name not in left}
    wanted = [name for name in own if name not in left]
    problems = [
        *_listed("has no", [name for name in wanted if name not in taken]),
        *_listed("has, and the model has not,", [name for name in taken if name not in own]),
        *_listed(
            "has another shape of",
            [
                f"{name} ({list(taken[name].shape)}, the model's is {list(own[name].shape)})"
                for name in wanted
                if name in taken and _shape(taken[name]) != _shape(own[name])
            ],
        ),
    ]
    if problems:
        raise BadConfigError(
            f"train.initialise: {where} {'; it '.join(problems)}. Name what shall start anew in "
            "train.initialise.leave_out"
        )
    model.load_state_dict(taken, strict=False)


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """
    Leave parameters as they are.

    :raises BadConfigError: where a pattern means no parameter, or all of them are left
    """
    parameters = dict(model.named_parameters())
    for name in matching(patterns, parameters, "train.freeze"):
        parameters[name].requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in parameters.values()):
        raise BadConfigError("train.freeze leaves no parameter to learn")


def groups(
    named: Iterable[tuple[str, nn.Parameter]], factors: Mapping[str, float], learning_rate: float
) -> list[dict[str, Any]]:
    """
    Return the optimizer's groups, one for each learning rate, in the order of the parameters.

    :param named: parameters by their names in the whole model
    :param factors: of the learning rate, by pattern; the first that matches counts
    """
    found: dict[float, list[nn.Parameter]] = {}
    for name, parameter in named:
        factor = next((factor for pattern, factor in factors.items() if fnmatchcase(name, pattern)), 1.0)
        found.setdefault(factor, []).append(parameter)
    return [{"params": parameters, "lr": factor * learning_rate} for factor, parameters in found.items()]


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


def _read(start: Initialise, store: Store, home: Path) -> tuple[str, bytes]:
    if start.path is None:
        assert start.found is not None, "the operator looks it up"
        found = start.found
        artifact = Artifact(key=found.key, sha256=found.sha256, num_bytes=found.num_bytes)
        return f"version {found.version} of {start.model}", store.read(artifact)
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


def _shape(value: object) -> list[int] | None:
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _listed(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what} {_shown(names)}"] if names else []


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
