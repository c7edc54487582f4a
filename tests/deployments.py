"""Deployments for tests: scheduler, API server, DAG processor, triggerer, MLflow server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest
from live_airflow import LiveAirflow
from project import REPOSITORY, make_project, with_passwords

from mlops_provider import processes
from mlops_provider.local.intervals import QUICK
from mlops_provider.local.ports import free_port
from mlops_provider.local.stack import MIGRATED, Stack

FAB = os.environ.get("FAB_VENV")
"""A virtual environment like Airflow's, with the FAB provider: of `make chaos`."""
FAB_MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
USERS = """
import json
import sys

from airflow.providers.fab.auth_manager.cli_commands.utils import get_application_builder

with get_application_builder() as builder:
    manager = builder.sm
    manager.sync_roles()
    for name, (password, role) in json.loads(sys.argv[1]).items():
        role = manager.find_role(role.capitalize())
        assert manager.add_user(name, name, name, f"{name}@example.com", role, password=password)
"""


def use_fab(home: Path) -> None:
    """Have the project's Airflow run in the environment with FAB."""
    assert FAB is not None, "FAB_VENV names no environment"
    (home / ".venv").unlink()
    (home / ".venv").mkdir()
    for name, target in {"airflow": FAB, "training": None, "validation": None}.items():
        (home / ".venv" / name).symlink_to(target or REPOSITORY / ".venv" / name)


def make_fab_users(stack: Stack, users: Mapping[str, tuple[str, str]]) -> None:
    """
    Make the database, and users in it; their ids count from 1.

    :param users: password and role by name
    """
    (stack.root / "logs").mkdir()
    for _ in stack._migrate():
        pass
    command = [str(stack.home / ".venv/airflow/bin/python"), "-c", USERS, json.dumps(users)]
    done = subprocess.run(command, env=stack._process_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airflow's database as ``airflow db migrate`` leaves it: each deployment is spared ten seconds of a processor."""
    root = tmp_path_factory.mktemp("migrated")
    (root / "airflow").mkdir()
    (root / "logs").mkdir()
    for _ in Stack(home=make_project(root / "home"), root=root)._migrate():
        pass
    return root / "airflow/airflow.db"


@pytest.fixture(scope="module")
def new_airflow(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Callable[..., LiveAirflow]]:
    """Makes deployments that are stopped when the module's tests end."""
    made: list[LiveAirflow] = []

    def make(
        *,
        with_login: bool = False,
        fab: bool = False,
        mlflow_login: bool = False,
        users: Sequence[str] = (),
        roles: Mapping[str, str] = MappingProxyType({}),
        dags: Sequence[Path] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
        root: Path | None = None,
        prefix: str = "",
        prepare: Callable[[Path], None] = lambda home: None,
    ) -> LiveAirflow:
        root = root or tmp_path_factory.mktemp("deployment")
        home = make_project(root / "home")
        for path in dags:
            shutil.copy(path, home / "dags")
        prepare(home)
        login = ("admin", "a-password-of-this-test") if with_login else None
        passwords = dict([login] if login else []) | {user: f"the-password-of-{user}" for user in users}
        role_of = {"admin": "admin"} | {user: roles.get(user, "user") for user in users}
        if fab:
            use_fab(home)
            settings = {**settings, "AIRFLOW__CORE__AUTH_MANAGER": FAB_MANAGER}
        elif with_login:
            settings = {**settings, **with_passwords(root / "passwords.json", passwords, role_of)}
        port = free_port()
        if prefix:
            root_url = f"http://127.0.0.1:{port}{prefix}"
            own = {
                "AIRFLOW__API__BASE_URL": root_url,
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{root_url}/execution/",
            }
            settings = {**settings, **own}
        stack = Stack(
            home=home,
            root=root / "local",
            airflow_port=port,
            mlflow_port=free_port(),
            mlflow_login=mlflow_login,
            settings=settings,
            intervals=QUICK,
        )
        stack.root.mkdir(mode=0o700)
        (stack.root / "airflow").mkdir()
        if fab:
            make_fab_users(stack, {user: (password, role_of[user]) for user, password in passwords.items()})
        else:
            for file in (migrated, migrated.parent.parent / MIGRATED):
                shutil.copy(file, stack.root / "airflow")
        made.append(airflow := LiveAirflow(stack, login, prefix))
        airflow.start()
        return airflow

    yield make
    for airflow in made:
        airflow.stack.stop()
        folders = {str(airflow.home), str(airflow.stack.root)}
        left = [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] in folders]
        # One that was just importing ends when it has.
        assert not processes.wait_ended(left, 30), "a daemon, a step, or a warm runtime outlived its deployment"
