"""Cutting a model into the stages of a pipeline."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from mlops.contract.step import BadConfigError


def stage_of(model: nn.Module, index: int, num_stages: int) -> tuple[nn.Module, dict[str, str]]:
    """
    One stage of the model, and the names in the model of its parameters and buffers: ``{name in the stage: name}``.

    An ``nn.Sequential`` is cut so that stages hold about equally many parameters; any other model has
    ``pipeline_stages(num_stages) -> list[nn.Module]``, made of its own modules; each takes what the one before returns.

    :raises BadConfigError: where it cannot be cut
    """
    kind = type(model).__name__
    own: Any = getattr(model, "pipeline_stages", None)
    if own is not None:
        stages: list[nn.Module] = list(own(num_stages))
        if len(stages) != num_stages:
            raise BadConfigError(f"{kind}.pipeline_stages({num_stages}) returned {len(stages)} stages")
    elif isinstance(model, nn.Sequential):
        stages = _cut(model, num_stages)
    else:
        raise BadConfigError(
            f"train.parallel.pp is {num_stages}, but {kind} says not how to cut it: "
            "make it an nn.Sequential, or give it pipeline_stages(num_stages) -> list[nn.Module]"
        )
    original = {id(tensor): name for name, tensor in _tensors(model)}
    names = [{name: original.get(id(tensor), "") for name, tensor in _tensors(stage)} for stage in stages]
    for stage_names in names:
        for name, known in stage_names.items():
            if not known:
                raise BadConfigError(f"{kind}.pipeline_stages: {name} is not the model's own; do not copy its modules")
    _refuse_ties(kind, [{id(parameter): name for name, parameter in stage.named_parameters()} for stage in stages])
    return stages[index], names[index]


def _cut(model: nn.Sequential, num_stages: int) -> list[nn.Module]:
    children = list(model.named_children())
    if len(children) < num_stages:
        raise BadConfigError(f"train.parallel.pp is {num_stages}, but the nn.Sequential has {len(children)} parts")
    bounds = cut_points([sum(map(Tensor.numel, child.parameters())) for _, child in children], num_stages)
    return [
        nn.Sequential(OrderedDict(children[first:last]))
        for first, last in zip([0, *bounds], [*bounds, len(children)], strict=True)
    ]


def cut_points(sizes: Sequence[int], num_parts: int) -> list[int]:
    """Where to cut a row so that the largest part is as small as can be; no part is empty."""
    total = [0, *accumulate(sizes)]
    # best[n][k]: the largest part, and the cuts, of the first n cut into k parts.
    best: dict[tuple[int, int], tuple[int, list[int]]] = {(n, 1): (total[n], []) for n in range(1, len(sizes) + 1)}
    for k in range(2, num_parts + 1):
        for n in range(k, len(sizes) + 1):
            best[n, k] = min(
                (max(best[cut, k - 1][0], total[n] - total[cut]), [*best[cut, k - 1][1], cut])
                for cut in range(k - 1, n)
            )
    return best[len(sizes), num_parts][1]


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _refuse_ties(kind: str, stages: Sequence[dict[int, str]]) -> None:
    seen: dict[int, str] = {}
    for stage in stages:
        for parameter in stage.keys() & seen.keys():
            raise BadConfigError(
                f"{kind}: {seen[parameter]} and {stage[parameter]} are one tied weight in two pipeline stages, whose "
                "copies would drift apart; untie them, or set train.parallel.pp to 1"
            )
        seen |= stage
