from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from mlops.contract.sections.train import Train
from mlops.trainer.checkpoint.checkpoints import Checkpoints
from mlops.trainer.parallel import Parallel, Ranks
from mlops.trainer.progress import StepMetrics
from mlops.trainer.run_logging import MlflowCurves


def test_gpu_hours_go_on_after_a_resume(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a preempted training would show the GPU hours of its last process, a fraction of what it has cost."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    ranks = Ranks(world_size=4, device=torch.device("cuda"), parallel=Parallel(dp_replicate=4))
    tracked = Mock()
    checkpoints = cast(Checkpoints, Mock(spec=Checkpoints, last_durable_seconds=0.0))
    curves = MlflowCurves(tracked, Train.model_validate(config()), ranks, checkpoints)
    step_metrics = StepMetrics(
        step=9, unix_time=0.0, loss=1.0, gradient_norm=1.0, learning_rate=0.1, samples_per_second=1.0,
        flops_per_second=None, data_latency_ms=0.0, training_seconds=7200.0,
    )  # fmt: skip
    curves.step_metrics(step_metrics)
    assert tracked.log.call_args.args[0].metrics["gpu_hours"] == pytest.approx(8.0)
