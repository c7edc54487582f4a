"""Whether an entry of an audit trail is what an operator asked its step for: it signs no other. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mlops.contract.refs import shorten
from mlops.contract.stage_moves import Live, Stages, approved, archived, canaried, promoted, rolled_back, staged
from mlops.contract.stages import CANARY, PRODUCTION

SKEW: Final = timedelta(minutes=1)
"""Most by which the clocks of the machines may differ that write entries of one trail."""


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
            found = {**entry, "stages": Stages.from_wire(entry["stages"]).to_wire()}
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
        earlier = Stages() if before is None else Stages.from_wire(before["stages"])
        after = self._after(earlier, entry["at"])
        live = after.live.get(self.version) or earlier.live.get(self.version)
        return {
            "model": self.model,
            "action": self.action,
            "version": self.version,
            "who": self.who,
            "number": before["number"] + 1 if before is not None else 1,
            "previous": previous,
            "from_stage": None if self.action == "register" else earlier.stage_of(self.version),
            "to_stage": after.stage_of(self.version),
            "former_champion": earlier.champion,
            "report": live and live.report,
            "approver": live and live.approver,
            "stages": after.to_wire(),
        } | ({} if self.why is None else {"why": self.why})

    def _after(self, before: Stages, at: str) -> Stages:
        """Return the stages that the transition leads to."""
        version = self.version
        if self.action not in ("register", "rollback") and version not in before.live:
            raise NotAskedError(f"version {version} was in no stage before it")
        match self.action:
            case "register":
                return staged(before, version, at=at, report=self.report)
            case "approve":
                if self.approver is None:
                    raise NotAskedError("the task knows nobody who has approved it")
                return approved(before, version, approver=self.approver, decisions=self.decisions)
            case "canary":
                if before.newest_in(CANARY) is not None:
                    raise NotAskedError("there was a canary before it")
                return canaried(before, version, at=at)
            case "archive":
                self._check_archived(before.live[version], before.champion)
                return archived(before, version)
            case "promote":
                self._check_promoted(before.live[version], before.champion, at)
                return promoted(before, version, at=at)
            case "rollback":
                if before.champion != self.champion or version not in before.former:
                    raise NotAskedError(f"it does not take version {self.champion} back to a former champion")
                return rolled_back(before, version, at=at, report=self.report)
            case _:
                raise NotAskedError(f"no task asks for {self.action!r}")

    def _check_archived(self, known: Live, champion: str | None) -> None:
        if known.stage == PRODUCTION:
            raise NotAskedError("the version was in production")
        if self.because_champion_changed and (known.stage != CANARY or champion == self.champion):
            raise NotAskedError("the version was no canary whose champion has changed")

    def _check_promoted(self, known: Live, champion: str | None, at: str) -> None:
        if champion != self.champion:
            raise NotAskedError(f"the champion before it was {champion}, not {self.champion}, as in the evaluation")
        if self.needs_approval and not known.decisions:
            raise NotAskedError("nobody had approved the version")
        if self.canary_minutes is None:
            return
        been = datetime.fromisoformat(at) - datetime.fromisoformat(known.since)
        if known.stage != CANARY or been < timedelta(minutes=self.canary_minutes):
            raise NotAskedError(f"the version had not been the canary for {self.canary_minutes:g} minutes")

    def _check_time(self, entry: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        at = datetime.fromisoformat(entry["at"])
        if at > datetime.now(UTC) + SKEW:
            raise NotAskedError(f"its time, {entry['at']}, is yet to come")
        if before is not None and at < datetime.fromisoformat(before["at"]) - SKEW:
            raise NotAskedError(f"its time, {entry['at']}, is before that of the entry before it")
