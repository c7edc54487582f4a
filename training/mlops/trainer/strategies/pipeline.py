"""Pipeline parallel: each rank of a group runs one stage of the model, on one micro batch after the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from mlops.contract.step import BadConfigError
from mlops.random_states import random_states_kept
from mlops.trainer.strategies.buffers import saved_buffers
from mlops.trainer.strategies.losses import sample_losses
from mlops.trainer.strategies.padding import alike

if TYPE_CHECKING:
    from mlops.data.shards.loader import Batch
    from mlops.trainer.model import Loss

_KEPT_SHAPES = 4
"""Schedules kept, by the shape of their inputs: each holds the memory of its activations."""


class PipelineSeat:
    """
    One rank's seat in the pipeline.

    :param buffered: whether any stage has buffers that a checkpoint holds
    """

    def __init__(
        self,
        stage: nn.Module,
        index: int,
        num_stages: int,
        *,
        group: distributed.ProcessGroup,
        device: torch.device,
        buffered: bool,
    ) -> None:
        self.stage, self.index, self.num_stages = stage, index, num_stages
        self._group, self._device, self._buffered = group, device, buffered
        self._schedules: OrderedDict[tuple[Any, ...], ScheduleGPipe | Schedule1F1B] = OrderedDict()
        self._batches: Sequence[Batch] = ()
        self._loss: Loss | None = None
        self._scale: Tensor | float = 1.0
        self._losses: dict[int, Tensor] = {}

    @property
    def is_last(self) -> bool:
        return self.index == self.num_stages - 1

    def step(self, batches: Sequence[Batch], loss: Loss, scale: Tensor | float, size: tuple[int, int]) -> list[Tensor]:
        """
        Forward and backward passes of all micro batches. Called by all ranks of the pipeline, with the same batches.

        :param size: samples and rows to pad to; see :func:`common_size`
        :return: for each micro batch its losses ``[B]``, on every rank
        """
        sizes = [len(batch.weights) for batch in batches]
        self._batches, self._loss, self._scale, self._losses = alike(batches, *size), loss, scale, {}
        args, kwargs = _inputs(loss, self._batches) if self.index == 0 else ((), {})
        shape = tuple(self._batches[0].features.shape)
        key = (len(batches), shape, True)
        # What torch cuts up for the losses: the number of each micro batch.
        target = torch.arange(len(batches))
        if key not in self._schedules:
            schedule = self._add(key, len(batches))
            if self._buffered:
                self._try_out(schedule, args, kwargs, target)
        self._run(self._schedules[key], args, kwargs, target)
        self._schedules.move_to_end(key)
        values = torch.empty(len(sizes), shape[0], device=self._device)
        if self.is_last:
            values = torch.stack([self._losses[index] for index in range(len(sizes))])
        distributed.broadcast(values, group=self._group, group_src=self.num_stages - 1)
        return [row[:size] for row, size in zip(values, sizes, strict=True)]

    def forward(self, batch: Batch, size: tuple[int, int]) -> Tensor | None:
        """The model's output on the last stage, None on the others. Called by all ranks of the pipeline."""
        [padded] = alike([batch], *size)
        key = (1, tuple(padded.features.shape), False)
        schedule = self._schedules.get(key) or self._add(key, 1)
        self._schedules.move_to_end(key)
        output: Tensor | None = schedule.eval(*([padded.features] if self.index == 0 else []))
        if output is None:
            return None
        output = output[: len(batch.weights)]
        return output if batch.mask is None else output[:, : batch.mask.shape[1]]

    def _add(self, key: tuple[Any, ...], num_batches: int) -> ScheduleGPipe | Schedule1F1B:
        stage = PipelineStage(self.stage, self.index, self.num_stages, self._device, group=self._group)
        kind = Schedule1F1B if num_batches >= self.num_stages else ScheduleGPipe
        training = key[-1]
        schedule = kind(stage, num_batches, self._loss_of if training else None, scale_grads=False)
        self._keep_draws(schedule)
        self._schedules[key] = schedule
        while len(self._schedules) > _KEPT_SHAPES:
            self._schedules.popitem(last=False)
        return self._schedules[key]

    def _keep_draws(self, schedule: Any) -> None:
        # For a new shape torch runs the stage once more, and puts back its own random state only: what a stage draws
        # from numpy or random would depend on whether this process has met the shape before.
        def initialise(*args: Any, **kwargs: Any) -> None:
            del schedule._initialize_stage  # the first time only; what is left is the schedule's own method
            with random_states_kept():
                schedule._initialize_stage(*args, **kwargs)

        schedule._initialize_stage = initialise

    def _try_out(self, schedule: Any, args: Any, kwargs: Any, target: Tensor) -> None:
        # For a new shape torch runs the stage once more, to learn what its neighbours send. A batch norm must not
        # notice, else a resumed training, which meets the shape again, would differ.
        buffers = saved_buffers(self.stage)
        before = [buffer.clone() for buffer in buffers]
        with random_states_kept():
            self._run(schedule, args, kwargs, target)
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        self.stage.zero_grad(set_to_none=True)

    def _run(self, schedule: Any, args: Any, kwargs: Any, target: Tensor) -> None:
        schedule.step(*args, **kwargs, target=target if self.is_last else None, return_outputs=False)

    def _loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        assert self._loss is not None
        index = int(target)
        batch = self._batches[index]
        losses = sample_losses(self._loss, _Answer(output), batch) * batch.weights
        self._losses[index] = losses.detach().float()
        return losses.sum() * self._scale


class _Answer(nn.Module):
    """What a loss takes for the model, on the last stage."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self._output: Tensor | None = output

    def forward(self, *_: Any, **__: Any) -> Tensor:
        if self._output is None:
            raise BadConfigError("train.loss calls the model twice, which train.parallel.pp cannot do; set pp to 1")
        output, self._output = self._output, None
        return output


class _Question(nn.Module):
    """What a loss takes for the model, on the first stage: it ends when the inputs are known."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        raise _AskedError(args, kwargs)


class _AskedError(Exception):
    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.inputs = args, kwargs


def _inputs(loss: Loss, batches: Sequence[Batch]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the loss passes to the model, one micro batch after the other."""
    asked = [_asked(loss, batch) for batch in batches]
    args = tuple(torch.cat(parts) for parts in zip(*(each for each, _ in asked), strict=True))
    return args, {name: torch.cat([kwargs[name] for _, kwargs in asked]) for name in asked[0][1]}


def _asked(loss: Loss, batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        loss(_Question(), batch)
    except _AskedError as question:
        args, kwargs = question.inputs
        for value in (*args, *kwargs.values()):
            if not isinstance(value, Tensor):
                raise BadConfigError(
                    f"train.loss passes a {type(value).__name__} to the model; a pipeline takes tensors [B, ...] only"
                ) from None
        return args, kwargs
    raise BadConfigError("train.loss does not call the model; with train.parallel.pp above 1 it must do so, once")
