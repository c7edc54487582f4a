"""An MLflow server, a slow way to it, and an address where nobody answers."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from mlops_provider.local.ports import free_port

DELAY_SECONDS = 1.0
"""Of each answer of the slow server."""


@contextmanager
def mlflow_server(folder: Path, python: str | Path = sys.executable) -> Iterator[int]:
    """
    Its port on the loopback.

    :param python: of a runtime that has mlflow
    """
    port = free_port()
    command = [str(python), "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port)]
    with running([*command, "--workers", "1"], folder / "mlflow.log") as server:
        deadline = time.monotonic() + 90
        while not healthy(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"MLflow does not start: {(folder / 'mlflow.log').read_text()[-2000:]}")
            time.sleep(0.2)
        yield port


@contextmanager
def slow_server(port: int, folder: Path) -> Iterator[int]:
    """A port whose every answer comes :data:`DELAY_SECONDS` late."""
    slow = free_port()
    command = [sys.executable, "-m", "benchmarks.training.programs.servers", str(slow), str(port)]
    with running(command, folder / "slow.log"):
        deadline = time.monotonic() + 30
        while not healthy(slow):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the slow server does not start: {(folder / 'slow.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield slow


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this block, with all that it started; and where this program is killed."""
    command = ["setpriv", "--pdeathsig=KILL", *command]
    settings = os.environ | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=settings, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # nothing of it is kept
        process.wait(20)


def healthy(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    while data := await reader.read(1 << 16):
        await asyncio.sleep(delay)
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(port: int, upstream: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_connection("127.0.0.1", upstream)
        await asyncio.gather(
            forward(reader, to_them, 0.0), forward(theirs, writer, DELAY_SECONDS), return_exceptions=True
        )

    server = await asyncio.start_server(connect, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
