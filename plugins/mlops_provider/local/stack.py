"""Start, watch and stop the processes of a local deployment."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import httpx
import psutil

from mlops.contract.step import python_path
from mlops.contract.warm import NotWarmError, end_all
from mlops.signing.keys import make_key
from mlops_provider import processes
from mlops_provider.local.client import without_proxy
from mlops_provider.local.intervals import CALM
from mlops_provider.local.parts import Parts, read_whole, write_whole
from mlops_provider.local.ports import becomes_free
from mlops_provider.logins import RIGHTS, Login, LoginsError, make_logins

STOP_SECONDS = 10.0
LINGER_SECONDS = 2.0
"""Seconds that a port may be held by the threads of a process which counts as ended."""
START_SECONDS = 600.0
"""On a machine where others leave a tenth of a core; an idle one needs ten."""
ENVIRONMENT, MIGRATED = "environment", "airflow/migrated"
"""Files in the stack's folder: exports for a shell; the version of Airflow that has made the whole database."""
ADMIN = "admin"
LOGIN_VARIABLE = "AIRFLOW_CONN_MLFLOW_"
TEAMS_VARIABLE = "AIRFLOW__MLOPS__TEAMS_FILE"
"""Where the deployment has teams, MLflow has a workspace for each."""
LOGIN_SETTINGS = """\
[mlflow]
# Nothing without a role: mlops_provider/logins.py has them.
default_permission = NO_PERMISSIONS
database_uri = {database}
admin_username = admin
# A password is checked once a minute: that takes tens of milliseconds, on purpose.
auth_cache_ttl_seconds = 60
"""


class StackError(RuntimeError):
    """The local deployment cannot be started, or one of its processes ended."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """
    The processes of one local deployment. All it writes is under ``root``.

    :param home: the project folder, which holds ``dags/``, ``plugins/``, ``include/`` and ``training/``
    """

    home: Path
    root: Path
    airflow_port: int = 8080
    mlflow_port: int = 5000
    mlflow_host: str = "127.0.0.1"
    """Address of this machine that MLflow listens on: another one for steps that run elsewhere."""
    mlflow_login: bool = False
    """Whether MLflow asks who one is, see :mod:`mlops_provider.logins`; tests of other things do without."""
    dags: Path | None = None
    """Another folder of DAGs than the project's."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of Airflow's processes."""
    intervals: Mapping[str, str] = field(default_factory=lambda: CALM)
    """When Airflow takes a part of itself, or a task, for dead: :mod:`mlops_provider.local.intervals`."""

    @property
    def airflow_url(self) -> str:
        return f"http://127.0.0.1:{self.airflow_port}"

    @property
    def mlflow_url(self) -> str:
        return f"http://{self.mlflow_host}:{self.mlflow_port}"

    @property
    def mlflow_admin(self) -> Login | None:
        """MLflow's administrator, for people; None where it does not ask."""
        return Login(ADMIN, self.mlflow_password_file.read_text()) if self.mlflow_login else None

    @property
    def mlflow_password_file(self) -> Path:
        """The administrator's password."""
        return self.root / f"keys/mlflow_{ADMIN}"

    @property
    def parts(self) -> Parts:
        """The processes that were started, by name."""
        return Parts(self.root)

    @property
    def store(self) -> Path:
        return self.root / "store"

    def environment(self) -> dict[str, str]:
        """The variables of Airflow's processes; ``source .local/environment`` gives a shell the same Airflow."""
        airflow_home = self.root / "airflow"
        keys = self._secrets()
        return {
            "AIRFLOW_HOME": str(airflow_home),
            "PYTHONPATH": f"{python_path(self.home)}{os.pathsep}{self.home / 'plugins'}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags or self.home / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.home / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "mlops_provider.local.executor.LastingExecutor",
            # It forks all its workers at start.
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.airflow_url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            # Seconds that a writer waits for another one; sqlite3's own 5 are over soon on a busy machine.
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{airflow_home}/airflow.db?timeout=120",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.airflow_port),
            "AIRFLOW__API__BASE_URL": self.airflow_url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": keys["api"],
            "AIRFLOW__API_AUTH__JWT_SECRET": keys["jwt"],
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.airflow_port + 713),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.airflow_port + 714),
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "15",
            # A new file is found so soon, and not after five minutes.
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "15",
            "AIRFLOW__DAG_PROCESSOR__PRINT_STATS_INTERVAL": "0",
            # How long a finished task waits for its successor; an idle scheduler then takes a few per cent of a core.
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.25",
            **self.intervals,
            "AIRFLOW__MLOPS__HOME": str(self.home),
            "AIRFLOW__MLOPS__STORE": f"file://{self.store}",
            "AIRFLOW__MLOPS__TRACKING_URI": self.mlflow_url,
            "AIRFLOW__MLOPS__RELEASE_KEY": str(self.root / "keys/release.pem"),
            "NO_COLOR": "1",
            # MLflow would start half a dozen processes for jobs that nobody here submits.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            **self._logins(),
            **self.settings,
        }

    def start(self) -> Iterator[str]:
        """
        Start what does not run yet and wait until all answers.

        :return: progress in sentences
        :raises StackError: where a port is taken, or a process ends or does not answer in time
        """
        for folder in ("logs", "run", "airflow", "mlflow"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        exports = (f"export {name}={shlex.quote(value)}\n" for name, value in sorted(self.environment().items()))
        write_whole(self.root / ENVIRONMENT, "".join(exports))
        commands = self._commands()
        missing = [name for name in commands if self.parts.process(name) is None]
        if missing:
            yield f"starting {', '.join(missing)}"
        yield from self._end_orphans(missing)
        self._check_ports(missing)
        if "mlflow" in missing:
            self._spawn("mlflow", commands["mlflow"])
        if "api-server" in missing:
            yield from self._migrate()
        for name in missing:
            if name != "mlflow":
                self._spawn(name, commands[name])
        yield from self._wait_healthy(commands)
        if "mlflow" in missing:
            yield from self._make_logins()

    def stop(self) -> None:
        """
        End every process, and what is left of killed ones, politely, then by force; the warm runtimes as soon as no
        other deployment of the same project uses them. Does nothing where nothing runs.
        """
        running = [process for name in self._commands() if (process := self.parts.process(name))]
        everything = {child for process in running for child in processes.tree(process.pid)}
        orphans = {each for name in self._commands() for each in self.parts.members(name)} - everything
        for process in (*running, *orphans):
            with contextlib.suppress(psutil.NoSuchProcess):  # what is idle ends by itself
                process.terminate()
        everything |= orphans
        processes.kill(processes.wait_ended(everything, STOP_SECONDS))
        with contextlib.suppress(NotWarmError):  # then there are none
            for pid in end_all(str(self.home.resolve())):
                processes.wait_ended(processes.tree(pid), STOP_SECONDS)
        self.parts.forget()

    def kill_airflow(self) -> None:
        """End all of Airflow at once by SIGKILL, its tasks' processes included, as a power cut would."""
        self.kill(*(name for name in self._commands() if name != "mlflow"))

    def kill(self, *names: str) -> None:
        """End some of the processes, and all that they started, by SIGKILL."""
        running = [process for name in names if (process := self.parts.process(name))]
        everything = {each for process in running for each in processes.tree(process.pid)}
        everything |= {each for name in names for each in self.parts.members(name)}
        processes.kill(everything)
        # All of them: a server's port is its children's too.
        processes.wait_ended(everything, STOP_SECONDS)

    def _commands(self) -> dict[str, list[str]]:
        airflow = self._program("airflow", "airflow")
        database = self.root / "mlflow"
        return {
            "mlflow": [
                *self._program("training", "mlflow"),
                "server",
                *(["--app-name=basic-auth"] if self.mlflow_login else []),
                *(["--enable-workspaces"] if TEAMS_VARIABLE in self.settings else []),
                f"--backend-store-uri=sqlite:///{database}/mlflow.db",
                f"--artifacts-destination={database}/artifacts",
                f"--host={self.mlflow_host}",
                f"--port={self.mlflow_port}",
                "--workers=1",
            ],
            "api-server": [*airflow, "api-server"],
            "scheduler": [*airflow, "scheduler"],
            "dag-processor": [*airflow, "dag-processor"],
            "triggerer": [*airflow, "triggerer"],
        }

    def _program(self, runtime: str, module: str) -> list[str]:
        # By its module: scripts name their environment's path, and stop working where it is moved. -P: not from the
        # folder of the stack, which has folders of these names.
        return [str(self.home / f".venv/{runtime}/bin/python"), "-P", "-m", module]

    def _migrate(self) -> Iterator[str]:
        # A migration that was interrupted has left a database, too; and Airflow may be another one since.
        marker, airflow = self.root / MIGRATED, version("apache-airflow-core")
        if (self.root / "airflow/airflow.db").exists() and marker.exists() and marker.read_text() == airflow:
            return
        yield "making Airflow's database, or bringing it up to date"
        command = [*self._program("airflow", "airflow"), "db", "migrate"]
        with (self.root / "logs/migrate.log").open("wb") as log:
            done = subprocess.run(command, env=self._process_environment(), stdout=log, stderr=log, check=False)
        if done.returncode:
            raise StackError(f"airflow db migrate failed: {_tail(self.root / 'logs/migrate.log')}")
        marker.write_text(airflow)

    def _spawn(self, name: str, command: list[str]) -> None:
        # Of a killed scheduler tasks go on, which are to be found again.
        former = self.parts.living_sessions(name)
        with (self.root / f"logs/{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self._mlflow_environment() if name == "mlflow" else self._process_environment(),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.parts.note(name, process.pid, former)

    def _end_orphans(self, missing: list[str]) -> Iterator[str]:
        """
        End what lost its parent. A process of the scheduler that runs a task goes on, and the next scheduler adopts it.
        """
        kept = {each.pid for process in processes.of_executors() for each in processes.tree(process.pid)}
        for name in missing:
            if orphans := [process for process in self.parts.members(name) if process.pid not in kept]:
                yield f"ending what is left of a killed {name}"
                processes.kill(orphans)
                processes.wait_ended(orphans, STOP_SECONDS)

    def _wait_healthy(self, commands: Mapping[str, list[str]]) -> Iterator[str]:
        yield "waiting until Airflow and MLflow answer"
        deadline = time.monotonic() + START_SECONDS
        while not (self._airflow_healthy() and _answers(f"{self.mlflow_url}/health")):
            for name in commands:
                if self.parts.process(name) is None:
                    raise StackError(f"{name} ended while starting: {_tail(self.root / f'logs/{name}.log')}")
            if time.monotonic() > deadline:
                raise StackError(
                    f"Airflow or MLflow did not answer within {START_SECONDS:.0f} s; see {self.root / 'logs'}"
                )
            time.sleep(0.5)

    def _airflow_healthy(self) -> bool:
        try:
            health = httpx.get(f"{self.airflow_url}/api/v2/monitor/health", timeout=60, trust_env=False).json()
        except (httpx.HTTPError, ValueError):
            return False
        parts = ("metadatabase", "scheduler", "dag_processor", "triggerer")
        return all((health.get(part) or {}).get("status") == "healthy" for part in parts)

    def _check_ports(self, missing: list[str]) -> None:
        ports = {"api-server": ("AIRFLOW_PORT", self.airflow_port), "mlflow": ("MLFLOW_PORT", self.mlflow_port)}
        for name, (variable, port) in ports.items():
            if name in missing and not becomes_free(port, LINGER_SECONDS):
                raise StackError(
                    f"port {port} for {name} is taken by another program: choose one, "
                    f"e.g. make up {variable}={port + 1}"
                )

    def _process_environment(self) -> dict[str, str]:
        # Settings of another Airflow must not leak in; connections and variables are meant for this one.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("AIRFLOW") or name.startswith(("AIRFLOW_CONN_", "AIRFLOW_VAR_"))
        }
        # Without byte code on disk each process would compile Airflow again.
        inherited.pop("PYTHONDONTWRITEBYTECODE", None)
        return inherited | without_proxy(inherited, self.mlflow_host) | self.environment()

    def _mlflow_environment(self) -> dict[str, str]:
        """Return the environment of the MLflow server, which needs no secret of Airflow's."""
        environment = {name: value for name, value in self._process_environment().items() if "AIRFLOW" not in name}
        if self.mlflow_login:
            settings = self.root / "mlflow/login.ini"
            settings.write_text(LOGIN_SETTINGS.format(database=f"sqlite:///{self.root}/mlflow/logins.db"))
            environment |= {
                "MLFLOW_AUTH_CONFIG_PATH": str(settings),
                "MLFLOW_AUTH_ADMIN_USERNAME": ADMIN,
                "MLFLOW_AUTH_ADMIN_PASSWORD": self._password(ADMIN),
                "MLFLOW_FLASK_SERVER_SECRET_KEY": self._password("cookies"),
            }
        return environment

    def _logins(self) -> dict[str, str]:
        """Airflow's connections for MLflow, and the options that name them."""
        if not self.mlflow_login:
            return {}
        self._password(ADMIN)
        return {
            name: value
            for purpose in RIGHTS
            for name, value in (
                (f"AIRFLOW__MLOPS__{purpose.upper()}_LOGIN", f"mlflow_{purpose}"),
                (f"{LOGIN_VARIABLE}{purpose.upper()}", f"http://{purpose}:{self._password(purpose)}@mlflow"),
            )
        }

    def _make_logins(self) -> Iterator[str]:
        if (admin := self.mlflow_admin) is None:
            return
        try:
            logins = {name: Login(name, self._password(name)) for name in RIGHTS}
            yield from make_logins(self.mlflow_url, admin, logins, trust_env=False)
        except LoginsError as error:
            raise StackError(str(error)) from error

    def _password(self, name: str) -> str:
        """Made at its first use; the file is readable by its owner only."""
        path = self.root / f"keys/mlflow_{name}"
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, secrets.token_hex(24))
        return path.read_text()

    def _secrets(self) -> dict[str, str]:
        path = self.root / "secrets.json"
        if (keys := read_whole(path)) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            keys = {name: secrets.token_hex(32) for name in ("api", "jwt")}
            write_whole(path, json.dumps(keys))
        make_key(self.root / "keys/release.pem")
        return keys


def stack_settings(root: Path) -> dict[str, str]:
    """
    What of the stack that was started there last commands need: the options of ``[mlops]``, the logins at MLflow, and
    Airflow's address.

    :return: by their environment variables; none where there was no stack
    """
    path = root / ENVIRONMENT
    words = shlex.split(path.read_text()) if path.is_file() else []
    settings = (word.partition("=") for word in words if word != "export")
    return {
        name: value
        for name, _, value in settings
        if name.startswith(("AIRFLOW__MLOPS__", "AIRFLOW__API__BASE_URL", "AIRFLOW__CORE__DAGS_FOLDER", LOGIN_VARIABLE))
    }


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=60, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()[-15:]
    return f"{path}\n" + "\n".join(lines)
