"""A hundred experiments of two users, asked for at once, in a real Airflow; and as many runs that do nothing."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import psutil

from benchmarks.record import Record, compare
from mlops.client import Client
from mlops_provider.local.client import AirflowClient, run_place
from mlops_provider.local.ports import free_port
from mlops_provider.local.stack import Stack
from tests.project import make_project, with_passwords

NUM = int(os.environ.get("EXPERIMENTS", "100"))
USERS = ("ana", "ben")
PIPELINE = "events"
PLAIN = "do_nothing_once"
AT_ONCE = 16
"""Requests at once, and runs of a DAG (Airflow's default)."""
SECONDS = 3600.0
READ_EVERY = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Day:
    """What many runs took that were asked for at once."""

    wall: float
    """Seconds from the first request to the end of the last run."""
    cpu: float
    """Processor seconds of the whole machine, less those of this process."""
    asked: Sequence[float]
    """Seconds of each request for a run."""
    order: Sequence[int]
    """The users of the runs, in the order in which they began."""


def measure(home: Path, scratch: Path) -> list[Record]:
    stack = _stack(home, scratch)
    try:
        for _ in stack.start():
            pass
        admin = AirflowClient(stack.airflow_url, ("admin", _password("admin")))
        for dag_id in (f"{PIPELINE}.experiments", PLAIN):
            admin.wait_for_dag(dag_id)
            admin.unpause(dag_id)
        clients = [Client(stack.airflow_url, user, _password(user)) for user in USERS]
        plain = [AirflowClient(stack.airflow_url, (user, _password(user))) for user in USERS]
        # Until its runtimes are warm and the snapshot is there; a night makes it on other days.
        clients[0].wait(_experiment(clients[0], NUM), SECONDS)
        with _reading(clients[0], admin) as (reads, plain_reads):
            ours = _day(admin, f"{PIPELINE}.experiments", lambda user, number: _experiment(clients[user], number))
        nothing = _day(admin, PLAIN, lambda user, number: _nothing(plain[user], number))
    finally:
        stack.stop()
    return records(ours, nothing, reads, plain_reads)


def records(ours: Day, nothing: Day, reads: Sequence[float], plain_reads: Sequence[float]) -> list[Record]:
    beside = f"{NUM} runs of one task that does nothing"
    day = 86400.0 * len(psutil.Process().cpu_affinity())
    return [
        compare(
            "experiments.cpu_per_run", unit="CPU s", ours=ours.cpu / NUM, baseline=beside,
            baseline_value=nothing.cpu / NUM, target=4.0,
        ),
        compare(
            "experiments.runs_a_day_by_cpu", unit="runs", ours=day / (ours.cpu / NUM), baseline="500 a day",
            baseline_value=500.0, better="higher", target=20.0,
        ),
        compare(
            "experiments.wall", unit="s", ours=ours.wall, baseline=beside, baseline_value=nothing.wall, target=3.0
        ),
        compare(
            "experiments.ask_p99", unit="ms", ours=_p99(ours.asked), baseline=f"Airflow's own, {beside}",
            baseline_value=_p99(nothing.asked), target=3.0,
        ),
        compare(
            "experiments.read_p99", unit="ms", ours=_p99(reads), baseline="Airflow's own run, and its tasks, in turn",
            baseline_value=_p99(plain_reads), target=2.0,
        ),
        compare(
            "experiments.ahead_of_the_other_user", unit="runs", ours=_lead(ours.order),
            baseline="Airflow's own order", baseline_value=_lead(nothing.order), target=0.5,
        ),
    ]  # fmt: skip


def _stack(home: Path, scratch: Path) -> Stack:
    project = make_project(scratch / "home")
    shutil.copy(home / "benchmarks/dags/do_nothing.py", project / "dags")
    passwords = {name: _password(name) for name in ("admin", *USERS)}
    return Stack(
        home=project,
        root=scratch / "local",
        airflow_port=free_port(),
        mlflow_port=free_port(),
        settings=with_passwords(scratch / "passwords.json", passwords, {"admin": "admin"}),
    )


def _password(user: str) -> str:
    return f"the-password-of-{user}"


def _experiment(client: Client, number: int) -> str:
    """Train and evaluate with another seed; a user's experiments share snapshot and features."""
    settings = {"train.seed": number, "train.epochs": 1}
    return client.submit(PIPELINE, as_of="2024-01-10", settings=settings).id


def _nothing(client: AirflowClient, number: int) -> str:
    client.trigger(PLAIN, f"run_{number}", None)
    return f"{PLAIN}@run_{number}"


def _day(admin: AirflowClient, dag_id: str, ask: Callable[[int, int], str]) -> Day:
    """:param ask: asks for a run in the name of a user, and returns its id"""
    asked: list[float] = []
    # The second user comes when all of the first one's have been asked for.
    halves = [range(NUM // 2), range(NUM // 2, NUM)]

    def timed(user: int, number: int) -> str:
        begun = time.monotonic()
        found = ask(user, number)
        asked.append(time.monotonic() - begun)
        return found

    begun, cpu = time.monotonic(), _machine_cpu()
    ids: dict[str, int] = {}
    with ThreadPoolExecutor(AT_ONCE) as several:
        for user, half in enumerate(halves):
            for found in several.map(timed, itertools.repeat(user), half):
                ids[found.partition("@")[2]] = user
    while True:
        runs = [run for run in admin.every(f"/dags/{dag_id}/dagRuns", "dag_runs") if run["dag_run_id"] in ids]
        states = [run["state"] for run in runs]
        if "failed" in states:
            raise RuntimeError(f"{states.count('failed')} runs of {dag_id} have failed")
        if len(runs) == NUM and set(states) == {"success"}:
            break
        if time.monotonic() - begun > SECONDS:
            raise TimeoutError(f"{dag_id}: {len(runs)} runs of {NUM}, {states.count('success')} of them done")
        time.sleep(1)
    wall, cpu = time.monotonic() - begun, _machine_cpu() - cpu
    runs.sort(key=lambda run: str(run["start_date"]))
    return Day(wall=wall, cpu=cpu, asked=asked, order=[ids[run["dag_run_id"]] for run in runs])


@contextmanager
def _reading(client: Client, admin: AirflowClient) -> Iterator[tuple[list[float], list[float]]]:
    """Read runs while the block lasts, in turn by our API and by Airflow's own; seconds of each."""
    ours: list[float] = []
    theirs: list[float] = []
    errors: list[BaseException] = []
    is_over = threading.Event()
    chance = random.Random(1)

    def read() -> None:
        try:
            while not is_over.wait(READ_EVERY):
                found = client.runs(PIPELINE, most=100)
                if not found:
                    continue
                run = chance.choice(list(found))
                begun = time.monotonic()
                client.run(run.id)
                between = time.monotonic()
                place = run_place(*run.id.split("@"))
                admin.request("GET", place)
                admin.request("GET", f"{place}/taskInstances")
                ours.append(between - begun)
                theirs.append(time.monotonic() - between)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield ours, theirs
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


def _machine_cpu() -> float:
    whole, own = psutil.cpu_times(), psutil.Process().cpu_times()
    return float(whole.user + whole.system - own.user - own.system)


def _p99(seconds: Sequence[float]) -> float:
    """Milliseconds."""
    return 1000 * quantiles(seconds, n=100)[98]


def _lead(order: Sequence[int]) -> float:
    """By how many runs the first user was ahead at most, as runs began."""
    leads = itertools.accumulate(1 if user == 0 else -1 for user in order)
    return float(max(leads))
