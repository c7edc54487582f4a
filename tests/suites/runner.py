"""Run suites side by side, failed tests once more alone, and say what came of it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from suites import remains
from suites.hooks import DURATIONS, LIGHT
from suites.results import Result, Results, cost_table, counts, durations, slowest
from suites.suite import REPOSITORY, Session, Suite

LIMIT_SECONDS = 75 * 60.0
PROGRESS_SECONDS = 60.0
MOST_UNSTEADY = 2
MOST_LEFT = 5
"""Processes and files that are left behind. A test that kills at random may now and then hit the wrong moment."""
MOST_AGAIN = 10
"""Failed tests that are run again. Where more fail, it is no matter of chance."""
FAILURE_LINES = 400
MOST_NAMED = 6
"""Tests that may have left a file behind: those that ran in the second in which it was made."""


@dataclass(kw_only=True)
class Run:
    """
    One run of the tests.

    :param light: only tests that start neither server nor gang
    :param order: seed of a random order of the files, and of the tests in each; their own order if None
    :param folder: the checkout; logs, reports and ``unsteady.json`` go to its ``build/``
    """

    suites: Sequence[Suite]
    light: bool = False
    order: int | None = None
    write_durations: bool = False
    folder: Path = REPOSITORY
    _began: float = field(default_factory=time.monotonic)
    _minutes: dict[str, float] = field(default_factory=dict)
    _faults: list[str] = field(default_factory=list)
    """What makes the run red, beside failed tests."""

    def run(self) -> int:
        """
        :return: exit code, 0 or 1
        """
        remains.adopt_orphans()
        shutil.rmtree(self.folder / "build/tests", ignore_errors=True)
        results = {suite.name: Results(suite.name) for suite in self.suites}
        with _scratch() as scratch:
            sessions = [self._start(suite, scratch / suite.name[:2]) for suite in self.suites]
            try:
                self._follow(sessions, results)
            finally:
                for session in sessions:
                    session.kill()
            left = remains.left_processes()
            left += [
                each for suite in self.suites for each in _left_files(scratch / suite.name[:2], results[suite.name])
            ]
            failed = [result for each in results.values() for result in each.failed]
            unsteady = [] if self._faults else self._run_again(failed, scratch)
        tests = [result for each in results.values() for result in each.tests.values()]
        if self.write_durations:
            DURATIONS.write_text(json.dumps(durations(tests), indent=1) + "\n")
        self._judge(unsteady)
        if len(left) > MOST_LEFT:
            self._faults.append(f"{len(left)} processes or files are left behind; {MOST_LEFT} may be: see above")
        self._report(tests, [result for result in failed if result not in unsteady], unsteady, left)
        return 1 if self._faults or len(failed) > len(unsteady) else 0

    def _start(self, suite: Suite, scratch: Path, name: str | None = None, test: str | None = None) -> Session:
        options = ["-m", LIGHT] if self.light else []
        if self.order is not None:
            options += ["--random-order-bucket=module", f"--random-order-seed={self.order}"]
        paths = None if test is None else [test]
        return Session.start(suite, self.folder, scratch, options=options, paths=paths, name=name)

    def _follow(self, sessions: Sequence[Session], results: dict[str, Results]) -> None:
        """Watch the sessions to their end; say at once what fails."""
        running, spoke = list(sessions), self._began
        while running:
            time.sleep(0.2)
            for session in list(running):
                pid, status = os.waitpid(session.process.pid, os.WNOHANG)
                found = results[session.suite.name]
                for line in session.new_lines():
                    if failure := found.add(line):
                        self._say(f"FAILED {failure.test}: {failure.assertion}")
                if not pid:
                    continue
                running.remove(session)
                session.process.returncode = os.waitstatus_to_exitcode(status)
                self._minutes[session.suite.name] = (time.monotonic() - self._began) / 60
                self._say(f"{session.suite.name} ended: {found}")
                self._check_end(session, found)
            remains.reap(session.process.pid for session in sessions)
            if time.monotonic() - self._began > LIMIT_SECONDS:
                self._faults += [
                    f"{each.suite.name} did not end within {LIMIT_SECONDS / 60:.0f} min" for each in running
                ]
                for session in running:
                    session.show_stacks()
                return
            if time.monotonic() - spoke > PROGRESS_SECONDS:
                spoke = time.monotonic()
                self._say("; ".join(f"{each.suite.name}: {results[each.suite.name]}" for each in running))

    def _check_end(self, session: Session, found: Results) -> None:
        """A session that ended otherwise than by its tests' results is a fault of its own."""
        code = session.process.returncode
        # 1: tests failed; 5: none was chosen.
        if code not in {0, 1, 5} or (code == 1 and not found.failed):
            print("\n".join(session.log.read_text(errors="replace").splitlines()[-60:]), flush=True)
            self._faults.append(f"the session of {session.suite.name} ended with {code}: see {session.log}")

    def _run_again(self, failed: Sequence[Result], scratch: Path) -> list[Result]:
        """
        :return: the failed tests that pass when they run alone, on a machine that does nothing else
        """
        if len(failed) > MOST_AGAIN:
            self._say(f"{len(failed)} tests failed: none is run again")
            return []
        suites = {suite.name: suite for suite in self.suites}
        passed = []
        for number, result in enumerate(failed):
            self._say(f"once more, alone: {result.test}")
            session = self._start(suites[result.suite], scratch / f"again{number}", f"again-{number}", result.test)
            try:
                if session.process.wait(LIMIT_SECONDS / 5) == 0:
                    passed.append(result)
            except subprocess.TimeoutExpired:
                session.show_stacks()
            session.kill()
        remains.left_processes()
        return passed

    def _judge(self, unsteady: Sequence[Result]) -> None:
        text = json.dumps([{"test": each.test, "assertion": each.assertion} for each in unsteady], indent=1)
        (self.folder / "build/unsteady.json").write_text(text + "\n")
        if len(unsteady) > MOST_UNSTEADY:
            self._faults.append(f"{len(unsteady)} tests are unsteady; {MOST_UNSTEADY} may be")
        self._faults += [f"{each.test} is new in this change, and unsteady" for each in unsteady if self._is_new(each)]

    def _is_new(self, result: Result) -> bool:
        """True where the last landing, or else the last commit but one, does not have the test's function."""
        head, landed = self._git("rev-parse", "HEAD"), self._git("rev-parse", "--verify", "--quiet", "origin/main")
        base = landed if landed not in {"", head} else self._git("rev-parse", "--verify", "--quiet", "HEAD~1")
        function = result.test.split("::")[-1].split("[")[0]
        return bool(base) and f"def {function}(" not in self._git("show", f"{base}:{result.file}")

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def _report(
        self, tests: Sequence[Result], failed: Sequence[Result], unsteady: Sequence[Result], left: Sequence[str]
    ) -> None:
        lines = []
        for result in [*unsteady, *failed]:
            lines.append(f"\n======== {result.suite}: {result.test}")
            for text in result.failures:
                lines += text.splitlines()[-FAILURE_LINES:]
        lines += ["", cost_table(tests, self._minutes)]
        # Those too that outlived their parents, as what a warm runtime forks does: they were adopted.
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_minutes = (used.ru_utime + used.ru_stime) / 60
        lines += [
            f"in all {(time.monotonic() - self._began) / 60:.1f} minutes, {cpu_minutes:.1f} CPU minutes",
            f"\nslowest tests\n{slowest(tests)}\n",
            *(f"unsteady: {result.test}: {result.assertion}" for result in unsteady),
            *(f"left behind: {each}" for each in left),
        ]
        skipped = counts(tests)["skipped"]
        lines += [f"tests: {len(tests) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped"]
        lines += [*self._faults, *(f"FAILED {result.test}: {result.assertion}" for result in failed)]
        print("\n".join(lines), flush=True)

    def _say(self, text: str) -> None:
        seconds = int(time.monotonic() - self._began)
        print(f"{seconds // 60:>3}:{seconds % 60:02} {text}", flush=True)


def _left_files(scratch: Path, results: Results) -> list[str]:
    said = []
    for path in remains.left_files(scratch):
        tests = results.running_in(remains.made_at(path))
        others = f" or {len(tests) - MOST_NAMED} others" if len(tests) > MOST_NAMED else ""
        said.append(f"{path} of {' or '.join(tests[:MOST_NAMED]) or 'no test'}{others}")
    return said


@contextmanager
def _scratch() -> Iterator[Path]:
    # Short: the path of a UNIX socket has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="tests-"))
    folder.chmod(0o755)  # PostgreSQL's files belong to another user than root's
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
