"""The processes of a local stack, found again by what was noted when they were started."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mlops_provider import processes


def write_whole(path: Path, text: str) -> None:
    """Write a file that its owner alone can read; where a full disk or a kill prevents it, the one before stays."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    new.replace(path)


def read_whole(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where there is none, or what is there is empty or cut short."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Parts:
    """
    The parts of a stack, each a process with a session of its own.

    :param root: the stack's folder; notes lie in ``run/<name>.json``
    """

    root: Path

    def note(self, name: str, pid: int, former: Mapping[int, float]) -> None:
        """
        Note a part that was just started.

        :param former: sessions of killed parts of that name whose processes go on, see :meth:`living_sessions`
        """
        started = psutil.Process(pid).create_time()
        document = {"pid": pid, "started": started, "former": former}
        write_whole(self.root / f"run/{name}.json", json.dumps(document))

    def living_sessions(self, name: str) -> dict[int, float]:
        """
        Return the sessions of a part that still have processes: their numbers, and when they began.

        The tasks of a killed scheduler go on, and are to be found again.
        """
        return {pid: started for pid, started in self._sessions(name).items() if self._in_sessions({pid: started})}

    def process(self, name: str) -> psutil.Process | None:
        """The process we started under that name, if it still runs; never another one that got its number since."""
        if (note := self._read(name)) is None:
            return None
        try:
            process = psutil.Process(note["pid"])
            started = process.create_time()
        except psutil.NoSuchProcess:
            return None
        return process if abs(started - note["started"]) <= 1 and processes.alive(process) else None

    def _read(self, name: str) -> dict[str, Any] | None:
        return read_whole(self.root / f"run/{name}.json")

    def members(self, name: str) -> list[psutil.Process]:
        """A part and all that it started, but for the steps; also of those before it that were killed."""
        return self._in_sessions(self._sessions(name))

    def _sessions(self, name: str) -> dict[int, float]:
        """
        Return the sessions of a part, and of those before it that were killed: their numbers, and when they began.
        """
        if (note := self._read(name)) is None:
            return {}
        former = {int(pid): float(started) for pid, started in note.get("former", {}).items()}
        return {**former, note["pid"]: note["started"]}

    def _in_sessions(self, sessions: Mapping[int, float]) -> list[psutil.Process]:
        """
        Return the processes of these sessions. The children of a part whose first process was killed go on, with its
        port.

        The kernel gives a session's number to nobody else meanwhile; and they are in the stack's folder.
        """
        found = []
        for process in psutil.process_iter():
            try:
                if process.create_time() < sessions.get(os.getsid(process.pid), math.inf) - 1:
                    continue
                try:
                    ours = process.cwd() == str(self.root.resolve())
                except psutil.AccessDenied:  # Airflow hides the processes of its tasks
                    ours = process.uids().real == os.getuid() and " ".join(process.cmdline()).startswith("airflow ")
                if ours and processes.alive(process):
                    found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):  # ended since
                continue
        return found

    def forget(self) -> None:
        for note in (self.root / "run").glob("*.json"):
            note.unlink()
