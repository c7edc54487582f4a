from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mlops_provider.step import BadConfigError
from training.tracking.connection import TrackingError, check_reachable, connect
from training.tracking.provenance import git_commit, lock_hashes
from training.tracking.run import Point, TrackedRun, open_run


@pytest.fixture
def run(project: Any) -> TrackedRun:
    return open_run(
        connect(project.tracking_uri), experiment=project.pipeline, run_key="key", name="n", params={"a": 1}, tags={}
    )


def test_processes_that_open_a_run_at_once_share_it(project: Any) -> None:
    """Broken: a duplicate process would track one training as two."""

    def opened(_: int) -> str:
        client = connect(project.tracking_uri)
        return open_run(client, experiment=project.pipeline, run_key="k", name="n", params={"a": 1}, tags={}).run_id

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(opened, range(3)))
    client = connect(project.tracking_uri)
    experiment = client.get_experiment_by_name(project.pipeline)
    (only,) = client.search_runs([experiment.experiment_id])
    assert opened(0) == only.info.run_id


def test_points_sent_twice_are_stored_once(run: TrackedRun) -> None:
    for _ in range(2):
        run.log(Point(step=1, unix_time=1000.5, metrics={"loss": 0.25}))
        run.flush()
    (metric,) = run.client.get_metric_history(run.run_id, "loss")
    assert (metric.step, metric.value, metric.timestamp) == (1, 0.25, 1000500)


def test_a_metric_that_was_refused_fails_the_end_and_not_the_middle(run: TrackedRun) -> None:
    run.log(Point(step=1, unix_time=1.0, metrics={"not@allowed": 1.0}))
    run.log(Point(step=2, unix_time=2.0, metrics={"loss": 1.0}))
    with pytest.raises(TrackingError, match=run.run_id):
        run.flush()


@pytest.mark.parametrize(
    ("uri", "error"),
    [
        ("http://127.0.0.1:9", TrackingError),
        ("http://no-such-host.invalid:5000", TrackingError),
        ("", BadConfigError),
        ("file:///tmp/mlruns", BadConfigError),
    ],
)
def test_a_server_that_is_not_there_is_named_with_the_fix(uri: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="MLFLOW_TRACKING_URI"):
        check_reachable(uri)


def test_the_commit_says_whether_the_checkout_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: a model would claim to come from a commit that does not hold its code."""
    monkeypatch.delenv("MLOPS_GIT_COMMIT", raising=False)
    assert git_commit(tmp_path) == "unknown"

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "requirements.txt").write_text("a==1\n")
    git("add", ".")
    git("commit", "-qm", "one")
    head = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == head
    before = lock_hashes(tmp_path)["requirements.txt"]
    (tmp_path / "requirements.txt").write_text("a==2\n")
    assert git_commit(tmp_path) == f"{head}-dirty"
    assert lock_hashes(tmp_path)["requirements.txt"] != before
    monkeypatch.setenv("MLOPS_GIT_COMMIT", "abc")
    assert git_commit(tmp_path) == "abc"
