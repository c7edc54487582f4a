"""Plain progress lines for the task log."""

from __future__ import annotations

import logging
import time
from typing import Final

INTERVAL_SECONDS: Final = 5.0

logger = logging.getLogger(__name__)


class Progress:
    """
    Says every few seconds how far an epoch is.

    :param speaks: False on the ranks other than 0
    """

    def __init__(self, *, epochs: int, steps_per_epoch: int, speaks: bool) -> None:
        self._epochs = epochs
        self._steps_per_epoch = steps_per_epoch
        self._speaks = speaks
        self._start_epoch(0)

    def _start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._started = self._last_line = time.monotonic()
        self._num_samples = 0

    def step(self, epoch: int, step: int, loss: float, num_samples: int) -> None:
        """
        :param step: optimizer steps done in this epoch
        :param loss: mean over this rank's part of the global batch
        :param num_samples: samples of the global batch
        """
        if epoch != self._epoch:
            self._start_epoch(epoch)
        self._num_samples += num_samples
        now = time.monotonic()
        if not self._speaks or now - self._last_line < INTERVAL_SECONDS:
            return
        self._last_line = now
        elapsed = now - self._started
        remaining = self._steps_per_epoch * (self._epochs - epoch + 1) - step
        logger.info(
            "epoch %d/%d  step %d/%d  loss %.4f  %.0f samples/s  about %.0f s left",
            *(epoch, self._epochs, step, self._steps_per_epoch, loss),
            *(self._num_samples / elapsed, remaining * elapsed / step),
        )
