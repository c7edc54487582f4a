"""Three nights of the flight_ranking pipeline, followed live, and a short report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mlops.client.calls import REQUEST_SECONDS
from mlops.contract.refs import (
    CheckpointRef,
    DatasetRef,
    FeaturesRef,
    ModelVersionRef,
    ReportRef,
    StudyRef,
    ValidationRef,
    ref_from_wire,
)
from mlops.contract.rest import FINISHED
from mlops.contract.settings import settings_text
from mlops_provider.links import report_url
from mlops_provider.local.client import AirflowClient
from mlops_provider.local.stack import ADMIN, Stack
from mlops_provider.operator_keys import FAILURE_KEY

DAG_ID = "flight_ranking"
ZONE = ZoneInfo("America/New_York")
RUN_SECONDS = 3600.0
"""For one night, of a minute or two, on a machine that has much else to do."""
TASKS = ("ingest", "validate", "features", "tune", "train", "evaluate", "register", "approve", "promote")
"""Tasks of the pipeline, in order; before ``tune`` come its trials."""
TRIALS = "tune_trial"
READING_SECONDS = 3.0
"""Seconds in which the form of an approval can be read before it is answered. Airflow 3.3 loses an answer within the
first one."""


@dataclass(kw_only=True)
class Night:
    """One run of the demo, and what is expected of it."""

    date: datetime
    """Midnight at which the run starts: it works on the days before."""
    story: str
    stops_at: str | None = None
    """The step that is meant to stop the pipeline."""
    run_id: str = ""
    state: str = "waiting"
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refs: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    trials: list[str] = field(default_factory=list)
    """The state of each."""
    asked_since: float | None = None
    """Since when an approval waits for its answer, in seconds of the monotonic clock."""

    @property
    def as_expected(self) -> bool:
        if self.stops_at is None:
            return self.state == "success"
        after = TASKS[TASKS.index(self.stops_at) + 1 :]
        return (
            self.state == "failed"
            and self._task_state(self.stops_at) == "failed"
            and all(self._task_state(step) == "upstream_failed" for step in after)
        )

    def _task_state(self, step: str) -> str | None:
        return self.tasks.get(step, {}).get("state")


def nights() -> list[Night]:
    """The nights that the demo runs, in order."""
    return [
        Night(
            date=datetime(2013, 2, 8, tzinfo=ZONE),
            story="no model is in production yet",
        ),
        Night(
            date=datetime(2013, 2, 9, tzinfo=ZONE),
            story="judged against the model of the night before",
        ),
        Night(
            date=datetime(2013, 2, 10, tzinfo=ZONE),
            story="Saturday has a quarter fewer flights than Friday: validation must stop it before training",
            stops_at="validate",
        ),
    ]


def run_demo(stack: Stack, console: Console) -> int:
    """:return: 0 where every night went as it should, the caught one included"""
    client = AirflowClient(stack.airflow_url)
    client.wait_for_dag(DAG_ID)
    client.unpause(DAG_ID)
    plan = nights()
    begin = time.monotonic()
    with Live(console=console, refresh_per_second=4, transient=not console.is_terminal) as live:
        for night in plan:
            _begin(client, night)
            deadline = time.monotonic() + RUN_SECONDS
            while night.state not in FINISHED:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{night.run_id} is not finished after {RUN_SECONDS:.0f} s")
                time.sleep(0.3)
                _look(client, night)
                live.update(Group(*(_table(each) for each in plan if each.state != "waiting")))
            if not console.is_terminal:
                console.print(_table(night))
            if not night.as_expected:
                break
    console.print(_report(plan, stack, time.monotonic() - begin), soft_wrap=True)
    return 0 if all(night.as_expected for night in plan) else 1


def _begin(client: AirflowClient, night: Night) -> None:
    """Trigger the run, or have an earlier demo's run executed again: what it committed is found, not made again."""
    earlier = client.run_of(DAG_ID, night.date)
    if earlier is None:
        night.run_id = f"demo__{night.date:%Y-%m-%d}"
        client.trigger(DAG_ID, night.run_id, night.date)
    else:
        night.run_id = earlier["dag_run_id"]
        if earlier["state"] in FINISHED:
            client.clear_run(DAG_ID, night.run_id)
    night.state = "queued"


def _look(client: AirflowClient, night: Night) -> None:
    run = client.run(DAG_ID, night.run_id)
    assert run is not None, "a run that was triggered is there"
    instances = client.task_instances(DAG_ID, night.run_id)
    night.tasks = {task["task_id"]: task for task in instances}
    night.trials = [str(task["state"]) for task in instances if task["task_id"] == TRIALS and task["map_index"] >= 0]
    for step in TASKS:
        state = night.tasks.get(step, {}).get("state")
        if state == "success" and step not in night.refs:
            wire = client.xcom(DAG_ID, night.run_id, step)
            if wire is not None:
                night.refs[step] = ref_from_wire(wire)
        elif state == "failed" and step not in night.failures:
            night.failures[step] = client.xcom(DAG_ID, night.run_id, step, FAILURE_KEY) or {}
    _approve(client, night)
    night.state = run["state"]


def _approve(client: AirflowClient, night: Night) -> None:
    """Answer as somebody would in Airflow's pages, once there was time to read."""
    if night.tasks.get("approve", {}).get("state") != "awaiting_input":
        night.asked_since = None
    elif night.asked_since is None:
        night.asked_since = time.monotonic()
    elif time.monotonic() - night.asked_since > READING_SECONDS:
        client.answer(DAG_ID, night.run_id, "approve", "Approve", {"why": "the demo, in your place"})
        night.asked_since = None


_STYLE = {
    "success": "green",
    "running": "cyan",
    "failed": "red",
    "up_for_retry": "yellow",
    "skipped": "magenta",
    "awaiting_input": "yellow",
}


def _table(night: Night) -> Table:
    table = Table(
        title=f"Night of {night.date:%Y-%m-%d}: {night.story}", title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    for heading, width in (("step", 10), ("state", 17), ("time", 7)):
        table.add_column(heading, width=width)
    table.add_column("result", overflow="fold")
    for step in TASKS:
        task = night.tasks.get(step, {})
        state = task.get("state") or "-"
        caught = state == "failed" and step == night.stops_at
        label = "stopped, as meant" if caught else state.replace("_", " ")
        table.add_row(
            step,
            Text(label, style="bold green" if caught else _STYLE.get(state, "dim")),
            _seconds(task),
            Text(_result(night, step, state)),
        )
    return table


def _seconds(task: Mapping[str, Any]) -> str:
    if task.get("start_date") is None:
        return ""
    if task.get("end_date") and task.get("duration") is not None:
        return f"{task['duration']:.1f} s"
    start = datetime.fromisoformat(task["start_date"])
    return f"{(datetime.now(start.tzinfo) - start).total_seconds():.1f} s"


def _result(night: Night, step: str, state: str) -> str:
    if state == "failed":
        return str(night.failures.get(step, {}).get("message", "see the task's log"))
    if state == "skipped":
        return "not needed: the evaluation did not pass"
    if state == "awaiting_input":
        return "a person decides, in Airflow's pages; the demo answers in your place"
    if step == "tune" and night.trials and state not in ("success", "upstream_failed"):
        return f"{night.trials.count('success')} of {len(night.trials)} trials"
    ref = night.refs.get(step)
    return key_numbers(ref) if ref is not None else ""


def key_numbers(ref: object) -> str:
    """What one wants to know of a step at a glance."""
    match ref:
        case DatasetRef():
            return f"{ref.num_rows:,} rows to {ref.interval_end[:10]}, {ref.num_bytes / 1e6:.1f} MB, {ref.version[:12]}"
        case ValidationRef():
            return f"{ref.num_checks} checks passed"
        case FeaturesRef():
            samples = ", ".join(f"{ref.num_samples[split]:,} {split}" for split in ("train", "validation", "test"))
            return f"{ref.num_features} features; {samples}"
        case StudyRef():
            found = f"best of {sum(ref.trials.values())} trials: {ref.best_value:.4f} by trial {ref.best_trial}"
            return f"{found}, {settings_text(ref.parameters)}"
        case CheckpointRef():
            metrics = ", ".join(f"{name} {value:.4f}" for name, value in ref.metrics.items())
            return f"best epoch {ref.epoch}: {metrics} on {ref.world_size} processes"
        case ReportRef():
            return ref.reason
        case ModelVersionRef():
            return f"version {ref.version} of {ref.name}, {ref.semantic_version}"
    raise TypeError(f"not a ref: {ref!r}")


def _report(plan: list[Night], stack: Stack, seconds: float) -> Group:
    lines: list[str] = [f"\n[bold]What happened[/bold] ({seconds:.0f} s)"]
    for night in plan:
        lines.append(f"  {night.date:%Y-%m-%d}  {escape(_verdict(night))}")
    lines.append("\n[bold]Model versions[/bold]")
    lines += [f"  {escape(line)}" for line in _versions(stack)]
    lines.append("\n[bold]Look around[/bold] (make up starts the servers again, make down stops them)")
    lines.append(f"  Airflow  {stack.airflow_url}/dags/{DAG_ID}")
    lines.append(f"  MLflow   {stack.mlflow_url}/#/models/{DAG_ID}")
    lines.append(f"           log in as {ADMIN}, with the password in {escape(str(stack.mlflow_password_file))}")
    lines.append(f"\n[bold]Reports[/bold] (files of the same names are below {stack.store})")
    for night in plan:
        lines += [f"  {stack.airflow_url}{report_url(key)}" for key in _reports(night)]
    return Group(*(Text.from_markup(line) for line in lines))


def _verdict(night: Night) -> str:
    if night.stops_at and night.as_expected:
        lines = str(night.failures[night.stops_at].get("message", "see its log")).splitlines()
        findings = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
        return "caught, as meant: no training, no new version. " + "; ".join(findings or lines[:1])
    if not night.as_expected:
        failed = [f"{step}: {_result(night, step, 'failed')}" for step in night.failures]
        return "DID NOT GO AS PLANNED. " + ("; ".join(failed) or f"the run is {night.state}")
    if version := night.refs.get("promote"):
        return f"{key_numbers(version)} registered, now champion. {night.refs['evaluate'].reason}"
    return f"trained, not registered. {night.refs['evaluate'].reason}"


def _versions(stack: Stack) -> list[str]:
    api = f"{stack.mlflow_url}/api/2.0/mlflow"
    auth = stack.mlflow_admin and stack.mlflow_admin.auth
    with httpx.Client(auth=auth, timeout=REQUEST_SECONDS, trust_env=False) as client:
        response = client.get(f"{api}/model-versions/search", params={"filter": f"name='{DAG_ID}'"})
        found = response.raise_for_status().json().get("model_versions", [])
        model = client.get(f"{api}/registered-models/get", params={"name": DAG_ID}).json()
    aliases: dict[str, list[str]] = {}
    for entry in model.get("registered_model", {}).get("aliases", []):
        aliases.setdefault(str(entry["version"]), []).append(entry["alias"])
    lines = []
    for version in sorted(found, key=lambda item: int(item["version"])):
        tags = {tag["key"]: tag["value"] for tag in version.get("tags", [])}
        names = ", ".join(aliases.get(str(version["version"]), []))
        snapshot = tags.get("mlops.dataset_version", "?")[:12]
        lines.append(f"version {version['version']}  snapshot {snapshot}  {names}")
    return lines or ["none"]


def _reports(night: Night) -> list[str]:
    """Keys in the store, in the order of the steps."""
    found = [ref.artifacts["report"].key for ref in night.refs.values() if "report" in ref.artifacts]
    return found + [key for failure in night.failures.values() if (key := failure.get("details", {}).get("report"))]
