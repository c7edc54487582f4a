"""What pytest reported, and the tables made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Result:
    """One test. Seconds are of all its phases, and of the fixtures that were made for it."""

    suite: str
    test: str
    outcome: str = "passed"
    began: float = math.inf
    ended: float = 0.0
    """Seconds since 1970."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    """The whole text of each phase that failed."""
    assertion: str = ""
    """The first failure in one line."""

    @property
    def file(self) -> str:
        return self.test.split("::")[0]

    @property
    def group(self) -> str:
        """The row of the table: the tests of whole deployments have one of their own."""
        return "end to end" if self.test.startswith("tests/end_to_end") else self.suite


class Results:
    """Grows by the lines of pytest-reportlog."""

    def __init__(self, suite: str) -> None:
        self.suite = suite
        self.tests: dict[str, Result] = {}

    def add(self, line: str) -> Result | None:
        """
        :return: a test, or a file, that has just failed for the first time
        """
        entry = json.loads(line)
        kind = entry.get("$report_type")
        if kind not in {"TestReport", "CollectReport"} or (kind == "CollectReport" and entry["outcome"] != "failed"):
            return None
        name = entry["nodeid"] or self.suite
        result = self.tests.setdefault(name, Result(suite=self.suite, test=name))
        result.seconds += entry.get("duration", 0.0)
        result.began = min(result.began, entry.get("start", math.inf))
        result.ended = max(result.ended, entry.get("stop", 0.0))
        for key, value in entry.get("user_properties", ()):
            if key == "cpu_seconds":
                result.cpu_seconds = value
        if entry["outcome"] == "skipped" and result.outcome != "failed":
            result.outcome = "skipped"
        if entry["outcome"] != "failed":
            return None
        first = not result.failures
        result.outcome = "failed"
        result.failures.append(_text(entry))
        result.assertion = result.assertion or _assertion(entry)
        return result if first else None

    def __str__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{len(self.tests)} tests{failed}"

    def running_in(self, second: int) -> list[str]:
        """Names of the tests that ran in a second since 1970: a few for each worker."""
        return [result.test for result in self.tests.values() if result.began < second + 1 and second <= result.ended]

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.tests.values() if result.outcome == "failed"]


def counts(results: Iterable[Result]) -> dict[str, int]:
    found = {"passed": 0, "failed": 0, "skipped": 0}
    for result in results:
        found[result.outcome] += 1
    return found


def cost_table(results: Sequence[Result], minutes: Mapping[str, float]) -> str:
    """
    Suite, tests, minutes and CPU minutes.

    :param minutes: that each suite's session took
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.group, []).append(result)
    rows = [f"{'suite':<12} {'tests':>6} {'failed':>6} {'skipped':>7} {'minutes':>8} {'test min':>8} {'CPU min':>8}"]
    for group, members in groups.items():
        number = counts(members)
        took = f"{minutes[group]:.1f}" if group in minutes else "-"
        rows.append(
            f"{group:<12} {len(members):>6} {number['failed']:>6} {number['skipped']:>7} {took:>8} "
            f"{sum(each.seconds for each in members) / 60:>8.1f} {sum(each.cpu_seconds for each in members) / 60:>8.1f}"
        )
    return "\n".join(rows)


def slowest(results: Sequence[Result], most: int = 10) -> str:
    chosen = sorted(results, key=lambda each: -each.seconds)[:most]
    return "\n".join(f"{each.seconds:>6.1f} s {each.cpu_seconds:>6.1f} CPU s  {each.test}" for each in chosen)


def durations(results: Iterable[Result], least_seconds: float = 3.0) -> dict[str, float]:
    """Seconds by test file, of those that take long."""
    total: dict[str, float] = {}
    for result in results:
        total[result.file] = total.get(result.file, 0.0) + result.seconds
    return {file: round(seconds) for file, seconds in sorted(total.items()) if seconds >= least_seconds}


def _text(entry: Mapping[str, Any]) -> str:
    parts = [_longrepr(entry.get("longrepr"))]
    parts += [f"--- {title} ---\n{text}" for title, text in entry.get("sections", ())]
    return "\n".join(parts)


def _longrepr(value: Any) -> str:
    """pytest's own text of a failure, from its JSON form."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        return "\n".join(str(part) for part in value)
    lines: list[str] = []
    for traceback in [chain[0] for chain in value.get("chain") or []] or [value.get("reprtraceback", {})]:
        for each in traceback.get("reprentries", ()):
            lines += each["data"].get("lines", ())
            place = each["data"].get("reprfileloc")
            if place:
                lines.append(f"{place['path']}:{place['lineno']}: {place['message']}")
    return "\n".join(lines)


def _assertion(entry: Mapping[str, Any]) -> str:
    value = entry.get("longrepr")
    crash = value.get("reprcrash") if isinstance(value, dict) else None
    text = crash["message"] if crash else _longrepr(value)
    line = next((line for line in text.splitlines() if line.strip()), "")
    place = f" ({crash['path']}:{crash['lineno']})" if crash else ""
    return f"{line[:300]}{place}"
