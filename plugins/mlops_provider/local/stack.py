"""Start, watch and stop the processes of a local deployment."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from mlops_provider import processes
from mlops_provider.local.ports import is_free

STOP_SECONDS = 10.0
START_SECONDS = 120.0
ENVIRONMENT = "environment"
"""File in the stack's folder."""


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
    dags: Path | None = None
    """Another folder of DAGs than the project's."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of Airflow's processes."""

    @property
    def airflow_url(self) -> str:
        return f"http://127.0.0.1:{self.airflow_port}"

    @property
    def mlflow_url(self) -> str:
        return f"http://{self.mlflow_host}:{self.mlflow_port}"

    @property
    def store(self) -> Path:
        return self.root / "store"

    def environment(self) -> dict[str, str]:
        """The variables of Airflow's processes; ``source .local/environment`` gives a shell the same Airflow."""
        airflow_home = self.root / "airflow"
        keys = self._secrets()
        return {
            "AIRFLOW_HOME": str(airflow_home),
            "PYTHONPATH": f"{self.home}:{self.home / 'plugins'}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags or self.home / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.home / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            # LocalExecutor forks all its workers at start.
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.airflow_url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{airflow_home}/airflow.db",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.airflow_port),
            "AIRFLOW__API__BASE_URL": self.airflow_url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": keys["api"],
            "AIRFLOW__API_AUTH__JWT_SECRET": keys["jwt"],
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.airflow_port + 713),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.airflow_port + 714),
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "15",
            "AIRFLOW__DAG_PROCESSOR__PRINT_STATS_INTERVAL": "0",
            # How long a finished task waits for its successor; an idle scheduler then takes a few per cent of a core.
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.25",
            # After a crash of Airflow its tasks are found and run again within half a minute, not ten.
            "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
            "AIRFLOW__MLOPS__HOME": str(self.home),
            "AIRFLOW__MLOPS__STORE": f"file://{self.store}",
            "AIRFLOW__MLOPS__TRACKING_URI": self.mlflow_url,
            "NO_COLOR": "1",
            # MLflow would start half a dozen processes for jobs that nobody here submits.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
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
        exports = (f"export {name}={value!r}\n" for name, value in sorted(self.environment().items()))
        _write_private(self.root / ENVIRONMENT, "".join(exports))
        commands = self._commands()
        missing = [name for name in commands if self._process(name) is None]
        if missing:
            yield f"starting {', '.join(missing)}"
        self._check_ports(missing)
        if "mlflow" in missing:
            self._spawn("mlflow", commands["mlflow"])
        if "api-server" in missing:
            yield from self._migrate()
        for name in missing:
            if name != "mlflow":
                self._spawn(name, commands[name])
        yield from self._wait_healthy(commands)

    def stop(self) -> None:
        """End every process, politely, then by force. Does nothing where nothing runs."""
        running = [process for name in self._commands() if (process := self._process(name))]
        everything = [child for process in running for child in processes.tree(process.pid)]
        for process in running:
            process.terminate()
        processes.kill(processes.wait_ended(everything, STOP_SECONDS))
        self._forget()

    def kill_airflow(self) -> None:
        """End all of Airflow at once by SIGKILL, its tasks' processes included, as a power cut would."""
        self.kill(*(name for name in self._commands() if name != "mlflow"))

    def kill(self, *names: str) -> None:
        """End some of the processes, and all that they started, by SIGKILL."""
        running = [process for name in names if (process := self._process(name))]
        everything = [each for process in running for each in processes.tree(process.pid)]
        processes.kill(everything)
        # All of them: a server's port is its children's too.
        processes.wait_ended(everything, STOP_SECONDS)

    def _commands(self) -> dict[str, list[str]]:
        airflow = str(self.home / ".venv/airflow/bin/airflow")
        database = self.root / "mlflow"
        return {
            "mlflow": [
                str(self.home / ".venv/training/bin/mlflow"),
                "server",
                f"--backend-store-uri=sqlite:///{database}/mlflow.db",
                f"--artifacts-destination={database}/artifacts",
                f"--host={self.mlflow_host}",
                f"--port={self.mlflow_port}",
                "--workers=1",
            ],
            "api-server": [airflow, "api-server"],
            "scheduler": [airflow, "scheduler"],
            "dag-processor": [airflow, "dag-processor"],
            "triggerer": [airflow, "triggerer"],
        }

    def _migrate(self) -> Iterator[str]:
        if (self.root / "airflow/airflow.db").exists():
            return
        yield "making Airflow's database"
        command = [str(self.home / ".venv/airflow/bin/airflow"), "db", "migrate"]
        with (self.root / "logs/migrate.log").open("wb") as log:
            done = subprocess.run(command, env=self._process_environment(), stdout=log, stderr=log, check=False)
        if done.returncode:
            raise StackError(f"airflow db migrate failed: {_tail(self.root / 'logs/migrate.log')}")

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.root / f"logs/{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self._process_environment(),
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = psutil.Process(process.pid).create_time()
        (self.root / f"run/{name}.json").write_text(json.dumps({"pid": process.pid, "started": started}))

    def _process(self, name: str) -> psutil.Process | None:
        """The process we started under that name, if it still runs; never another one that got its number since."""
        try:
            note = json.loads((self.root / f"run/{name}.json").read_text())
            process = psutil.Process(note["pid"])
            if abs(process.create_time() - note["started"]) > 1 or not processes.alive(process):
                return None
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None
        return process

    def _forget(self) -> None:
        for note in (self.root / "run").glob("*.json"):
            note.unlink()

    def _wait_healthy(self, commands: Mapping[str, list[str]]) -> Iterator[str]:
        yield "waiting until Airflow and MLflow answer"
        deadline = time.monotonic() + START_SECONDS
        while not (self._airflow_healthy() and _answers(f"{self.mlflow_url}/health")):
            for name in commands:
                if self._process(name) is None:
                    raise StackError(f"{name} ended while starting: {_tail(self.root / f'logs/{name}.log')}")
            if time.monotonic() > deadline:
                raise StackError(
                    f"Airflow or MLflow did not answer within {START_SECONDS:.0f} s; see {self.root / 'logs'}"
                )
            time.sleep(0.2)

    def _airflow_healthy(self) -> bool:
        try:
            health = httpx.get(f"{self.airflow_url}/api/v2/monitor/health", timeout=5).json()
        except (httpx.HTTPError, ValueError):
            return False
        parts = ("metadatabase", "scheduler", "dag_processor", "triggerer")
        return all((health.get(part) or {}).get("status") == "healthy" for part in parts)

    def _check_ports(self, missing: list[str]) -> None:
        ports = {"api-server": ("AIRFLOW_PORT", self.airflow_port), "mlflow": ("MLFLOW_PORT", self.mlflow_port)}
        for name, (variable, port) in ports.items():
            if name not in missing:
                continue
            if not is_free(port):
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
        return inherited | self.environment()

    def _secrets(self) -> dict[str, str]:
        path = self.root / "secrets.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_private(path, json.dumps({name: secrets.token_hex(32) for name in ("api", "jwt")}))
        keys: dict[str, str] = json.loads(path.read_text())
        return keys


def stack_settings(root: Path) -> dict[str, str]:
    """
    The options of ``[mlops]`` of the stack that was started there last; none where there was none.

    :return: by their environment variables
    """
    path = root / ENVIRONMENT
    lines = path.read_text().splitlines() if path.is_file() else []
    settings = (shlex.split(line)[1].partition("=") for line in lines)
    return {name: value for name, _, value in settings if name.startswith("AIRFLOW__MLOPS__")}


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()[-15:]
    return f"{path}\n" + "\n".join(lines)
