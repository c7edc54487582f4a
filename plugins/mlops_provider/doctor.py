"""``mlops doctor``: what is installed, reachable, writable and up to date, and how to fix what is not."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Final, Literal
from uuid import uuid4

import httpx
import obstore
import psutil
from obstore.exceptions import BaseError
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from mlops.contract.outages import store_cause
from mlops.signing.keys import PERSON, UnusableKeyError, is_in_service, is_of_person, load_key, load_public_keys
from mlops_provider.connections import login_of, store_of
from mlops_provider.deployment import LOGINS, RUNTIMES, SECTION, Deployment
from mlops_provider.exceptions import StepFailedError
from mlops_provider.local.client import AirflowClient
from mlops_provider.spec import Pipeline
from mlops_provider.spec_file import SUFFIX, load_pipeline, pipeline_files, why_broken

_LOCKS: Final[Mapping[str, str]] = {
    "airflow": "requirements.txt",
    "training": "training/requirements.txt",
    "validation": "training/requirements-validation.txt",
}
_ABOUT_ITSELF: Final = (
    "import json, platform, sysconfig; print(json.dumps([platform.python_version(), sysconfig.get_path('purelib')]))"
)
_NVIDIA: Final = Path("/dev/nvidia0")
_FEWEST_BYTES: Final = 5_000_000_000
_FEWEST_MEMORY_BYTES: Final = 2_000_000_000
_LATE_SECONDS: Final = 60.0
"""A store's clock may differ by so much; S3 refuses requests from 15 minutes on."""
_ANSWER_SECONDS: Final = 20.0
_SHOWN: Final = 3

State = Literal["ok", "warning", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    subject: str
    state: State
    found: str
    fix: str = ""
    """What to do about it."""


def examine(deployment: Deployment, airflow_url: str, connect: Callable[[], AirflowClient]) -> Iterator[Finding]:
    """
    Look at everything, one after the other: what is broken hides nothing else.

    :param connect: asks Airflow for a login
    """
    sound = list[Pipeline]()
    yield from _pipelines(deployment.home / "dags", sound)
    yield _environment("airflow", sys.version.split()[0], None, deployment.home)
    if deployment.launcher == "process":
        for runtime in RUNTIMES:
            yield from _runtime(runtime, deployment)
        yield from _spark(sound)
    yield _memory()
    yield from _store(deployment)
    yield from _mlflow(deployment)
    yield from _airflow(airflow_url, connect)
    if deployment.launcher == "pod":
        yield from _kubernetes(deployment)
    yield _release_key(deployment)


def _pipelines(folder: Path, sound: list[Pipeline]) -> Iterator[Finding]:
    """:param sound: gets those that can be read"""
    for path in pipeline_files(folder):
        try:
            sound.append(load_pipeline(path))
        except Exception as error:  # whatever is wrong with one of them, the rest is looked at
            found = why_broken(path, error).splitlines()[0]
            yield Finding(subject="pipelines", state="broken", found=found, fix=f"see mlops lint {path}")
    if sound:
        yield Finding(subject="pipelines", state="ok", found=f"{len(sound)} files *{SUFFIX} are sound")


def _runtime(name: str, deployment: Deployment) -> Iterator[Finding]:
    subject, python = f"{name} runtime", deployment.pythons[name]
    fix = f"make venv, or set [{SECTION}] {name}_python"
    if not python.exists():
        yield Finding(subject=subject, state="broken", found=f"there is no interpreter at {python}", fix=fix)
        return
    try:
        asked = subprocess.run(
            [str(python), "-c", _ABOUT_ITSELF], capture_output=True, text=True, check=True, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(subject=subject, state="broken", found=f"{python} does not start: {error}", fix=fix)
        return
    version, folder = json.loads(asked.stdout)
    yield _environment(name, version, folder, deployment.home)
    torch = _installed(folder).get("torch") if name == "training" else None
    if torch is not None and Version(torch).local == "cpu" and _NVIDIA.exists():
        yield Finding(
            subject=subject,
            state="warning",
            found=f"this machine has an NVIDIA GPU, and torch {torch} computes on processors only",
            fix="install torch from PyTorch's index for the accelerator (ARCHITECTURE.md, the lock files)",
        )


def _environment(name: str, version: str, folder: str | None, home: Path) -> Finding:
    """
    Compare what is installed with the lock file.

    :param folder: with the packages; None: those of this process
    """
    lock = home / _LOCKS[name]
    found = f"Python {version}"
    if not lock.exists():
        return Finding(subject=f"{name} runtime", state="ok", found=f"{found}; there is no lock file {lock}")
    installed, pins = _installed(folder), dict(_pins(lock))
    differing = [
        f"{package} {installed.get(package, 'is missing')} instead of {pin}"
        for package, pin in pins.items()
        if package not in installed or Version(installed[package]).public != pin
    ]
    if not differing:
        return Finding(
            subject=f"{name} runtime", state="ok", found=f"{found}, {len(pins)} packages as in {_LOCKS[name]}"
        )
    return Finding(
        subject=f"{name} runtime",
        state="warning",
        found=f"{found}; not as in {_LOCKS[name]}: {_some(differing)}",
        fix=f"make venv, or install {_LOCKS[name]} there: a training is made again with the packages that it had",
    )


def _installed(folder: str | None) -> Mapping[str, str]:
    """Return the versions of packages by their normalised names."""
    found = distributions() if folder is None else distributions(path=[folder])
    return {canonicalize_name(each.metadata["Name"]): each.version for each in found if each.metadata["Name"]}


def _pins(lock: Path) -> Iterator[tuple[str, str]]:
    for line in lock.read_text().splitlines():
        if line[:1].isalnum():
            requirement = Requirement(line.removesuffix("\\").strip())
            if requirement.marker is None or requirement.marker.evaluate():
                for pin in requirement.specifier:
                    yield canonicalize_name(requirement.name), Version(pin.version).public


def _spark(pipelines: Iterable[Pipeline]) -> Iterator[Finding]:
    using = [pipeline.pipeline for pipeline in pipelines if pipeline.ingest.engine == "spark"]
    if using and not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        yield Finding(
            subject="Spark",
            state="broken",
            found=f"there is no `java`, and {_some(using)} asks for engine: spark",
            fix="install Java 17 or newer, or set JAVA_HOME",
        )


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{psutil.cpu_count()} processors, {_gb(memory.total)} memory, of which {_gb(memory.available)} are free"
    if memory.available < _FEWEST_MEMORY_BYTES:
        return Finding(
            subject="machine", state="warning", found=found, fix="end what is not needed: a step may be killed"
        )
    return Finding(subject="machine", state="ok", found=found)


def _store(deployment: Deployment) -> Iterator[Finding]:
    uri, key, data = deployment.store, f"doctor/{uuid4().hex}", uuid4().bytes
    fix = f"set [{SECTION}] store, or give this process the credentials (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...)"
    try:
        store = store_of(deployment, retry=False)
        obstore.put(store, key, data, mode="create")
        try:
            read, written = bytes(obstore.get(store, key).bytes()), obstore.head(store, key)["last_modified"]
        finally:
            obstore.delete(store, key)
    except (BaseError, OSError, ValueError, StepFailedError) as error:
        yield Finding(subject="store", state="broken", found=f"{uri}: {store_cause(error)}", fix=fix)
        return
    if read != data:
        yield Finding(subject="store", state="broken", found=f"{uri} gave other bytes than were written", fix=fix)
        return
    yield Finding(subject="store", state="ok", found=f"{uri} is read and written")
    apart = (written - datetime.now(UTC)).total_seconds()
    if abs(apart) > _LATE_SECONDS:
        yield Finding(
            subject="store",
            state="warning",
            found=f"its clock is {abs(apart):,.0f} s {'ahead of' if apart > 0 else 'behind'} this machine's",
            fix="set the clocks by NTP: S3 refuses requests whose time is 15 minutes off",
        )
    if uri.startswith("file://") and (free := shutil.disk_usage(uri.removeprefix("file://")).free) < _FEWEST_BYTES:
        yield Finding(
            subject="store",
            state="warning",
            found=f"{_gb(free)} are free on its disk",
            fix="mlops datasets gc removes what no snapshot names; mlops runs remove what was tried out",
        )


def _mlflow(deployment: Deployment) -> Iterator[Finding]:
    uri = deployment.tracking_uri
    try:
        httpx.get(f"{uri}/health", timeout=_ANSWER_SECONDS).raise_for_status()
        open_to_all = httpx.get(f"{uri}/version", timeout=_ANSWER_SECONDS)
    except httpx.HTTPError as error:
        fix = f"make up, or set [{SECTION}] tracking_uri"
        yield Finding(subject="MLflow", state="broken", found=f"{uri} does not answer: {error}", fix=fix)
        return
    if open_to_all.is_success:
        yield Finding(
            subject="MLflow",
            state="warning",
            found=f"{uri} answers, release {open_to_all.text.strip()}, to whoever asks",
            fix="start it with --app-name=basic-auth: who reaches it can replace a model's files (SECURITY.md)",
        )
        return
    if not deployment.logins:
        fix = f"set [{SECTION}] {', '.join(f'{each}_login' for each in LOGINS)}, then mlops logins"
        yield Finding(subject="MLflow", state="broken", found=f"{uri} asks for a login, and none is named", fix=fix)
    for purpose in deployment.logins:
        try:
            login = login_of(purpose, deployment)
            assert login is not None, "it is named"
            answer = httpx.get(f"{uri}/version", auth=login.auth, headers=login.headers, timeout=_ANSWER_SECONDS)
        except StepFailedError as error:
            fix = "none, if Airflow's database has it: outside of tasks the environment and secrets backends are asked"
            yield Finding(subject="MLflow", state="warning", found=str(error), fix=fix)
        except httpx.HTTPError as error:
            yield Finding(subject="MLflow", state="broken", found=f"{uri} does not answer: {error}", fix="try again")
        else:
            yield (
                Finding(
                    subject="MLflow", state="ok", found=f"{uri}, release {answer.text.strip()}, knows {login.user!r}"
                )
                if answer.is_success
                else Finding(
                    subject="MLflow",
                    state="broken",
                    found=f"{uri} does not know {login.user!r} of {purpose}_login: {answer.status_code}",
                    fix="mlops logins makes the users, and sets their passwords",
                )
            )


def _airflow(url: str, connect: Callable[[], AirflowClient]) -> Iterator[Finding]:
    try:
        health = httpx.get(f"{url}/api/v2/monitor/health", timeout=_ANSWER_SECONDS).raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        yield Finding(
            subject="Airflow",
            state="warning",
            found=f"{url} does not answer: {error}",
            fix="make up, or --airflow-url URL",
        )
        return
    parts = {name: (part or {}).get("status") for name, part in health.items()}
    # A triggerer or a DAG processor of its own need not be there.
    if sick := [name for name, status in parts.items() if status not in ("healthy", None)]:
        yield Finding(
            subject="Airflow",
            state="broken",
            found=f"{url}: {', '.join(sick)} not healthy",
            fix="start it again (make up), and see its log",
        )
    else:
        yield Finding(subject="Airflow", state="ok", found=f"{url} is healthy")
    try:
        client = connect()
        errors = client.every("/importErrors", "import_errors")
        dags = client.every("/dags", "dags", exclude_stale=True)
    except httpx.HTTPError as error:
        fix = "name yourself by --user, with the password in MLOPS_AIRFLOW_PASSWORD"
        yield Finding(subject="Airflow", state="warning", found=f"its DAGs cannot be asked for: {error}", fix=fix)
        return
    for broken in errors:
        last = broken["stack_trace"].strip().splitlines()[-1]
        yield Finding(
            subject="Airflow",
            state="broken",
            found=f"{broken['filename']} cannot be imported: {last}",
            fix="mlops lint, or the page of import errors",
        )
    if paused := sorted(dag["dag_id"] for dag in dags if dag["is_paused"]):
        yield Finding(subject="Airflow", state="ok", found=f"{len(dags)} DAGs, of which are paused: {_some(paused)}")


def _kubernetes(deployment: Deployment) -> Iterator[Finding]:
    from mlops_provider.launchers.kubernetes.api import JOBS, ApiError, UnreachableError, open_api

    async def list_jobs() -> None:
        async with open_api(deployment.kubernetes_connection, deployment.kubernetes_namespace, _ANSWER_SECONDS) as api:
            await api.list(JOBS, limit="1")

    namespace = deployment.kubernetes_namespace
    try:
        asyncio.run(list_jobs())
    except (ApiError, UnreachableError, OSError) as error:
        fix = f"set [{SECTION}] kubernetes_connection and kubernetes_namespace"
        yield Finding(subject="Kubernetes", state="broken", found=f"namespace {namespace}: {error}", fix=fix)
    else:
        yield Finding(subject="Kubernetes", state="ok", found=f"lists the Jobs of namespace {namespace}")
    for runtime in RUNTIMES:
        if runtime not in deployment.images:
            fix = f"set [{SECTION}] {runtime}_image"
            yield Finding(
                subject="Kubernetes", state="broken", found=f"there is no image of the {runtime} runtime", fix=fix
            )


def _release_key(deployment: Deployment) -> Finding:
    subject, key, file = "release key", deployment.release_key, deployment.public_keys_file
    if key is None:
        return Finding(
            subject=subject,
            state="warning",
            found="there is none, so that no approval can be given",
            fix=f"mlops keys new FILE, and set [{SECTION}] release_key",
        )
    if is_in_service(key):
        return Finding(subject=subject, state="ok", found=f"{key}, which was not asked")
    try:
        trusted = load_public_keys(file) if file is not None else []
        public = load_key(key).public
    except (UnusableKeyError, OSError) as error:
        fix = "" if Path(key).exists() else f"mlops keys new {key}"
        return Finding(subject=subject, state="broken", found=str(error), fix=fix)
    if public not in trusted:
        fix = f"add what `mlops keys show {key}` says to {file}, without the word {PERSON!r} behind it"
        return Finding(subject=subject, state="broken", found=f"{key} is not among those trusted in {file}", fix=fix)
    people = sum(map(is_of_person, trusted))
    found = f"{key} is trusted; keys that sign approvals: {len(trusted) - people}, that people have: {people}"
    return Finding(subject=subject, state="ok", found=found)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"
