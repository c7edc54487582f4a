"""
The package of a registered model, opened where it can be: in this process, where that has the library and the packages
that the model was registered with, else by a program in a process of its own.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from signal import Signals
from types import ModuleType
from typing import IO, Any, Final, Self

import polars as pl

from mlops.contract.step import PARENT_VARIABLE, BadConfigError, BadDataError, StepError
from mlops.predictor.predictor import Predictor, open_predictor
from mlops.serving.apart import FORMAT
from mlops.tracking.model_folder import LIBRARY, data_of

logger = logging.getLogger(__name__)
_REQUIREMENTS: Final = "requirements.txt"
_SERVERS_OWN: Final = frozenset({"mlflow"})
"""Packages that only a server needs."""
_IMPORTS: Final = Path(__file__).parents[2]
"""Folder that this library is imported from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredPackage:
    data: Path
    """Folder of the model itself."""
    paths: Sequence[Path]
    """What its programs import from, before all that this process does; empty where this process has the same."""

    @classmethod
    def of(cls, folder: Path, scratch: Path) -> Self:
        """
        :param folder: of the package
        :param scratch: folder for files, empty or missing
        :raises BadConfigError: where what it was registered with cannot be had here
        """
        data, missing = data_of(folder), _not_here(folder / _REQUIREMENTS)
        if not missing and _is_this_library(folder / LIBRARY):
            return cls(data=data, paths=())
        scratch.mkdir(exist_ok=True)
        paths = [folder / LIBRARY]
        if missing:
            logger.info("installing what the model was registered with: %s", ", ".join(missing))
            paths = [_installed(missing, folder / _REQUIREMENTS, scratch), *paths]
        return cls(data=data, paths=paths)

    def opened(self) -> Predictor | None:
        """Return the model; None where it needs a process of its own."""
        return None if self.paths else open_predictor(self.data)

    @contextmanager
    def running(self, program: ModuleType) -> Iterator[Program]:
        """
        Run a program of the package's library in a process of its own, which ends with the context.

        :param program: :mod:`mlops.serving.scoring` or :mod:`mlops.serving.answering`
        """
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        others = [path for path in inherited if path and not Path(path, "mlops").is_dir()]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, self.paths), *others]),
            "PYTHONSAFEPATH": "1",
            PARENT_VARIABLE: str(os.getpid()),
        }
        replies, given = os.pipe()  # of its own, for what is imported may print
        command = [sys.executable, "-m", program.__name__, str(self.data), str(given)]
        logger.info("working in a process with the library that the model was registered with")
        with tempfile.TemporaryFile("w+", errors="replace") as said, os.fdopen(replies) as read:
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=said,
                    stderr=said,
                    text=True,
                    pass_fds=[given],
                )
            finally:
                os.close(given)  # so that its end is seen
            try:
                yield Program(process=process, replies=read, said=said)
                process.communicate()  # its input ends, and so does it
            finally:
                process.kill()
                process.communicate()


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A program of a package's library, which runs."""

    process: subprocess.Popen[str]
    replies: IO[str]
    said: IO[str]
    """What it printed."""

    def ask(self, rows: pl.DataFrame, folder: Path) -> dict[str, Any]:
        """
        :param rows: raw rows
        :param folder: exists; the program leaves its result there
        :return: what it says
        :raises BadDataError: where it cannot do it for these rows
        :raises BadConfigError: where it ends, or is of a release whose files have another format
        :raises StepError: where it is killed
        """
        given = folder / "rows.arrow"
        # Any release of Polars reads the oldest layout of strings.
        rows.write_ipc(given, compat_level=pl.CompatLevel.oldest())
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and so do its replies
            print(json.dumps({"rows": str(given), "result": str(folder)}), file=self.process.stdin, flush=True)
        if not (reply := self.replies.readline()):
            raise self._ended(self.process.wait())
        document: dict[str, Any] = json.loads(reply)
        if document["format"] != FORMAT:
            raise BadConfigError(
                f"it was registered with another release, whose programs leave files of format {document['format']}; "
                f"this one reads {FORMAT}"
            )
        if "error" in document:
            raise BadDataError(document["error"])
        return document

    def _ended(self, code: int) -> StepError:
        self.said.seek(0)
        said = self.said.read()
        logger.error("it ended with code %d:\n%s", code, said)
        last = (said.strip() or "nothing").splitlines()[-1]
        if code < 0:
            return StepError(
                f"the process of the library that it was registered with was killed by {Signals(-code).name}; it said: "
                f"{last}. Where memory ran out, give the step more"
            )
        return BadConfigError(f"the library that it was registered with ended with code {code}: {last}")


def _not_here(requirements: Path) -> list[str]:
    """Return those of the pinned requirements that this process does not have."""
    pins = re.findall(r"^([\w.-]+)==(\S+)", requirements.read_text(), re.MULTILINE)
    return [f"{name}=={pin}" for name, pin in pins if name not in _SERVERS_OWN and _version(name) != pin]


def _version(name: str) -> str | None:
    try:
        # Without the build (+cpu, +cu130), which a requirement does not name.
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return None


def _is_this_library(packed: Path) -> bool:
    """Tell whether all modules of a packed library are those of this one."""
    with zipfile.ZipFile(packed) as archive:
        return all(_has(_IMPORTS / name, archive.read(name)) for name in archive.namelist())


def _has(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _installed(wanted: list[str], constraints: Path, scratch: Path) -> Path:
    """
    Install packages into a folder of their own, beside those of this process.

    :raises BadConfigError: where that fails, with what uv says
    """
    folder = scratch / "packages"
    command = [
        *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable),
        *("--target", str(folder), "--constraint", str(constraints), *wanted),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadConfigError(
            f"it was registered with {', '.join(wanted)}, which cannot be installed here: {done.stderr.strip()}. Give "
            "this process an index that has them (UV_DEFAULT_INDEX), or an image with them"
        )
    return folder
