"""A container's process: started in namespaces of its own, its output kept line by line with the time it came."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

HIDDEN = ("/tmp", "/var/tmp", "/run", "/mnt")
"""Where this machine keeps what no image has; empty in a container."""
_PROGRAM = Path(__file__).with_name("container_init.py")


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine, seen in a container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A container as ``container_init`` makes it."""

    root: str
    hostname: str
    command: Sequence[str]
    env: Mapping[str, str]
    workdir: str
    mounts: Sequence[Mount]
    read_only_root: bool
    gpu: bool
    """Whether it may see the machine's GPUs, all of them."""
    hidden: Sequence[str] = HIDDEN
    carried: Sequence[str] = ()


class StartError(Exception):
    """The container could not be made, or its command not be started."""


class Log:
    """A container's output: a file of lines, each behind its time; readers wait for more."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.ended = False
        self._rest = b""
        self._grown = asyncio.Event()
        self._stream = file.open("ab", buffering=0)

    def feed(self, data: bytes) -> None:
        """Take output as it comes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            now = _nanoseconds()
            self._stream.write(b"".join(now + b" " + line + b"\n" for line in lines))
            self._wake()

    def end(self) -> None:
        """There is no more; a last line without an end is a line."""
        if self.ended:
            return
        if self._rest:
            self.feed(b"\n")
        self.ended = True
        self._stream.close()
        self._wake()

    def grown(self) -> asyncio.Event:
        """Set when there is more than now, or the end. Ask before reading, wait afterwards."""
        return self._grown

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()


class Process:
    """A running container."""

    def __init__(self, pid: int, waiter: asyncio.subprocess.Process, output: _Output) -> None:
        self.pid = pid
        """Of the container's first process, as seen from outside."""
        self.exited: asyncio.Task[int] = asyncio.create_task(self._wait(waiter, output))
        """The exit code, 128 and the signal's number where a signal ended it."""

    def signal(self, number: int) -> None:
        """Send a signal to the first process; its end is the end of all."""
        if not self.exited.done():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # it just ended

    @staticmethod
    async def _wait(waiter: asyncio.subprocess.Process, output: _Output) -> int:
        code = await waiter.wait()
        await output.closed
        return code


async def start(settings: Settings, log: Log, file: Path) -> Process:
    """
    Start a container.

    :param file: where its settings are written
    :raises StartError: it cannot be made
    """
    Path(settings.root).mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(settings)))
    loop = asyncio.get_running_loop()
    status_read, status_write = os.pipe()
    output_read, output_write = os.pipe()
    command = [sys.executable, "-I", "-S", str(_PROGRAM), str(file), str(status_write)]
    try:
        waiter = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output_write, stderr=output_write,
            pass_fds=[status_write], env={}, cwd="/",
        )  # fmt: skip
    finally:
        os.close(output_write)
        os.close(status_write)
    output = _Output(log)
    await loop.connect_read_pipe(lambda: output, os.fdopen(output_read, "rb"))
    told = await _read_all(status_read)
    said = dict(line.partition(" ")[::2] for line in told.splitlines())
    if "error" in said or "pid" not in said:
        await waiter.wait()
        await output.closed
        raise StartError(said.get("error", "the container could not be made"))
    return Process(int(said["pid"]), waiter, output)


async def _read_all(descriptor: int) -> str:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb"))
    return (await reader.read()).decode()


class _Output(asyncio.Protocol):
    def __init__(self, log: Log) -> None:
        self._log = log
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._log.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._log.end()
        if not self.closed.done():
            self.closed.set_result(None)


def carried_mounts() -> list[str]:
    """This machine's further mounts that belong to its image: an overlay of the root does not see into them."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    apart = [Path(place) for place in ("/proc", "/sys", "/dev", *HIDDEN)]
    kept = {place for place in places if place != "/" and not any(Path(place).is_relative_to(each) for each in apart)}
    return sorted(kept, key=len)


def _nanoseconds() -> bytes:
    now = time.time_ns()
    moment = datetime.fromtimestamp(now // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{now % 1_000_000_000:09d}Z".encode()
