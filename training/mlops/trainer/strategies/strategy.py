"""A model over all processes: one optimizer step's gradients, their norm, and a forward pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mlops.contract.step import BadConfigError
from mlops.trainer.health import BACKWARD, EXCHANGE, FORWARD, OPTIMIZER, PIPELINE, enter
from mlops.trainer.strategies.buffers import align_buffers, saved_buffers, without_trace
from mlops.trainer.strategies.losses import sample_losses, weighted_backward
from mlops.trainer.strategies.padding import common_size
from mlops.trainer.strategies.placing import placing
from mlops.trainer.strategies.precision import LossScale, step_unless
from mlops.trainer.strategies.refusals import sparse_tables
from mlops.trainer.strategies.transfer import moved

if TYPE_CHECKING:
    from mlops.data.shards.loader import Batch
    from mlops.trainer.model import Loss
    from mlops.trainer.parallel import Ranks
    from mlops.trainer.strategies.block_order import BlockOrder
    from mlops.trainer.strategies.pipeline import PipelineSeat

logger = logging.getLogger(__name__)


class ParallelStrategy:
    """
    This rank's part of the model. The loop calls, on all ranks::

        layout.adopt(optimizer)                          # once
        layout.warm_up(batch, loss)                      # once
        for each step:
            layout.seed(seed, step)
            losses = layout.step(batches, loss, scale)   # gradients
            norm = layout.clip(max_norm)
            layout.update(optimizer)
        with layout.evaluating():
            scores = layout.forward(batch)
    """

    def __init__(
        self,
        model: nn.Module,
        ranks: Ranks,
        *,
        names: dict[str, str] | None = None,
        whole_names: frozenset[str] | None = None,
        replica: DistributedDataParallel | None = None,
        pipeline: PipelineSeat | None = None,
        scaler: LossScale | None = None,
        order: BlockOrder | None = None,
        unused_parameters: bool = False,
    ) -> None:
        self.model = model
        """This rank's parameters; of a pipeline, its stage."""
        self.names = names or {}
        """``{name in the stage: name in the whole model}``, where they differ."""
        self.whole_names = whole_names
        """Names of the whole model's state, in a pipeline; None where this rank has all of them."""
        self.scaler = scaler
        """Loss scale of float16, part of what a checkpoint holds."""
        self._ranks = ranks
        self._replica, self._pipeline, self._order = replica, pipeline, order
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._unused_parameters = unused_parameters
        self._buffered = bool(saved_buffers(model))
        # DDP and FSDP average over data-parallel ranks. A sum is wanted, for these may hold unequal numbers of samples.
        self._num_averaged = ranks.data_world_size if replica is not None or order is not None else 1
        self._norm: Tensor | None = None
        self._checked = unused_parameters
        self._sparse = bool(sparse_tables(model))
        self._placing: AbstractContextManager[object] = nullcontext()

    @property
    def loss_scale(self) -> Tensor | None:
        """On the device. Above 1 a gradient that is not finite is no failure: :meth:`update` then changes the scale."""
        return None if self.scaler is None else self.scaler.scale

    def seed(self, *numbers: int) -> None:
        """Seed the next step's random numbers, e.g. with (seed, step)."""
        self._ranks.seed(*numbers)

    def step(self, batches: Sequence[Batch], loss: Loss, scale: float) -> list[Tensor]:
        """
        Forward and backward passes of one optimizer step; gradients must be None before.

        :param batches: micro batches, as many on every rank; their samples are this data-parallel rank's. Each is moved
            to the device just before its use
        :param scale: of the loss; 1 / samples of the global batch gives the gradient of its mean
        :return: the weighted losses ``[B]`` of each micro batch, detached
        """
        factor: Tensor | float = scale * self._num_averaged
        if self.scaler is not None:
            factor = self.scaler.scale * factor
        if self._pipeline is not None:
            enter(PIPELINE)
            # torch's schedules take all of them at once.
            batches = [batch.to(self._ranks.device) for batch in batches]
            losses = self._pipeline.step(batches, loss, factor, common_size(batches, self._ranks))
        else:
            placed = moved(batches, self._ranks.device)
            losses = [
                self._backward(batch, loss, factor, number == len(batches)) for number, batch in enumerate(placed, 1)
            ]
        if not self._checked:
            self._check_gradients()
        enter(EXCHANGE)
        self._complete()
        return losses

    def clip(self, max_norm: float) -> Tensor:
        """
        Scale the gradients down to ``max_norm``.

        :return: the global 2-norm before, over all dimensions of the mesh; the same bits on every rank
        """
        norm = self._global_norm()
        if self.scaler is not None:
            norm = norm / self.scaler.scale
        self._norm = norm
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        if self.scaler is not None:
            factor = factor / self.scaler.scale
        gradients = self._gradients()
        if gradients:
            torch._foreach_mul_(gradients, factor)
        return norm

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """
        Take the optimizer's step and forget the gradients, after :meth:`clip`.

        Where float16 gradients overflowed nothing changes but the scale.
        """
        enter(OPTIMIZER)
        with self._placing:
            if self.scaler is None:
                optimizer.step()
            else:
                assert self._norm is not None, "clip comes first"
                overflowed = ~self._norm.isfinite()
                step_unless(overflowed, optimizer)
                self.scaler.update(overflowed)
        # Also of what the optimizer does not hold: it would add up from step to step.
        self.model.zero_grad(set_to_none=True)

    def forward(self, batch: Batch) -> Tensor | None:
        """The model's output for the batch's features; None on all but the last stage of a pipeline."""
        if self._pipeline is not None:
            return self._pipeline.forward(batch, common_size([batch], self._ranks))
        output: Tensor = self.model(batch.features)
        return output

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Without dropout and gradients."""
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train()

    def warm_up(self, batch: Batch, loss: Loss, *, finds_changing: bool = False) -> frozenset[str]:
        """
        Let DDP settle its buckets, by a step without effect. Called once by all ranks, before the first step.

        After its first backward pass DDP sorts gradients into other buckets, which with three or more ranks adds them
        up in another order. So a resumed run starts with the same buckets as one that was never interrupted.

        :param finds_changing: whether to look for what a forward pass changes, which copies the model to the host
        :return: names of the buffers and frozen parameters that it changes; of replicas, and where they are looked for
        """
        if self._replica is None:
            return frozenset()
        with without_trace(self.model, self._ranks.device, others=finds_changing) as changed:
            sample_losses(loss, self._replica, batch).sum().backward()
            self._check_gradients()
            changing = frozenset(changed() if finds_changing else ())
        self.model.zero_grad(set_to_none=True)
        return changing

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """
        Clip, from now on, what this optimizer holds. Called once, before a scheduler is made.

        Its groups are split by how parameters are placed, each with the options it had: a fused or foreach step takes
        parameters of one mesh at a time.
        """
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        wanted = [(name, each) for name, each in self.model.named_parameters() if each.requires_grad]
        self._parameters = [each for _, each in wanted if id(each) in held]
        left_out = [self.names.get(name, name) for name, each in wanted if id(each) not in held]
        if left_out and self._ranks.leads:
            logger.warning(
                "the optimizer does not hold %s: it stays as it is, and its gradient is computed in vain; call "
                "requires_grad_(False) in build_model",
                _shown(left_out),
            )
        if self._ranks.mesh is None:
            return
        self._placing = placing(optimizer)
        groups = []
        for group in optimizer.param_groups:
            by_mesh: dict[object, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                by_mesh.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
            groups += [{**group, "params": parameters} for parameters in by_mesh.values()]
        optimizer.param_groups[:] = groups

    def _backward(self, batch: Batch, loss: Loss, factor: Tensor | float, last: bool) -> Tensor:
        model: nn.Module = self.model if self._replica is None else self._replica
        if self._order is not None:
            from mlops.trainer.strategies.sharded import exchange_gradients

            exchange_gradients(self.model, last)
        with nullcontext() if last or self._replica is None else self._replica.no_sync():
            enter(FORWARD)
            try:
                losses = sample_losses(loss, model, batch)
            except RuntimeError as error:
                if "Expected to have finished reduction in the prior iteration" not in str(error):
                    raise
                raise BadConfigError(
                    "the loss of the step before did not depend on all parameters: where the data decide which are "
                    "used, as of experts, set train.unused_parameters: true"
                ) from error
            enter(BACKWARD)
            return weighted_backward(losses, batch, factor)

    def _check_gradients(self) -> None:
        # Such a parameter has no optimizer state to save, and DDP would stop at the next step.
        if self._unused_parameters:
            return
        idle = [name for name, each in self.model.named_parameters() if each.requires_grad and each.grad is None]
        if idle:
            raise BadConfigError(
                f"the loss does not depend on the parameter{'s' * (len(idle) > 1)} "
                f"{_shown([self.names.get(name, name) for name in idle])}: use what build_model makes, or call "
                "requires_grad_(False) there; where the data decide which are used, as of experts, set "
                "train.unused_parameters: true"
            )
        if self._order is not None:
            self._order.compare(self._ranks)
        self._checked = True

    def _complete(self) -> None:
        if self._buffered:
            align_buffers(self.model, self._ranks)
        if self._ranks.mesh is not None:
            from mlops.trainer.strategies.gradients import settle, sum_whole

            if self._order is not None:
                sum_whole(self._parameters, self._ranks.mesh, self._num_averaged)
            settle(self._parameters)
        if self._sparse:
            for parameter in self._parameters:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.coalesce()

    def _global_norm(self) -> Tensor:
        if self._ranks.mesh is None:
            return torch.nn.utils.get_total_norm(self._gradients())
        from mlops.trainer.strategies.gradients import global_norm

        return global_norm(self._parameters, self._ranks.place, self._ranks.device)

    def _gradients(self) -> list[Tensor]:
        if self._ranks.mesh is None:
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            return [each._values() if each.is_sparse else each for each in gradients] if self._sparse else gradients
        from mlops.trainer.strategies.gradients import local

        return local(self._parameters)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
