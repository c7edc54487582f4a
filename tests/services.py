"""
Real servers for tests, each on a free loopback port and in a temporary folder; none outlives its test process.

Standard library only: every runtime's tests may use them. As fixtures: ``postgres``, ``redis_server``, ``s3`` of
``tests/training/conftest.py``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mlops_provider.local.ports import free_port

REPOSITORY = Path(__file__).parents[1]
TRAINING_PYTHON = REPOSITORY / ".venv/training/bin/python"


@contextmanager
def postgres_server(host: str = "127.0.0.1") -> Iterator[str]:
    """
    A PostgreSQL server; its URI, with a user that may do everything and the password ``s3cret/word``.

    :param host: address of this machine at which it is asked
    """
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
    programs = programs or Path(_program("postgres", "postgresql")).parent
    # PostgreSQL refuses to run as root.
    user = ["--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if user:
            shutil.chown(folder, "postgres", "postgres")
        (folder / "password").write_text("s3cret/word")
        (folder / "password").chmod(0o644)
        initdb = [str(programs / "initdb"), "-D", f"{folder}/data", "-U", "trainer", "--auth=scram-sha-256"]
        initdb += ["--encoding=UTF8", "--no-sync", f"--pwfile={folder}/password"]
        subprocess.run(["setpriv", *user, *initdb], check=True, cwd="/", stdout=subprocess.DEVNULL)
        with (folder / "data/pg_hba.conf").open("a") as rules:
            rules.write("host all all all scram-sha-256\n")
        addresses = ",".join({"127.0.0.1", host})
        settings = [f"port={port}", f"listen_addresses={addresses}", f"unix_socket_directories={folder}", "fsync=off"]
        command = [str(programs / "postgres"), "-D", f"{folder}/data"]
        for setting in settings:
            command += ["-c", setting]
        with _running(command, port, folder, user=user, stop=signal.SIGQUIT):
            _wait_for_postgres(programs, port)
            yield f"postgresql://trainer:s3cret%2Fword@{host}:{port}/postgres"


@contextmanager
def redis_server() -> Iterator[str]:
    """A Redis server; its URI. Nothing is saved."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="redis-") as name:
        command = [_program("redis-server", "redis-server"), "--port", str(port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", name]
        with _running(command, port, Path(name)):
            yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """An S3 server (moto) with the empty bucket ``bucket``; the environment variables by which clients find it."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="s3-") as name:
        command = [str(TRAINING_PYTHON), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with _running(command, port, Path(name)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("PUT", "/bucket")
            assert connection.getresponse().status == 200, "the bucket was made"
            connection.close()
            yield {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
            }


@contextmanager
def kms_server() -> Iterator[dict[str, str]]:
    """
    A key management service with a key for signing, ``alias/release``, and one for RSA, ``alias/rsa``; the environment
    variables by which boto3 finds it. S3 is there too.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="kms-") as name:
        command = [str(TRAINING_PYTHON), str(REPOSITORY / "tests/kms_server.py"), "-H", "127.0.0.1", "-p", str(port)]
        with _running(command, port, Path(name)):
            for alias, spec in {"alias/release": "ECC_NIST_P256", "alias/rsa": "RSA_2048"}.items():
                made = _ask_kms(port, "CreateKey", {"KeySpec": spec, "KeyUsage": "SIGN_VERIFY"})
                _ask_kms(port, "CreateAlias", {"AliasName": alias, "TargetKeyId": made["KeyMetadata"]["KeyId"]})
            yield {
                "AWS_ENDPOINT_URL_KMS": f"http://127.0.0.1:{port}",
                "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_DEFAULT_REGION": "us-east-1",
            }


def _ask_kms(port: int, action: str, given: Mapping[str, str]) -> dict[str, Any]:
    # By the scope of its signature, which it does not check, moto knows which service is meant.
    scope = "Credential=test/20260101/us-east-1/kms/aws4_request, SignedHeaders=host, Signature=0"
    headers = {"X-Amz-Target": f"TrentService.{action}", "Authorization": f"AWS4-HMAC-SHA256 {scope}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/", json.dumps(given), headers | {"Content-Type": "application/x-amz-json-1.1"})
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status == 200, said
    return dict(json.loads(said or b"null") or {})


@contextmanager
def mlflow_server(database: str | None = None) -> Iterator[str]:
    """
    Address of an MLflow server, with artifacts by way of the server.

    :param database: URI; a SQLite file of its own where None
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="mlflow-", ignore_cleanup_errors=True) as name:
        # SQLAlchemy would look for another driver than the locked one.
        backend = (database or f"sqlite:///{name}/mlflow.db").replace("postgresql:", "postgresql+psycopg2:")
        command = [str(TRAINING_PYTHON), "-m", "mlflow", "server", "--backend-store-uri", backend]
        command += ["--artifacts-destination", f"{name}/artifacts", "--host", "127.0.0.1", "--port", str(port)]
        # Half a dozen processes for jobs that no test submits.
        settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with _running([*command, "--workers", "1"], port, Path(name), environment=settings):
            yield f"http://127.0.0.1:{port}"


@contextmanager
def model_server(model_uri: str, tracking_uri: str) -> Iterator[str]:
    """Address of MLflow's own server of a registered model; it has the installed packages and none of our files."""
    port = free_port()
    command = [str(TRAINING_PYTHON), "-m", "mlflow", "models", "serve", "--model-uri", model_uri]
    command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with tempfile.TemporaryDirectory(prefix="served-") as name:
        # It starts uvicorn by name: the environment is activated.
        path = f"{TRAINING_PYTHON.parent}:{os.environ['PATH']}"
        settings = {"MLFLOW_TRACKING_URI": tracking_uri, "PYTHONPATH": "", "PATH": path, "TMPDIR": name}
        with _running(command, port, Path(name), environment=settings):
            yield f"http://127.0.0.1:{port}"


@contextmanager
def _running(
    command: Sequence[str],
    port: int,
    folder: Path,
    *,
    user: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    stop: signal.Signals = signal.SIGKILL,
) -> Iterator[None]:
    # Where the tests themselves are killed, the server goes with them.
    command = ["setpriv", *user, "--pdeathsig=KILL", *command]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            command, stdout=log, stderr=log, cwd="/", env={**os.environ, **environment}, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 90
        while not _accepts(port):
            said = (folder / "log").read_text()
            assert server.poll() is None, f"{command} on port {port} ended: {said}"
            assert time.monotonic() < deadline, f"{command} on port {port} does not answer: {said}"
            time.sleep(0.05)
        yield
    finally:
        server.send_signal(stop)
        server.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # its workers, where it was given no time to end them


def _wait_for_postgres(programs: Path, port: int) -> None:
    """It accepts connections a moment before it serves them."""
    ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port), "-t", "30"]
    for _ in range(200):
        if subprocess.run(ready, check=False).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError("PostgreSQL does not become ready")


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed; `make services` installs the Debian package {package}"
    return found
