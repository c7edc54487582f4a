"""The journal of logged metrics: from the training loop's memory to local disk, where they wait for MLflow."""

from __future__ import annotations

import atexit
import json
import logging
import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from mlops.contract.step import BadConfigError
from mlops.tracking.connection import check_metric_name
from mlops.tracking.spool_file import Line, SpoolFile

WRITE_SECONDS: Final = 0.5
MAX_POINTS: Final = 100_000
"""Most points kept in memory: those logged between two writes, and while the disk is full."""
MAX_STEP: Final = 1 << 63
"""Limit of a step: beyond it, MLflow 3.17 stores step 0, drops the rest of the request, and reports success."""
METRICS_PER_LINE: Final = 1000
"""Most metrics that MLflow takes in one request."""

_NUMBERS: Final = frozenset({float, int})
"""The usual types of values; subclasses are checked one by one."""

logger = logging.getLogger(__name__)


class Point(NamedTuple):
    """
    The metrics of one moment. Sent twice they are stored once, for MLflow's key holds every field.

    One is made in a training's hot loop: a tuple takes half of a frozen dataclass's time.
    """

    step: int | None
    """Training step; None for metrics of no training step, whose step is the run's age in seconds."""
    unix_time: float
    metrics: Mapping[str, float]


class Journal:
    """
    The way of every point: :meth:`log` in the loop, then to disk in a thread, then :meth:`read` and :meth:`mark_sent`
    in the sender's thread.

    Since all points go through the disk, a server that is away costs no memory, and a process that is killed loses half
    a second. A full disk loses points only if the server is away as well, and these are counted.

    :raises OSError: if the folder cannot be written
    """

    def __init__(self, folder: Path, *, max_points: int = MAX_POINTS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.leftovers = list(SpoolFile.left_in(folder))
        """Files of earlier attempts on this machine, oldest first."""
        self.file = SpoolFile.new(folder)
        self.num_lost = 0
        """Number of lost points."""
        self._points: deque[Point] = deque(maxlen=max_points)
        self._max_points = max_points
        self._names: set[str] = set()
        self._unwritten: list[Line] = []
        self._num_unsent = 0
        self._disk_full = False
        self._lock = threading.Lock()
        self.written = threading.Event()
        """Event that is set when there is something to send."""
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_regularly, name="tracking-journal", daemon=True)
        self._writer.start()
        atexit.register(self.write)

    def log(self, point: Point) -> None:
        """
        Record a point. Takes a microsecond or two and never waits.

        :raises BadConfigError: if MLflow would refuse a metric's name, or a value or the step is not a number
        """
        # Few lines and few objects: after a training's step neither code nor data is in the processor's cache.
        step, _, metrics = point
        names, kinds = metrics.keys(), set(map(type, metrics.values()))
        if not (names <= self._names and kinds <= _NUMBERS and (step is None or type(step) is int)):
            self._check(point)
        if step is not None and not -MAX_STEP < step < MAX_STEP:
            _refuse_step(point)
        if len(self._points) == self._max_points:
            self.num_lost += 1
        self._points.append(point)

    def _check(self, point: Point) -> None:
        step, _, metrics = point
        for value in metrics.values():
            if not isinstance(value, (float, int)):
                _refuse_value(metrics)
        if step is not None and not isinstance(step, int):
            _refuse_step(point)
        for name in metrics.keys() - self._names:
            check_metric_name(name)
        self._names.update(metrics)

    def write(self) -> None:
        """Write logged points to disk. Points that do not fit on a full disk stay in memory."""
        with self._lock:
            if not self._unwritten:
                self._unwritten = lines_of(self._points.popleft() for _ in range(len(self._points)))
                self._num_unsent += len(self._unwritten)
            if not self._unwritten:
                return
            try:
                self.file.append(self._unwritten)
                self._unwritten = []
                self._disk_full = False
            except OSError as error:
                if not self._disk_full:
                    logger.warning("cannot write metrics to %s: %s; keeping them in memory", self.file.path, error)
                self._disk_full = True
        self.written.set()

    def is_empty(self) -> bool:
        """Return True if all logged points were sent."""
        with self._lock:
            return not self._points and not self._num_unsent

    def read(self, max_metrics: int) -> tuple[list[Line], int | None]:
        """Return the next lines, and the place after them for :meth:`mark_sent`; None if they are in memory only."""
        with self._lock:
            lines, _, place = self.file.read(max_metrics)
            return (lines, place) if lines else (self._unwritten[:1], None)

    def mark_sent(self, lines: list[Line], place: int | None) -> None:
        """
        Mark lines as sent; lines in memory that were written since they were read stay unmarked, to be read again from
        the disk.
        """
        with self._lock:
            if place is not None:
                self.file.mark_sent(place)
            elif self._unwritten[:1] == lines:
                del self._unwritten[0]
            else:
                return
            self._num_unsent -= len(lines)

    def close(self) -> None:
        """Stop the thread, and write the rest; unsent lines stay on disk."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._writer.join()
        self.write()
        atexit.unregister(self.write)
        for file in (*self.leftovers, self.file):
            file.close()
        if self.num_lost:
            logger.warning("%d points of metrics were lost: the disk was full and MLflow away", self.num_lost)

    def _write_regularly(self) -> None:
        while not self._closing.wait(WRITE_SECONDS):
            self.write()


def lines_of(points: Iterable[Point]) -> list[Line]:
    """
    Return the metrics of all points in turn, in lines of at most 1,000. By hand: a third of the time of json.dumps.
    """
    heads: dict[str, str] = {}
    steps: list[int] = []
    metrics: list[str] = []
    for point in points:
        step = "null" if point.step is None else point.step
        tail = f',"timestamp":{int(point.unix_time * 1000)},"step":{step}}}'
        for name, value in point.metrics.items():
            head = heads.get(name) or heads.setdefault(name, f'{{"key":{json.dumps(name, ensure_ascii=False)},"value":')
            number = repr(float(value)) if math.isfinite(value) else _name_of(value)
            metrics.append(head + number + tail)
            steps.append(-1 if point.step is None else point.step)
    chunks = [slice(start, start + METRICS_PER_LINE) for start in range(0, len(metrics), METRICS_PER_LINE)]
    return [Line(min(steps[at]), len(metrics[at]), ",".join(metrics[at]).encode()) for at in chunks]


def _name_of(value: float) -> str:
    """Return the name of a number that JSON lacks: https://protobuf.dev/programming-guides/json/"""
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _refuse_step(point: Point) -> NoReturn:
    raise BadConfigError(f"the step of metrics {sorted(point.metrics)} is {point.step!r}, not an integer of 63 bits")


def _refuse_value(metrics: Mapping[str, float]) -> NoReturn:
    name, value = next((name, value) for name, value in metrics.items() if not isinstance(value, (float, int)))
    raise BadConfigError(
        f"metric {name!r} is a {type(value).__name__}, not a number: convert it by float() or .item() where the "
        "device may be waited for"
    )
