"""Whether an entry of an audit trail is what an operator asked its step for: it signs no other. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mlops.contract.refs import shorten
from mlops.contract.stages import ARCHIVED, CANARY, MOST_FORMER, PRODUCTION, STAGING

SKEW: Final = timedelta(minutes=1)
"""Most by which the clocks of the machines may differ that write entries of one trail."""
_NO_STAGES: Final[Mapping[str, Any]] = {"live": {}, "former": []}


class NotAskedError(ValueError):
    """An entry says something else than the operator asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedTransition:
    """A transition as an operator asked for it."""

    model: str
    version: str
    """The one that moves."""
    action: str
    who: str
    """See :attr:`mlops.contract.step.RunIdentity.author`."""
    why: str | None
    """None: the step says it by itself."""
    champion: str | None = None
    """The version in production before, for ``promote`` and ``rollback``."""
    report: str | None = None
    """Key of the gate's report, for ``register`` and ``rollback``."""
    approver: str | None = None
    decisions: tuple[str, ...] = ()
    """Both for ``approve``."""
    needs_approval: bool = False
    """For ``promote``."""
    canary_minutes: float | None = None
    """Likewise: how long it must have been the canary."""
    because_champion_changed: bool = False
    """For ``archive``: a canary that cannot become the champion any more."""

    def check(self, entry: Mapping[str, Any], before: Mapping[str, Any] | None, previous: str | None) -> None:
        """
        Check that an entry is this transition, and nothing else.

        :param before: the entry before it, which is signed; None if there is none
        :param previous: SHA-256 of the bytes of that one
        :raises NotAskedError: naming the first field that differs
        """
        try:
            found = {**entry, "stages": _stages(entry)}
            expected = self._expected(entry, before, previous)
            self._check_time(entry, before)
        except NotAskedError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NotAskedError(f"it is damaged: {error!r}") from error
        for name, value in expected.items():
            if found.get(name) != value:
                raise NotAskedError(f"its {name} is {shorten(found.get(name))}, and must be {shorten(value)}")

    def _expected(
        self, entry: Mapping[str, Any], before: Mapping[str, Any] | None, previous: str | None
    ) -> dict[str, Any]:
        earlier = _stages(before) if before is not None else dict(_NO_STAGES)
        after = self._after(earlier, entry["at"])
        live = after["live"].get(self.version) or earlier["live"].get(self.version) or {}
        return {
            "model": self.model,
            "action": self.action,
            "version": self.version,
            "who": self.who,
            "number": before["number"] + 1 if before is not None else 1,
            "previous": previous,
            "from_stage": None if self.action == "register" else _stage_of(earlier, self.version),
            "to_stage": _stage_of(after, self.version),
            "former_champion": _champion(earlier),
            "report": live.get("report"),
            "approver": live.get("approver"),
            "stages": after,
        } | ({} if self.why is None else {"why": self.why})

    def _after(self, before: Mapping[str, Any], at: str) -> dict[str, Any]:
        """Return the stages that the transition leads to; see :mod:`mlops.registry.stages`."""
        live, former = dict(before["live"]), list(before["former"])
        version, champion = self.version, _champion(before)
        if self.action not in ("register", "rollback") and version not in live:
            raise NotAskedError(f"version {version} was in no stage before it")
        match self.action:
            case "register":
                live[version] = _live(stage=STAGING, since=at, report=self.report)
            case "approve":
                live[version] = {**live[version], "approver": self.approver, "decisions": list(self.decisions)}
            case "canary":
                if CANARY in [each["stage"] for each in live.values()]:
                    raise NotAskedError("there was a canary before it")
                live[version] = {**live[version], "stage": CANARY, "since": at}
            case "archive":
                self._check_archived(live[version], champion)
                del live[version]
            case "promote":
                self._check_promoted(live[version], champion, at)
                live = {version: {**live[version], "stage": PRODUCTION, "since": at}}
                former = former if champion is None else [*former, champion][-MOST_FORMER:]
            case "rollback":
                if champion != self.champion or version not in former:
                    raise NotAskedError(f"it does not take version {self.champion} back to a former champion")
                live = {other: each for other, each in live.items() if other != champion}
                live[version] = _live(stage=PRODUCTION, since=at, report=self.report)
                former = former[: len(former) - 1 - former[::-1].index(version)]
            case _:
                raise NotAskedError(f"no task asks for {self.action!r}")
        return {"live": live, "former": former}

    def _check_archived(self, known: Mapping[str, Any], champion: str | None) -> None:
        if known["stage"] == PRODUCTION:
            raise NotAskedError("the version was in production")
        if self.because_champion_changed and (known["stage"] != CANARY or champion == self.champion):
            raise NotAskedError("the version was no canary whose champion has changed")

    def _check_promoted(self, known: Mapping[str, Any], champion: str | None, at: str) -> None:
        if champion != self.champion:
            raise NotAskedError(f"the champion before it was {champion}, not {self.champion}, as in the evaluation")
        if self.needs_approval and not known["decisions"]:
            raise NotAskedError("nobody had approved the version")
        if self.canary_minutes is None:
            return
        been = datetime.fromisoformat(at) - datetime.fromisoformat(known["since"])
        if known["stage"] != CANARY or been < timedelta(minutes=self.canary_minutes):
            raise NotAskedError(f"the version had not been the canary for {self.canary_minutes:g} minutes")

    def _check_time(self, entry: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        at = datetime.fromisoformat(entry["at"])
        if at > datetime.now(UTC) + SKEW:
            raise NotAskedError(f"its time, {entry['at']}, is yet to come")
        if before is not None and at < datetime.fromisoformat(before["at"]) - SKEW:
            raise NotAskedError(f"its time, {entry['at']}, is before that of the entry before it")


def _live(**values: Any) -> dict[str, Any]:
    # Entries of earlier releases lack the later ones of these fields.
    return {"report": None, "approver": None, "decisions": [], **values}


def _stages(entry: Mapping[str, Any]) -> dict[str, Any]:
    stages = entry["stages"]
    return {
        "live": {version: _live(**values) for version, values in stages["live"].items()},
        "former": list(stages["former"]),
    }


def _stage_of(stages: Mapping[str, Any], version: str) -> str:
    return str(stages["live"][version]["stage"]) if version in stages["live"] else ARCHIVED


def _champion(stages: Mapping[str, Any]) -> str | None:
    found = [version for version, live in stages["live"].items() if live["stage"] == PRODUCTION]
    return max(found, key=int, default=None)
