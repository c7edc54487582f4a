"""
A step as another user of the operating system, who can read neither Airflow's files nor its processes.

A process of that user (:mod:`mlops_provider.launchers.relay`) is told the order by its standard input, so that no
secret stands in a command line or in a file, and does what :class:`mlops_provider.launchers.child.ChildRun` does. It
ends, with all that it started, when its input is closed: when this process cancels it, or ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlops.contract.refs import Ref, ref_from_wire
from mlops.contract.section import SpecError
from mlops.contract.step import Failure
from mlops_provider.launchers.base import Outcome
from mlops_provider.launchers.child import GRACE_SECONDS, Order, describe

START = "import sys; sys.path.insert(0, sys.argv[1]); from mlops_provider.launchers.relay import main; main()"
"""Program of the relay, which inherits no environment that would say where its modules are."""
_OF_THE_USER = ("HOME", "LOGNAME", "TMPDIR", "USER", "XDG_")
"""Begin the names of a worker's variables that name files of its own user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Becoming:
    """How a process of this one becomes another user's."""

    user: pwd.struct_passwd
    prefix: tuple[str, ...]
    """Beginning of the command line."""
    options: Mapping[str, Any]
    """Further options of ``Popen``."""


def as_user(name: str) -> Becoming:
    """
    :param name: of the user
    :raises SpecError: where there is no such user, or this process may not become it
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise SpecError(
            f"run_as_user: this machine has no user {name!r}: make one, as by `useradd --create-home {name}`, on each "
            "worker"
        ) from None
    own = os.geteuid()
    if user.pw_uid in (0, own):
        who = "root" if user.pw_uid == 0 else "the user of Airflow itself"
        raise SpecError(f"run_as_user: {name!r} is {who}, from whom nothing can be hidden: name another one")
    if own == 0:
        groups = {"group": user.pw_gid, "extra_groups": os.getgrouplist(name, user.pw_gid)}
        return Becoming(user=user, prefix=(), options={"user": user.pw_uid, **groups})
    if (sudo := shutil.which("sudo")) is None:
        raise SpecError(
            f"run_as_user: Airflow runs as {_own_name()!r}, who may not become {name!r}, and there is no sudo: "
            "install it and allow that, run the workers as root, or use launcher: pod"
        )
    return Becoming(user=user, prefix=(sudo, "-n", "-H", "-u", name, "--"), options={})


class UserRun:
    """
    Runs one step as another user.

    :param python: interpreter of the training runtime, which the relay needs psutil of
    """

    def __init__(self, becoming: Becoming, python: str) -> None:
        self._becoming, self._python = becoming, python
        self._relay: subprocess.Popen[str] | None = None

    def run(self, order: Order, on_line: Callable[[str], None]) -> Outcome:
        user = self._becoming.user
        kept = {name: value for name, value in order.environment.items() if not name.startswith(_OF_THE_USER)}
        order = replace(order, environment=kept | {"HOME": user.pw_dir, "USER": user.pw_name})
        self._relay = relay = self._start(user)
        assert relay.stdin is not None
        assert relay.stdout is not None
        last: list[str] = []
        lost: list[Exception] = []
        begun, end = False, None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and what it said is read below
                relay.stdin.write(order.to_json() + "\n")
                relay.stdin.flush()
            for text in relay.stdout:
                message = _message(text)
                if message.keys() == {"begun"}:
                    begun = True
                elif "line" not in message:
                    end = message
                else:
                    last = [*last[-4:], message["line"]]
                    try:
                        on_line(message["line"])
                    except Exception as error:  # unread, the pipe would fill up and the step stand still for ever
                        lost.append(error)
        finally:
            self.cancel()
            self._relay = None
        if lost:  # a retry finds what the step committed
            raise lost[0]
        if end is not None:
            return _outcome(end)
        if begun:
            return Outcome(result=None, status=describe(relay.returncode))
        raise SpecError(
            f"run_as_user: no process of {user.pw_name!r} could be started ({describe(relay.returncode)}): "
            f"{' / '.join(last) or 'it said nothing'}. {self._fix()}"
        )

    def _start(self, user: pwd.struct_passwd) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                [*self._becoming.prefix, self._python, "-I", "-c", START, str(Path(__file__).parents[2])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd="/",
                env={"HOME": user.pw_dir, "PATH": os.defpath, "LANG": "C.UTF-8"},
                umask=0o027,
                start_new_session=True,
                **self._becoming.options,
            )
        except PermissionError as error:
            raise SpecError(f"run_as_user: {error}. {self._fix()}") from error

    def _fix(self) -> str:
        name = self._becoming.user.pw_name
        if self._becoming.prefix:
            return f"Allow it in /etc/sudoers.d: {_own_name()} ALL=({name}) NOPASSWD: {self._python}"
        modules = Path(__file__).parents[2]
        return f"{name!r} must be able to read {self._python} and {modules}, and to enter the folders above them"

    def cancel(self) -> None:
        relay = self._relay
        if relay is None:
            return
        assert relay.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            relay.stdin.close()
        try:
            # It ends what it started within the grace period.
            relay.wait(GRACE_SECONDS + 1)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(PermissionError, ProcessLookupError):  # of sudo, which ends with its child
                os.killpg(relay.pid, signal.SIGKILL)


def _own_name() -> str:
    own = os.geteuid()
    try:
        return pwd.getpwuid(own).pw_name
    except KeyError:  # a container's, say
        return f"#{own}"


def _message(text: str) -> dict[str, Any]:
    """What the relay says. What others say in its place, sudo or an interpreter that does not start, is a line too."""
    line = text.rstrip("\n")
    try:
        found = json.loads(line)
    except ValueError:
        return {"line": line}
    return found if isinstance(found, dict) and found.keys() & {"begun", "line", "status"} else {"line": line}


def _outcome(end: Mapping[str, Any]) -> Outcome:
    result: Ref | Failure | None = None
    if end["error"] is not None:
        result = Failure(**end["error"])
    elif end["ref"] is not None:
        result = ref_from_wire(end["ref"])
    return Outcome(result=result, status=end["status"])
