"""
What a metric call costs, and what tracking takes from a training's throughput: ours beside none and MLflow's own
client, synchronous and asynchronous, with the server up, slow and down.

Every contender makes steps of about 2 ms and logs one metric in each, many times as often as a training does.

Steps per second show only a loss of many percent, for the machine is no steadier. So what tracking takes is also added
up: the calls themselves, and the processor's time of all threads but the loop's.
"""

from __future__ import annotations

import json
import logging
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.rounds import OURS, in_rotation, records
from benchmarks.training.programs.servers import mlflow_server, slow_server
from mlops.tracking.run import Point, open_run
from mlops_provider.local.ports import free_port

STEP_SECONDS: Final = 0.002
SECONDS: Final = 1.0
"""Of steps, for each contender and round."""
ROUNDS: Final = {"up": 3, "slow": 1, "down": 3}
TRAINING_METRICS: Final = ("loss", "learning_rate", "gradient_norm", "throughput", "loading", "epoch", "scale", "share")
TRAINING_SECONDS: Final = 5.0
TRAINING_ROUNDS: Final = 3
BOUND_MICROSECONDS: Final = 10.0
BOUND_PERCENT: Final = 0.5
NONE, SYNC, ASYNC = "none", "log_metric", "log_metric_async"
CONTENDERS: Final = {"up": (NONE, SYNC, ASYNC), "slow": (NONE, SYNC), "down": (NONE,)}
"""Where the server is down MLflow's client tries for minutes, and where it is slow its queue takes as long to empty."""
BASELINES: Final = {
    NONE: ("the same steps without tracking", 0.995),
    SYNC: ("mlflow.log_metric", 1.0),
    ASYNC: ("mlflow.log_metric(synchronous=False)", 1.0),
}

Log = Callable[[int, float], object]
"""Of a step and a value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """Some steps, and what logging took, in seconds."""

    seconds: float
    calls: Sequence[float]
    """One for each step."""
    beside: float
    """Processor time of the other threads."""

    @property
    def steps_per_second(self) -> float:
        return len(self.calls) / self.seconds

    @property
    def percent(self) -> float:
        """Of the time, for calls and other threads."""
        return 100 * (sum(self.calls) + self.beside) / self.seconds


class Steps:
    """Steps of about the same length each, of torch's kernels: they leave the interpreter to other threads."""

    def __init__(self) -> None:
        self._matrix = torch.randn(128, 128) / 12
        begin, count = time.perf_counter(), 2000
        for _ in range(count):
            torch.mm(self._matrix, self._matrix)
        self._num_products = max(1, round(STEP_SECONDS * count / (time.perf_counter() - begin)))

    def run(self, log: Log, seconds: float = SECONDS) -> Ran:
        calls: list[float] = []
        beside = -others()
        begin = now = time.perf_counter()
        while now - begin < seconds:
            for _ in range(self._num_products):
                torch.mm(self._matrix, self._matrix)
            before = time.perf_counter()
            log(len(calls), 0.5)
            now = time.perf_counter()
            calls.append(now - before)
        return Ran(seconds=now - begin, calls=calls, beside=beside + others())


def others() -> float:
    """Processor seconds of all threads but this one, so far."""
    return time.process_time() - time.thread_time()


@contextmanager
def tracked(address: str, run_key: str, spool: Path, *, up: bool, metrics: Sequence[str] = ("loss",)) -> Iterator[Log]:
    run = open_run(
        address, experiment="tracking", run_key=run_key, name=run_key, params={}, tags={}, spool=spool
    )  # fmt: skip
    if up:
        run.wait_until_open(60)
    yield lambda step, value: run.log(Point(step=step, unix_time=time.time(), metrics=dict.fromkeys(metrics, value)))
    # Else its sender would work on while the next contender is measured.
    run.finish() if up else run.abandon(timeout=0.1)


@contextmanager
def mlflow_client(address: str, *, synchronous: bool) -> Iterator[Log]:
    import mlflow

    mlflow.set_tracking_uri(address)
    mlflow.set_experiment("tracking")
    with mlflow.start_run():
        yield lambda step, value: mlflow.log_metric("loss", value, step=step, synchronous=synchronous)
        if not synchronous:
            mlflow.flush_async_logging()


@contextmanager
def untracked() -> Iterator[Log]:
    yield lambda step, value: None


def measure(condition: str, address: str, scratch: Path, steps: Steps) -> dict[str, list[Ran]]:
    """Each contender's rounds."""
    rounds: dict[str, list[Ran]] = {}
    number = iter(range(1000))

    def opened(name: str) -> Any:
        if name == OURS:
            return tracked(address, f"{condition}-{next(number)}", scratch / "spool", up=condition != "down")
        return untracked() if name == NONE else mlflow_client(address, synchronous=name == SYNC)

    def timed(name: str) -> float:
        with opened(name) as log:
            ran = steps.run(log)
        rounds.setdefault(name, []).append(ran)
        return ran.steps_per_second

    contenders = (OURS, *CONTENDERS[condition])
    in_rotation({name: partial(timed, name) for name in contenders}, ROUNDS[condition])
    # The first round is not measured.
    return {name: found[1:] for name, found in rounds.items()}


def training_records(condition: str, address: str, scratch: Path, steps: Steps) -> list[dict[str, Any]]:
    """What tracking takes as the training loop logs: some metrics at once, once a second."""
    shares = []
    for number in range(TRAINING_ROUNDS):
        key = f"{condition}-training-{number}"
        with tracked(address, key, scratch / "spool", up=condition != "down", metrics=TRAINING_METRICS) as log:
            last = 0.0

            def now_and_then(step: int, value: float, log: Log = log) -> None:
                nonlocal last
                if (now := time.monotonic()) - last > 1:
                    last = now
                    log(step, value)

            shares.append(steps.run(now_and_then, TRAINING_SECONDS).percent)
    values = {OURS: shares, "bound": [BOUND_PERCENT] * TRAINING_ROUNDS}
    name = f"training.tracking_share_of_a_training_{condition}"
    return records(name, values, unit="%", baselines={"bound": ("at most", 1.0)}, better="lower")


def call_records(rounds: Mapping[str, Sequence[Ran]]) -> list[dict[str, Any]]:
    """The median call, and the mean, in which the waits for another thread or process count."""
    made = []
    for what, of in (("call", statistics.median), ("call_mean", statistics.mean)):
        values = {name: [1e6 * of(ran.calls) for ran in found] for name, found in rounds.items()}
        values["bound"] = [BOUND_MICROSECONDS] * len(rounds[OURS])
        baselines = {"bound": ("at most", 1.0)} | {name: BASELINES[name] for name in (SYNC, ASYNC)}
        made += records(f"training.metric_{what}", values, unit="µs", baselines=baselines, better="lower")
    return made


def tracking_records(condition: str, rounds: Mapping[str, Sequence[Ran]]) -> list[dict[str, Any]]:
    rates = {name: [ran.steps_per_second for ran in found] for name, found in rounds.items()}
    baselines = {name: BASELINES[name] for name in CONTENDERS[condition]}
    made = records(f"training.tracking_{condition}", rates, unit="steps/s", baselines=baselines)
    shares = {name: [ran.percent for ran in found] for name, found in rounds.items()}
    shares["bound"] = [BOUND_PERCENT] * len(rounds[OURS])
    baselines = {"bound": ("at most", 1.0)} | {name: each for name, each in baselines.items() if name != NONE}
    return made + records(f"training.tracking_share_{condition}", shares, unit="%", baselines=baselines, better="lower")


def main(scratch: Path) -> list[dict[str, Any]]:
    steps = Steps()
    made = []
    with mlflow_server(scratch) as port, slow_server(port, scratch) as slow:
        ports = {"up": port, "slow": slow, "down": free_port()}
        for condition, number in ports.items():
            rounds = measure(condition, f"http://127.0.0.1:{number}", scratch, steps)
            made += call_records(rounds) if condition == "up" else []
            made += tracking_records(condition, rounds)
            made += training_records(condition, f"http://127.0.0.1:{number}", scratch, steps)
    return made


if __name__ == "__main__":
    # Told to end, it stops its servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(json.dumps(main(Path(sys.argv[2]))))
