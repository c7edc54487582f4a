from __future__ import annotations

import pytest
import torch

from mlops.trainer.devices import NoGpuError, check_gpus

GIVEN = {"NVIDIA_VISIBLE_DEVICES": "GPU-8a56"}
TOO_OLD = "The NVIDIA driver on your system is too old (found version 11040)."


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_a_gpu_that_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a wrong driver would train on the CPU for a week, on a machine that is paid for its GPUs."""

    def init() -> None:
        raise RuntimeError(TOO_OLD)

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(NoGpuError, match="too old") as raised:
        check_gpus(GIVEN)
    assert TOO_OLD in str(raised.value)
    assert raised.value.retryable, "another node may have another driver"


def test_a_build_without_cuda_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: as above."""
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(NoGpuError, match="without CUDA"):
        check_gpus(GIVEN)


@pytest.mark.parametrize(
    "environment",
    [{}, {"NVIDIA_VISIBLE_DEVICES": "void"}, {"NVIDIA_VISIBLE_DEVICES": "all"}, GIVEN | {"CUDA_VISIBLE_DEVICES": ""}],
    ids=["none given", "void", "an image's default", "hidden"],
)
def test_without_a_gpu_the_cpu_trains(environment: dict[str, str]) -> None:
    """Broken: a laptop could not train."""
    check_gpus(environment)
