from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from tracking_server import Server, history

from mlops.contract.step import BadConfigError, python_path
from mlops.tracking.connection import TrackingError, check_reachable, connect
from mlops.tracking.provenance import git_commit, lock_hashes
from mlops.tracking.run import Point, TrackedRun, open_run, reopen_run

Attempt = Callable[..., TrackedRun]


@pytest.mark.server
def test_processes_that_open_a_run_at_once_share_it(client: MlflowClient, attempt: Attempt, tmp_path: Path) -> None:
    """Broken: a duplicate process would track one training as two."""
    with ThreadPoolExecutor(3) as pool:
        runs = list(pool.map(lambda _: attempt(), range(3)))
    ids = {run.run_id for run in runs}
    for run in runs:
        run.log(Point(step=1, unix_time=1.0, metrics={"loss": 0.5}))
        run.flush()
    experiment = client.get_experiment_by_name(tmp_path.name)
    (only,) = client.search_runs([experiment.experiment_id])
    assert {run.run_id for run in runs} == {only.info.run_id}, f"first {ids}"


@pytest.mark.server
def test_points_sent_twice_are_stored_once(client: MlflowClient, attempt: Attempt) -> None:
    """Broken: an epoch that is reported again at the end would be there twice."""
    run = attempt()
    for _ in range(2):
        run.log(Point(step=1, unix_time=1000.5, metrics={"loss": 0.25, "not a number": float("nan")}))
        run.flush()
    (metric,) = client.get_metric_history(run.run_id, "loss")
    assert (metric.step, metric.value, metric.timestamp) == (1, 0.25, 1000500)
    assert len(client.get_metric_history(run.run_id, "not a number")) == 1


@pytest.mark.server
@pytest.mark.parametrize(
    ("step", "metrics", "named"),
    [
        (1, {"not@allowed": 1.0}, "not@allowed"),
        (1, {"../loss": 1.0}, "../loss"),
        (1, {"x" * 251: 1.0}, "x" * 251),
        (1, {"loss": "0.5"}, "loss"),
        (1 << 63, {"loss": 0.5}, "loss"),
        (1.5, {"loss": 0.5}, "loss"),
    ],
    ids=["letter", "path", "length", "text", "far step", "half step"],
)
def test_what_mlflow_would_refuse_is_refused_in_the_first_step(
    attempt: Attempt, step: Any, metrics: Any, named: str
) -> None:
    """Broken: it would be missed after hours, or fail the end of the training."""
    with pytest.raises(BadConfigError, match=re.escape(named)):
        attempt().log(Point(step=step, unix_time=1.0, metrics=metrics))


@pytest.mark.server
def test_a_metric_that_only_the_server_refuses_takes_no_other_with_it(
    client: MlflowClient, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a server with stricter rules than ours would hold up or lose all metrics after such a one."""
    monkeypatch.setattr("mlops.tracking.journal.check_metric_name", lambda name: None)
    run = attempt()
    for step in range(1, 301):
        run.log(Point(step=step, unix_time=float(step), metrics={"loss": step / 2}))
    for step in (301, 302):
        run.log(Point(step=step, unix_time=301.0, metrics={"loss": 0.0, "not@allowed": 1.0}))
    run.finish()
    assert len(history(client, run.run_id, "loss")) == 302
    assert client.get_run(run.run_id).data.tags["mlops.refused_metrics"] == "not@allowed"


@pytest.mark.server
def test_an_attempt_with_other_params_goes_on_in_the_run(client: MlflowClient, attempt: Attempt) -> None:
    """Broken: a training that resumes with fewer ranks could not be tracked any more."""
    params = {f"p{number}": number for number in range(150)}
    attempt(params={**params, "world_size": 4}).abandon()
    run = attempt(params={**params, "world_size": 2, "new": 1})
    run.finish()
    data = client.get_run(run.run_id).data
    logged = {**{name: str(value) for name, value in params.items()}, "world_size": "4", "new": "1"}
    assert data.params == {**logged, "mlops.election": "kept"}
    assert data.tags["mlops.latest.world_size"] == "2"


@pytest.mark.server
def test_only_the_leader_says_how_the_run_is(client: MlflowClient, attempt: Attempt) -> None:
    """Broken: the first node to finish would end the run of all."""
    leader, other = attempt(), attempt(leads=False)
    other.log(Point(step=1, unix_time=1.0, metrics={"loss": 1.0}))
    other.finish()
    assert client.get_run(leader.run_id).info.status == "RUNNING"
    assert history(client, leader.run_id, "loss") == [(1, 1.0)]
    leader.finish()
    assert client.get_run(leader.run_id).info.status == "FINISHED"


@pytest.mark.server
def test_files_and_values_are_stored_beside_the_metrics(server: Server, attempt: Attempt) -> None:
    run = attempt(tags={"mlops.seed": "7"})
    run.log_bytes("model", {"weights.pt": b"w"})
    stored = reopen_run(connect(server.uri), run.run_id)
    stored.log_values({"test_auc": 0.5}, {"passed": "yes"})
    assert (stored.tag("passed"), stored.tag("mlops.seed"), stored.tag("no")) == ("yes", "7", None)
    assert [file.path for file in stored.client.list_artifacts(run.run_id, "model")] == ["model/weights.pt"]


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
    with pytest.raises(error, match="TRACKING_URI"):
        check_reachable(uri)


@pytest.mark.server
def test_feast_is_not_imported_to_talk_to_mlflow(server: Server) -> None:
    """Broken: every step that ends at MLflow would take three seconds more."""
    program = (
        "import sys; from mlops.tracking.connection import connect; "
        f"connect({server.uri!r}).search_experiments(); "
        "from mlflow.tracking.request_header.registry import _request_header_provider_registry as providers; "
        "print(len(list(providers)), 'feast' in sys.modules)"
    )
    paths = {**os.environ, "PYTHONPATH": python_path(Path())}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=paths)
    assert ended.stdout.split() == ["2", "False"], "MLflow's own two"


def test_an_address_that_is_none_is_refused_before_the_work(tmp_path: Path) -> None:
    """Broken: a training would wait in vain for a server that cannot be."""
    with pytest.raises(BadConfigError, match="TRACKING_URI"):
        open_run("mlruns", experiment="e", run_key="k", name="n", params={}, tags={}, spool=tmp_path)


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
