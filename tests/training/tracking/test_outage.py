"""MLflow freezes, dies and comes back; so do the processes that log. Each metric is there once in the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from busy_server import busy_server
from mlflow import MlflowClient
from tracking_server import Server, history

from mlops.contract.outages import MLFLOW
from mlops.contract.step import Failure, python_path
from mlops.tracking.connection import DeniedError, TrackingAwayError, TrackingError, connect
from mlops.tracking.model_registry import ModelRegistry
from mlops.tracking.run import Point, TrackedRun

Attempt = Callable[..., TrackedRun]
NO_SERVER = "http://127.0.0.1:9"
CHECKOUT = Path(__file__).parents[3]


def log(run: TrackedRun, steps: range, scale: float = 1.0) -> None:
    for step in steps:
        run.log(Point(step=step, unix_time=1000.0 + step * scale, metrics={"loss": step * scale, "lr": 0.1}))


def expected(steps: range, scale: float = 1.0) -> list[tuple[int, float]]:
    return [(step, step * scale) for step in steps]


def program(body: str, uri: str, spool: Path, experiment: str) -> list[str]:
    """A process of its own that tracks the run of the test."""
    head = f"""
        import os, resource, signal, sys, time
        sys.path[:0] = {python_path(CHECKOUT).split(":")!r}
        from pathlib import Path
        from mlops.tracking.run import Point, open_run

        spool = Path({str(spool)!r})
        run = open_run({uri!r}, experiment={experiment!r}, run_key="key", name="n", params={{}}, tags={{}},
                       spool=spool)

        def log(steps):
            for step in steps:
                run.log(Point(step=step, unix_time=1000.0 + step, metrics={{"loss": float(step), "lr": 0.1}}))
    """
    return [sys.executable, "-c", dedent(head) + dedent(body)]


@pytest.mark.server
def test_a_frozen_server_gets_everything_once_when_it_wakes(
    server: Server, client: MlflowClient, attempt: Attempt
) -> None:
    """Broken: requests that time out but were stored would be there twice, or those that were not never."""
    run = attempt()
    log(run, range(1, 11))
    run.flush()
    server.freeze()
    try:
        log(run, range(11, 2011))
        with pytest.raises(TrackingError, match="wait in"):
            run.flush(timeout=0.5)
    finally:
        server.thaw()
    run.finish()
    assert history(client, run.run_id, "loss") == expected(range(1, 2011))
    assert client.get_run(run.run_id).info.status == "FINISHED"


@pytest.mark.server
def test_training_starts_and_ends_while_the_server_is_away(
    server: Server, client: MlflowClient, attempt: Attempt, tmp_path: Path
) -> None:
    """Broken: nothing could be trained, or a training's metrics would be lost, because MLflow is restarted."""
    server.kill()
    run = attempt()
    log(run, range(1, 301))
    with pytest.raises(TrackingError, match=str(tmp_path)) as failure:
        run.finish(timeout=0.5)
    assert Failure.of(failure.value).outage == MLFLOW, "its task waits, and uses no try"

    again = attempt()
    log(again, range(301, 401))
    with pytest.raises(TrackingError):
        again.wait_until_open(0.1)
    server.start()
    again.finish()
    assert history(client, again.run_id, "loss") == expected(range(1, 401))
    assert client.get_run(again.run_id).info.status == "FINISHED"
    assert not list((tmp_path / "machine").iterdir()), "what was sent does not stay on disk"


@pytest.mark.server
@pytest.mark.parametrize(
    ("status", "expected"),
    [(429, TrackingAwayError), (503, TrackingAwayError), (401, DeniedError), (403, DeniedError), (500, TrackingError)],
)
def test_an_overload_is_told_from_a_refusal(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int, expected: type[TrackingError]
) -> None:
    """Broken: a wrong password would be waited with for six hours, or a proxy's busy minute use up a retry."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with busy_server(int(server.uri.rpartition(":")[2])) as proxy:
        registry = ModelRegistry(client=connect(proxy.url), name="none")
        assert registry.versions() == []
        proxy.status = status
        with pytest.raises(TrackingError) as caught:
            registry.versions()
        assert isinstance(caught.value, expected)
        assert isinstance(caught.value, TrackingAwayError) == (expected is TrackingAwayError)
        assert caught.value.retryable == (expected is not DeniedError)
        with pytest.raises(expected):
            connect(proxy.url)


@pytest.mark.server
def test_a_request_that_mlflow_itself_refuses_is_no_outage(server: Server) -> None:
    """Broken: a name that MLflow does not take would be tried for hours."""
    registry = ModelRegistry(client=connect(server.uri), name="a/b")
    with pytest.raises(DeniedError, match="INVALID_PARAMETER_VALUE"):
        registry.set_tag("1", "x" * 2000, "value")


@pytest.mark.server
def test_a_killed_process_leaves_its_metrics_to_the_next(
    server: Server, client: MlflowClient, attempt: Attempt, tmp_path: Path
) -> None:
    """Broken: a preempted machine would take the last minutes of the curves with it. One line is torn, too."""
    body = """
        log(range(1, 401))
        run.flush()
        print("stored", flush=True)
        sys.stdin.readline()
        log(range(401, 801))
        while b'"step":800}' not in next(spool.rglob("*.metrics")).read_bytes():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = program(body, server.uri, tmp_path / "machine", tmp_path.name)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "stored\n"
        server.freeze()
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.wait(60) == -signal.SIGKILL
    (file,) = (tmp_path / "machine").rglob("*.metrics")
    with file.open("ab") as torn:
        torn.write(b'801 1 {"key":"loss","val')
    server.thaw()
    run = attempt()
    log(run, range(701, 901))
    run.finish()
    assert history(client, run.run_id, "loss") == expected(range(1, 901))


@pytest.mark.server
def test_a_resumed_attempt_repeats_no_step_and_fills_the_gaps(client: MlflowClient, attempt: Attempt) -> None:
    """Broken: curves would show the steps after a checkpoint twice, or miss those that a lost machine had not sent."""
    first = attempt("one machine")
    log(first, range(1, 6))
    first.flush()
    second = attempt("another")  # goes on from a checkpoint at 3, as if the first had died
    log(second, range(4, 8), scale=2.0)
    log(second, range(10, 13))
    second.finish()
    third = attempt("another")
    log(third, range(6, 15), scale=3.0)
    third.finish()
    stored = [*expected(range(1, 6)), (6, 12.0), (7, 14.0), (8, 24.0), (9, 27.0), *expected(range(10, 13))]
    assert history(client, third.run_id, "loss") == [*stored, (13, 39.0), (14, 42.0)]


@pytest.mark.server
def test_a_run_that_is_deleted_is_opened_anew(client: MlflowClient, attempt: Attempt) -> None:
    """Broken: of two runs made at once the surplus one is deleted; its process could not track any more."""
    run = attempt()
    client.delete_run(run.run_id)
    log(run, range(1, 4))
    run.finish()
    assert history(client, run.run_id, "loss") == expected(range(1, 4))
    assert client.get_run(run.run_id).info.lifecycle_stage == "active"


def test_an_outage_costs_disk_and_no_memory(tmp_path: Path) -> None:
    """Broken: an hour without MLflow would end in the training being killed for its memory."""
    body = """
        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

        before = 0
        for start in range(0, 400_000, 20_000):
            log(range(start, start + 20_000))
            run._journal.write()
            before = before or start >= 40_000 and resident()
        print(resident() - before)
    """
    command = program(body, NO_SERVER, tmp_path, tmp_path.name)
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout)
    (file,) = tmp_path.rglob("*.metrics")
    assert file.stat().st_size > 40e6
    assert grown < 10e6


@pytest.mark.server
def test_a_full_disk_does_not_stop_metrics_while_the_server_is_there(
    server: Server, client: MlflowClient, attempt: Attempt, tmp_path: Path
) -> None:
    """Broken: a disk that checkpoints have filled would end the curves as well."""
    body = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        log(range(1, 41))
        run.flush()
        log(range(41, 2001))
        run.finish()
    """
    subprocess.run(program(body, server.uri, tmp_path / "machine", tmp_path.name), check=True, timeout=100)
    assert history(client, attempt().run_id, "loss") == expected(range(1, 2001))


def test_what_is_written_while_it_is_sent_counts_once(tmp_path: Path) -> None:
    """Broken: a disk that has room again during a request would keep the run open until its end times out."""
    body = """
        no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        log(range(1, 11))
        journal = run._journal
        journal.write()
        lines, place = journal.read(1000)
        assert lines and place is None
        resource.setrlimit(resource.RLIMIT_FSIZE, no_limit)
        journal.write()
        journal.mark_sent(lines, place)
        assert not journal.is_empty()
        again, place = journal.read(1000)
        assert again == lines and place is not None
        journal.mark_sent(again, place)
        assert journal.is_empty()
        os._exit(0)
    """
    subprocess.run(program(body, NO_SERVER, tmp_path, tmp_path.name), check=True, timeout=100)


@pytest.mark.server
def test_the_training_process_does_not_import_mlflow(server: Server, tmp_path: Path) -> None:
    """Broken: the first steps would share the interpreter with seconds of import, after each restart."""
    body = """
        log(range(1, 11))
        run.finish()
        assert "mlflow" not in sys.modules
    """
    subprocess.run(program(body, server.uri, tmp_path, tmp_path.name), check=True, timeout=100)


@pytest.mark.server
def test_threads_log_into_one_run(client: MlflowClient, attempt: Attempt) -> None:
    """Broken: metrics of the checkpoint and system threads would get lost between those of the loop."""
    run = attempt()
    ranges = [range(start, start + 500) for start in (0, 500, 1000, 1500)]
    threads = [threading.Thread(target=log, args=(run, steps)) for steps in ranges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.finish()
    assert history(client, run.run_id, "loss") == expected(range(2000))
