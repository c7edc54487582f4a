"""Deployments for the tests of this folder: scheduler, API server, DAG processor, triggerer, MLflow server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from live_airflow import LiveAirflow
from project import make_project
from served_metrics import Served

from mlops_provider.local.ports import free_port
from mlops_provider.local.stack import Stack


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
        users: Sequence[str] = (),
        dags: Sequence[Path] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> LiveAirflow:
        root = tmp_path_factory.mktemp("deployment")
        home = make_project(root / "home")
        for path in dags:
            shutil.copy(path, home / "dags")
        login = None
        if with_login:
            login = ("admin", "a-password-of-this-test")
            passwords = dict([login]) | {user: f"the-password-of-{user}" for user in users}
            (root / "passwords.json").write_text(json.dumps(passwords))
            settings = {
                **settings,
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                    ["admin:admin", *(f"{user}:user" for user in users)]
                ),
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(root / "passwords.json"),
            }
        stack = Stack(
            home=home, root=root / "local", airflow_port=free_port(), mlflow_port=free_port(), settings=settings
        )
        (stack.root / "airflow").mkdir(parents=True)
        shutil.copy(migrated, stack.root / "airflow")
        made.append(airflow := LiveAirflow(stack, login))
        airflow.start()
        return airflow

    yield make
    for airflow in made:
        airflow.stack.stop()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Live metrics of the canaries, for the deployment to find by its environment."""
    served = Served()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIVE_METRICS", served.url)
        yield served
    served.close()
