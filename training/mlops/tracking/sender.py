"""The thread that opens the run and sends it the journal, however long MLflow is away."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mlops.tracking.connection import TrackingError
from mlops.tracking.journal import METRICS_PER_LINE, Journal
from mlops.tracking.opening import Opening, OpenRun, open_on_server, read_run
from mlops.tracking.rest import RefusedError, Rest
from mlops.tracking.spool_file import Line, SpoolFile

SEND_SECONDS: Final = 2.0
"""Seconds between two requests while all is well: one takes some milliseconds of a processor whatever it holds."""
FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 10.0
"""Most seconds between tries while the server is away, hence until its return is noticed."""
REFUSED_TAG: Final = "mlops.refused_metrics"

logger = logging.getLogger(__name__)


class Sender(threading.Thread):
    """
    Opens the run, sends what earlier attempts left on this disk, then the journal, in order.

    Its state may be waited for by :attr:`changed`.
    """

    def __init__(self, tracking_uri: str, opening: Opening, journal: Journal) -> None:
        super().__init__(name="tracking-sender", daemon=True)
        self.changed = threading.Condition()
        self.run_id: str | None = None
        self.error: Exception | None = None
        """The last error; None while all is well."""
        self.failures = 0
        """Number of failed tries so far."""
        self.ended = False
        """True if the run has its last status."""
        self.tags: dict[str, str] = {}
        """Tags that the run gets when it ends."""
        self.broken = False
        """True if the thread died of an unexpected error."""
        self._rest = Rest(tracking_uri)
        self._opening = opening
        self._journal = journal
        self._run: OpenRun | None = None
        self._refused: set[str] = set()
        self._hurry = threading.Event()
        self._last_status: str | None = None
        self._stopping = False

    def hurry(self) -> None:
        """Try at once, whatever the pause."""
        self._hurry.set()
        self._journal.written.set()

    def end(self, status: str) -> None:
        """Give the run its last status once all is sent, and stop."""
        self._last_status = status
        self.hurry()

    def stop(self) -> None:
        """Stop as soon as the request under way is through."""
        self._stopping = True
        self.hurry()

    def run(self) -> None:
        pause, sent_at = FIRST_PAUSE_SECONDS, -SEND_SECONDS
        while not self._stopping:
            try:
                more = self._send_some()
            except TrackingError as error:
                if isinstance(error, RefusedError) and error.is_gone:
                    self._run = None  # another one is opened
                self._set_error(error)
                self._hurry.wait(pause)
                self._hurry.clear()
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
                continue
            except Exception as error:
                self.broken = True
                self._set_error(error)
                raise
            pause = FIRST_PAUSE_SECONDS
            self._set_error(None)
            if more:
                sent_at = time.monotonic()
            elif not self._stopping:
                self._journal.written.wait()
                self._journal.written.clear()
                # With what comes meanwhile.
                self._hurry.wait(max(0.0, sent_at + SEND_SECONDS - time.monotonic()))
                self._hurry.clear()

    def _send_some(self) -> bool:
        """Send some lines; return True if there may be more."""
        run = self._run
        if run is None:
            run = self._run = self._opened()
            self.run_id = run.run_id
        lines, place = self._journal.read(METRICS_PER_LINE)
        if lines:
            self._send(run, lines)
            self._journal.mark_sent(lines, place)
            return True
        if self._last_status is not None and self._journal.is_empty():
            if self._opening.leads:
                for name, value in self.tags.items():
                    run.set_tag(name, value)
                run.end(self._last_status)
            self._stopping = self.ended = True
        return False

    def _opened(self) -> OpenRun:
        run = open_on_server(self._rest, self._opening)
        for leftover in self._journal.leftovers:
            num_sent = self._send_leftover(run, leftover)
            if num_sent:
                logger.info("sent %d metrics that an earlier attempt had left in %s", num_sent, leftover.path)
                run = read_run(self._rest, run.run_id)
        return run

    def _send_leftover(self, run: OpenRun, leftover: SpoolFile) -> int:
        num_metrics = 0
        while True:
            lines, damaged, place = leftover.read(METRICS_PER_LINE)
            if damaged:
                logger.warning("%d lines of %s are damaged: their metrics are lost", damaged, leftover.path)
            if lines:
                self._send(run, lines)
            elif not damaged:
                return num_metrics
            leftover.mark_sent(place)
            num_metrics += sum(line.num_metrics for line in lines)

    def _send(self, run: OpenRun, lines: Sequence[Line]) -> None:
        metrics = b",".join(filter(None, (self._missing(run, line) for line in lines)))
        if not metrics:
            return
        try:
            run.log(metrics)
        except RefusedError as error:
            if not error.blames_content or error.is_gone:
                raise
            self._send_apart(run, json.loads(b"[%s]" % metrics))

    def _missing(self, run: OpenRun, line: Line) -> bytes:
        """Return the metrics of a line that the server does not have."""
        if line.min_step > run.floor and not self._refused:
            return line.metrics
        kept = []
        for metric in json.loads(b"[%s]" % line.metrics):
            if metric["step"] is None:
                metric["step"] = run.step_of(metric["timestamp"])
            if metric["key"] not in self._refused and not run.holds(metric["key"], metric["step"]):
                kept.append(metric)
        return _joined(kept)

    def _send_apart(self, run: OpenRun, metrics: Sequence[dict[str, Any]]) -> None:
        """Halve a refused request until the metric that the server does not take is alone."""
        metrics = [metric for metric in metrics if metric["key"] not in self._refused]
        if not metrics:
            return
        try:
            run.log(_joined(metrics))
        except RefusedError as error:
            if not error.blames_content or error.is_gone:
                raise
            if len(metrics) == 1:
                self._leave_out(run, metrics[0]["key"], error)
                return
            middle = len(metrics) // 2
            self._send_apart(run, metrics[:middle])
            self._send_apart(run, metrics[middle:])

    def _leave_out(self, run: OpenRun, name: str, error: RefusedError) -> None:
        logger.warning("MLflow refuses metric %r, which is left out from now on: %s", name, error)
        self._refused.add(name)
        run.set_tag(REFUSED_TAG, ", ".join(sorted(self._refused)))

    def _set_error(self, error: Exception | None) -> None:
        if error is not None and self.error is None:
            logger.warning("metrics wait on disk: %s", error)
        elif error is None and self.error is not None:
            logger.info("MLflow takes metrics again")
        with self.changed:
            self.failures += error is not None
            self.error = error
            self.changed.notify_all()


def _joined(metrics: Iterable[dict[str, Any]]) -> bytes:
    return json.dumps(list(metrics), separators=(",", ":"))[1:-1].encode()
