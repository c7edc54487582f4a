"""The process that workers are forked from: what it forks behaves and ends as a new interpreter would."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from live_processes import is_alive

from mlops.contract import warm
from mlops.contract.step import python_path
from mlops.contract.warm import (
    Forked,
    NotForkedError,
    NotWarmError,
    Request,
    WarmConnection,
    WarmRuntime,
    end_all,
)
from mlops.fork_server import ForkServer

CHECKOUT = Path(__file__).parents[2]
PATHS = {"PYTHONPATH": python_path(CHECKOUT)}

OWNER = """
import os, sys, time
from mlops.fork_server import ForkServer
server = ForkServer(["json"], copy=bool(int(sys.argv[1])))
children = [server.fork(["-c", "import time; time.sleep(600)"], os.environ, 1) for _ in range(3)]
print(server.pid, *(child.pid for child in children), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return ForkServer(["json"], {**os.environ, **PATHS})


@pytest.fixture
def run(server: ForkServer) -> Callable[..., tuple[int | None, str]]:
    def run(*program: str, **environment: str) -> tuple[int | None, str]:
        with tempfile.TemporaryFile() as output:
            code = server.fork(program, {**os.environ, **PATHS, **environment}, output.fileno()).wait(30)
            output.seek(0)
            return code, output.read().decode()

    return run


@pytest.fixture
def sleeping(server: ForkServer) -> Iterator[Forked]:
    child = server.fork(["-c", "import time; time.sleep(600)"], {**os.environ}, 1)
    yield child
    if child.exit_code is None:
        os.kill(child.pid, signal.SIGKILL)


ENDS: Mapping[str, str] = {
    "well": "print('done')",
    "exit code": "import sys; sys.exit(3)",
    "no exit code": "import sys; sys.exit()",
    "exit message": "import sys; sys.exit('it is over')",
    "error": "raise ValueError('seven')",
    "at exit": "import atexit; atexit.register(print, 'last words')",
    "a thread that goes on": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()",
    "output that is not flushed": "import sys; sys.stdout.write('no line end'); sys.stderr.write('nor here')",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "terminated": "import os; os.kill(os.getpid(), 15)",
    "_exit": "import os; os._exit(7)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "exit code beyond a byte": "import sys; sys.exit(300)",
    "negative exit code": "import sys; sys.exit(-1)",
    "an exit message that is no text": "import sys; sys.exit(['a', 1])",
    "an error at exit": "import atexit, operator; atexit.register(operator.truediv, 1, 0)",
    "arguments": "import sys; print(sys.argv)",
    "main": "import __main__\nclass A: pass\nprint(__name__, A.__module__, __main__.A is A)",
    "input": "import sys; print(repr(sys.stdin.read()))",
    "signals": "import signal; print([signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT)])",
    "session": "import os; print(os.getsid(0) == os.getpid())",
    "environment": "import os; print(os.environ['WORD'], 'PIP_CERT' in os.environ, os.getcwd())",
}


def _without_frames(said: str) -> list[str]:
    """What is said but where it happened: a forked process has the server's frames below its own."""
    return [line for line in said.splitlines(keepends=True) if not line.startswith(("Traceback ", "  "))]


def run_alone(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a new interpreter, which the forked process must be like."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **PATHS, "WORD": "up"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("program", ENDS.values(), ids=ENDS)
def test_it_says_and_ends_as_a_new_interpreter(run: Callable[..., tuple[int | None, str]], program: str) -> None:
    """Broken: a worker's exit code, last words or error is not what the same program has alone."""
    code, said = run("-c", program, "one", "two words", WORD="up")
    alone = run_alone(program, "one", "two words")
    assert code == alone.returncode
    assert _without_frames(said) == _without_frames(alone.stdout)


def test_modules_and_scripts(run: Callable[..., tuple[int | None, str]], tmp_path: Path) -> None:
    """Broken: a script does not find what lies beside it, or a module takes another one's arguments."""
    (tmp_path / "beside.py").write_text("WORD = 'beside'")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside\nif __name__ == '__main__': print(beside.WORD, sys.argv)")
    assert run(str(script), "--flag") == (0, f"beside {[str(script), '--flag']}\n")
    code, said = run("-m", "json.tool", "--compact", str(tmp_path / "missing.json"))
    assert code != 0
    assert "missing.json" in said


def test_its_end_can_be_waited_for(sleeping: Forked) -> None:
    """Broken: an agent polls, or never sees that a worker was killed."""
    assert sleeping.exit_code is None
    assert sleeping.wait(0.05) is None
    os.killpg(sleeping.pid, signal.SIGTERM)  # it leads its session as soon as its pid is known
    assert sleeping.wait(60) == -signal.SIGTERM
    assert sleeping.exit_code == -signal.SIGTERM


def test_many_at_once(server: ForkServer) -> None:
    """Broken: two threads' requests are mixed, or an end is told to the wrong one."""

    def start(number: int) -> tuple[int, int | None]:
        program = ["-c", "import sys; sys.exit(int(sys.argv[1]) + len(sys.argv[2]) % 7)", str(number), "x" * 200_000]
        return number, server.fork(program, {**os.environ}, 1).wait(60)

    with ThreadPoolExecutor(8) as pool:
        for number, code in pool.map(start, range(60)):
            assert code == number + 200_000 % 7


def test_it_keeps_nothing_open(server: ForkServer) -> None:
    """Broken: each restart of a long run costs the server a descriptor, until it has none left."""
    process = psutil.Process(server.pid)
    assert server.fork(["-c", "pass"], {**os.environ}, 1).wait(30) == 0
    time.sleep(0.5)  # it closes the last ones after it has told the end
    before = process.num_fds()
    for _ in range(20):
        assert server.fork(["-c", "pass"], {**os.environ}, 1).wait(30) == 0
    wait_until(lambda: process.num_fds() <= before)
    assert not process.children()


def test_a_killed_server_takes_its_children_along_and_is_replaced(
    run: Callable[..., tuple[int | None, str]], server: ForkServer, sleeping: Forked
) -> None:
    """Broken: the kernel kills it for memory, and a worker runs on unseen or no worker can be started again."""
    os.kill(server.pid, signal.SIGKILL)
    assert sleeping.wait(60) == -signal.SIGKILL
    wait_until(lambda: not running([sleeping.pid]))
    assert run("-c", "print('again')") == (0, "again\n")


@pytest.mark.parametrize("copy", [False, True], ids=["started", "copied"])
def test_a_killed_owner_leaves_nothing_behind(copy: bool) -> None:
    """Broken: SIGKILL of an agent leaves workers that train beside their own retry."""
    command = [sys.executable, "-c", OWNER, str(int(copy))]
    with subprocess.Popen(command, env={**os.environ, **PATHS}, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(running(pids)) == 4
        owner.kill()
        wait_until(lambda: not running(pids))


def test_a_server_that_cannot_import_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    """Broken: an agent waits for ever for its workers' parent."""
    broken = ForkServer(["no_such_module"], {**os.environ, **PATHS})
    with pytest.raises(RuntimeError, match="its own error is above"):
        broken.fork(["-c", "pass"], {}, 1)
    assert "No module named 'no_such_module'" in capfd.readouterr().err


def running(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def runtimes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The private folder of this test's warm runtimes, which end with the test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield tmp_path / "mlops"
    for process in warm_processes(tmp_path):
        process.kill()


def warm_runtime(place: Path, **changes: Any) -> WarmRuntime:
    """One that imports a module that lies in ``place``."""
    if not (place / "library.py").exists():
        (place / "library.py").write_text("")
    environment = {**os.environ, "PYTHONPATH": f"{PATHS['PYTHONPATH']}:{place}"}
    given = {"module": "library", "home": str(place), "idle_seconds": 60.0, "environment": environment, **changes}
    return WarmRuntime(python=sys.executable, **given)


def connected(runtime: WarmRuntime) -> WarmConnection:
    """Start it, and wait until it is there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(NotWarmError):
            return runtime.connect()
        time.sleep(0.02)
    return runtime.connect()


def refusal(runtime: WarmRuntime) -> str:
    with pytest.raises(NotWarmError) as reason:
        runtime.connect()
    return str(reason.value)


def warm_processes(place: Path) -> list[psutil.Process]:
    """All warm runtimes that were started in a place."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        line = " ".join(process.info["cmdline"] or [])
        if "warm" in line and process.info["cwd"] == str(place) and is_alive(process.pid):
            found.append(process)
    return found


def start(connection: WarmConnection, code: str, output: int = 1, **environment: str) -> Forked:
    whole = {**os.environ, **PATHS, **environment}
    return connection.fork(Request(program=["-c", code], environment=whole, folder=os.getcwd()), output)


def test_launchers_that_come_at_once_start_one_warm_runtime(runtimes: Path, tmp_path: Path) -> None:
    """Broken: each task of a night's beginning holds half a gigabyte of its own, or all wait for imports."""
    runtime = warm_runtime(tmp_path)

    with ThreadPoolExecutor(8) as pool:
        reasons = [*pool.map(refusal, [runtime] * 8)]
    assert reasons.count("the warm runtime is being started") == 1, reasons
    connections = [connected(runtime) for _ in range(3)]
    assert {connection.pid for connection in connections} == {process.pid for process in warm_processes(tmp_path)}
    assert len(warm_processes(tmp_path)) == 1


def test_a_warm_runtime_belongs_to_nobody(runtimes: Path, tmp_path: Path) -> None:
    """Broken: Airflow ends it with the task that started it, or waits for a pipe that it holds open."""
    connection = connected(warm_runtime(tmp_path))
    server = psutil.Process(connection.pid)
    assert server.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    assert os.getsid(server.pid) == server.pid
    held = {os.readlink(f"/proc/{server.pid}/fd/{number}") for number in os.listdir(f"/proc/{server.pid}/fd")}
    ours = {os.readlink(f"/proc/self/fd/{number}") for number in (1, 2)}
    assert not held & ours - {os.devnull}


@pytest.mark.parametrize("name", ["exit code", "error", "killed", "environment", "session", "signals", "input"])
def test_a_warm_process_says_and_ends_as_a_new_interpreter(runtimes: Path, tmp_path: Path, name: str) -> None:
    """Broken: a step fails, dies or reads its environment in another way than it did in a process of its own."""
    connection = connected(warm_runtime(tmp_path))
    with tempfile.TemporaryFile() as output:
        code = start(connection, ENDS[name], output.fileno(), WORD="up").wait(30)
        output.seek(0)
        said = output.read().decode()
    alone = run_alone(ENDS[name])
    assert (code, _without_frames(said)) == (alone.returncode, _without_frames(alone.stdout))


def test_ps_shows_what_a_warm_process_does(runtimes: Path, tmp_path: Path) -> None:
    """Broken: whoever looks for a runaway step finds ten processes of one name."""
    connection = connected(warm_runtime(tmp_path))
    assert psutil.Process(connection.pid).cmdline() == ["mlops:", "warm", "runtime", "library"]
    child = start(connection, "import time; time.sleep(600)")
    wait_until(lambda: psutil.Process(child.pid).cmdline()[:2] == [sys.executable, "-c"])


def test_each_process_draws_its_own_random_numbers(runtimes: Path, tmp_path: Path) -> None:
    """Broken: two steps take the same "random" names, or the same sample."""
    (tmp_path / "library.py").write_text("import random, numpy.random\nrandom.random(), numpy.random.random()")
    connection = connected(warm_runtime(tmp_path))
    draw = "import random, numpy; print(random.random(), numpy.random.random())"
    with tempfile.TemporaryFile() as output:
        for _ in range(2):
            assert start(connection, draw, output.fileno()).wait(30) == 0
        output.seek(0)
        assert len(set(output.read().split())) == 4


def test_limits_and_mask_are_the_launchers(runtimes: Path, tmp_path: Path) -> None:
    """Broken: a step writes files that others may read, since another launcher's mask allowed it."""
    runtime = warm_runtime(tmp_path)
    first = connected(runtime)
    says = "import os, resource; print(os.umask(0), resource.getrlimit(resource.RLIMIT_CORE)[0])"
    before, limit = os.umask(0o027), resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0 if limit[0] else 4096, limit[1]))
        second = connected(runtime)
        wanted = f"{0o027} {resource.getrlimit(resource.RLIMIT_CORE)[0]}\n"
    finally:
        os.umask(before)
        resource.setrlimit(resource.RLIMIT_CORE, limit)
    assert first.pid != second.pid
    with tempfile.TemporaryFile() as output:
        assert start(second, says, output.fileno()).wait(30) == 0
        output.seek(0)
        assert output.read().decode() == wanted


def test_a_killed_launcher_leaves_nothing_of_a_warm_process(runtimes: Path, tmp_path: Path) -> None:
    """Broken: SIGKILL of an Airflow task leaves its step at work beside the retry."""
    connection = connected(warm_runtime(tmp_path))
    launcher = os.fork()
    if launcher == 0:  # has a connection of its own, and what it started starts a process in its turn
        own = connected(warm_runtime(tmp_path))
        code = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
        with tempfile.TemporaryFile() as output:
            start(own, code, output.fileno())
            time.sleep(600)
    server = psutil.Process(connection.pid)
    wait_until(lambda: len(server.children(recursive=True)) == 2)
    pids = [process.pid for process in server.children(recursive=True)]
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    wait_until(lambda: not running(pids))
    assert start(connection, "pass").wait(60) == 0, "others' processes go on"


def test_a_changed_library_replaces_the_warm_runtime(runtimes: Path, tmp_path: Path) -> None:
    """Broken: after a release steps go on with the old code; or the release kills what runs."""
    runtime = warm_runtime(tmp_path)
    old = connected(runtime)
    going_on = start(old, "import time; time.sleep(600)")
    with (tmp_path / "library.py").open("a") as file:
        file.write("WORD = 'new'\n")
    with pytest.raises(NotForkedError):
        start(old, "pass")
    new = connected(runtime)
    assert new.pid != old.pid
    with tempfile.TemporaryFile() as output:
        assert start(new, "import library; print(library.WORD)", output.fileno()).wait(30) == 0
        output.seek(0)
        assert output.read() == b"new\n"
    assert going_on.exit_code is None
    os.kill(going_on.pid, signal.SIGTERM)
    assert going_on.wait(60) == -signal.SIGTERM
    wait_until(lambda: not running([old.pid]))


def test_an_idle_warm_runtime_ends(runtimes: Path, tmp_path: Path) -> None:
    """Broken: every deployment of a test, and every one that is gone, holds its memory for ever."""
    connection = connected(warm_runtime(tmp_path, idle_seconds=0.3))
    child = start(connection, "import time; time.sleep(1)")
    assert child.wait(60) == 0, "it is not idle while a step runs"
    connection.close()
    wait_until(lambda: not running([connection.pid]))
    assert not [*runtimes.iterdir()]


def test_the_warm_runtimes_of_a_deployment_are_ended(runtimes: Path, tmp_path: Path) -> None:
    """Broken: `make down` leaves processes, or ends those of another deployment or a step that runs."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    here, other = connected(warm_runtime(tmp_path)), connected(warm_runtime(elsewhere))
    child = start(here, "import time; time.sleep(600)")
    assert end_all(str(tmp_path)) == [here.pid]
    time.sleep(0.2)
    assert child.exit_code is None
    os.kill(child.pid, signal.SIGTERM)
    wait_until(lambda: not running([here.pid]))
    assert start(other, "pass").wait(60) == 0
    assert end_all(str(elsewhere)) == [other.pid]
    wait_until(lambda: not running([other.pid]))
    assert not [*runtimes.iterdir()]


@pytest.mark.parametrize(
    "library",
    [
        "import no_such_module",
        "import threading, time\nt = threading.Thread(target=time.sleep, args=(600,), daemon=True)\nt.start()",
    ],
    ids=["import", "thread"],
)
def test_a_warm_runtime_that_cannot_serve_says_so_once(runtimes: Path, tmp_path: Path, library: str) -> None:
    """Broken: each step of a broken installation starts one more process that imports in vain, and nobody sees why."""
    (tmp_path / "library.py").write_text(library)
    runtime = warm_runtime(tmp_path)
    assert "being started" in refusal(runtime)
    wait_until(lambda: "could not start" in refusal(runtime))
    log = Path(refusal(runtime).rpartition(" ")[2]).read_text()
    assert "no_such_module" in log or "threads python, python" in log
    assert not warm_processes(tmp_path)


def test_a_folder_of_somebody_else_is_refused(runtimes: Path, tmp_path: Path) -> None:
    """Broken: another user of the machine puts a socket there, and gets the steps' environments and secrets."""
    runtimes.mkdir(mode=0o700)
    runtimes.chmod(0o755)
    with pytest.raises(NotWarmError, match="mode 755.*must belong to user"):
        warm_runtime(tmp_path).connect()
    runtimes.rmdir()
    (tmp_path / "real").mkdir(mode=0o700)
    runtimes.symlink_to(tmp_path / "real")
    with pytest.raises(NotWarmError, match="not a folder of this user's"):
        warm_runtime(tmp_path).connect()
    if os.getuid() == 0:
        runtimes.unlink()
        runtimes.mkdir(mode=0o700)
        os.chown(runtimes, 65534, 65534)
        with pytest.raises(NotWarmError, match="belongs to user 65534"):
            warm_runtime(tmp_path).connect()
    assert not warm_processes(tmp_path)


def test_what_a_warm_runtime_starts_too_late_does_not_run(
    runtimes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: a step that was started in another way since runs twice at the same time."""
    monkeypatch.setattr(warm, "_ANSWER_SECONDS", 0.3)
    connection = connected(warm_runtime(tmp_path))
    os.kill(connection.pid, signal.SIGSTOP)
    with pytest.raises(NotForkedError, match="does not answer"):
        start(connection, f"open({str(tmp_path / 'ran')!r}, 'w')")
    os.kill(connection.pid, signal.SIGCONT)
    monkeypatch.setattr(warm, "_ANSWER_SECONDS", 20.0)
    assert start(connection, "pass").wait(60) == 0
    assert not (tmp_path / "ran").exists()


def test_nonsense_ends_nothing_but_its_own_connection(runtimes: Path, tmp_path: Path) -> None:
    """Broken: a launcher of another release, or one that dies half way through a request, ends everybody's steps."""
    connection = connected(warm_runtime(tmp_path))
    child = start(connection, "import time; time.sleep(600)")
    for said in (b"what", (8).to_bytes(8) + b"nonsense", (100).to_bytes(8) + b"{"):
        with socket.socket(socket.AF_UNIX) as stranger, open(os.devnull) as nothing:
            name = next(path.name for path in runtimes.iterdir() if path.is_socket())
            folder = os.open(runtimes, os.O_RDONLY)  # whose own path may be too long for an address
            stranger.connect(f"/proc/self/fd/{folder}/{name}")
            os.close(folder)
            socket.send_fds(stranger, [said], [nothing.fileno()] * 3)
    assert start(connection, "pass").wait(60) == 0
    assert child.exit_code is None


def test_it_works_where_paths_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: no step is warm where the folder's path is longer than a socket's address may be."""
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    connection = connected(warm_runtime(tmp_path))
    assert start(connection, "pass").wait(60) == 0
    assert end_all(str(tmp_path)) == [connection.pid]
