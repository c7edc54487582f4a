"""
A transition of a model is an entry of its audit trail; the registry's aliases follow it.

First the entry is written, then the aliases are set, then the tags, then the entry is marked as applied. Whoever comes
next, a retry or another transition, first completes an entry that is not: killed anywhere, the end is the same. MLflow
sets an alias in one change of its database, so that a reader always finds exactly one champion.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mlops.contract.stage_moves import Stages
from mlops.contract.stages import ALIASES, CHAMPION, STAGE_TAG
from mlops.contract.step import BadConfigError, BadDataError, StepError
from mlops.registry.audit import AuditError, AuditTrail, Entry, UnsignedEntryError
from mlops.tracking.model_registry import ModelRegistry

GRACE_SECONDS: Final = 2.0
"""Seconds that a process has to apply an entry that it has just written, before another one does it in its place."""
SIGNING_SECONDS: Final = 30.0
"""
Seconds to wait for the signature of an entry. Whoever made it signs it after the step has ended: in pods, once a worker
has heard of that.
"""

ALL: Final = tuple(ALIASES.values())

logger = logging.getLogger(__name__)

Decide = Callable[[Stages, str], tuple[str, Stages] | None]
"""
Decision on a transition: from the stages and the time to the version that moves and the stages after; None if nothing
is to be done.
"""


class AliasMovedError(BadDataError):
    """The registry's aliases are not where the audit trail says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Author:
    who: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Transitions:
    """One registered model and its audit trail: the only place that moves the registry's aliases."""

    registry: ModelRegistry
    trail: AuditTrail
    trusted: Sequence[str] = ()
    """
    Public keys. If there are some, an entry of somebody else is carried out, and decided on, only if one of them signed
    it: who may write the store may write an entry, and the mark that it was applied.
    """

    def settled(
        self, watched: Collection[str] = ALL, is_ours: Callable[[Entry], bool] = lambda _: False
    ) -> Entry | None:
        """
        Return the newest entry, applied and signed.

        :param is_ours: function that says if an earlier try of this very transition wrote an entry
        :raises AliasMovedError: where one of these aliases does not fit it
        :raises UnsignedEntryError: if nobody has signed it within :data:`SIGNING_SECONDS`
        :raises AuditError: if its signature does not hold
        """
        deadline = time.monotonic() + GRACE_SECONDS
        while True:
            entry = self.trail.last()
            waited = time.monotonic() > deadline
            if entry is not None and not self.trail.is_applied(entry.number):
                if waited:
                    self._wait_until_signed(entry, is_ours)
                    logger.info("completing entry %d of %s, which nobody has", entry.number, self.registry.name)
                    entry = self._apply(entry, is_ours=is_ours)
                    deadline = time.monotonic() + GRACE_SECONDS
            else:
                if entry is not None:
                    self._wait_until_signed(entry, is_ours)
                found, wanted = self.registry.aliases(), entry.stages.aliases if entry else {}
                if all(found.get(alias) == wanted.get(alias) for alias in watched):
                    return entry
                if waited and self.trail.last() == entry:  # else somebody was between the two looks
                    raise AliasMovedError(self._moved(found, entry))
            time.sleep(0.05)

    def move(
        self,
        action: str,
        by: Author,
        decide: Decide,
        *,
        settle: Callable[[], Entry | None] | None = None,
        watched: Collection[str] = ALL,
        is_done: Callable[[], bool] = lambda: False,
    ) -> Entry:
        """
        Make a transition: write its entry, and move the aliases.

        :param settle: returns the entry to decide on, in place of the newest entry once it is applied
        :param watched: the aliases that have to be where the newest entry says, and are moved
        :param is_done: function that says, from the registry as it is now, that nothing is to be done any more
        """

        def made_of(last: Entry | None, at: str, writer: str) -> Entry | None:
            """Return the entry of this transition, to come after another one; None if nothing is to be done."""
            stages = last.stages if last else Stages()
            if (decision := decide(stages, at)) is None:
                return None
            version, after = decision
            live = after.live.get(version) or stages.live.get(version)
            return Entry(
                number=last.number + 1 if last else 1,
                at=at,
                model=self.registry.name,
                version=version,
                action=action,
                from_stage=None if action == "register" else stages.stage_of(version),
                to_stage=after.stage_of(version),
                former_champion=stages.champion,
                who=by.who,
                why=by.why,
                report=live.report if live else None,
                approver=live.approver if live else None,
                previous=last.digest if last else None,
                stages=after,
                writer=writer,
            )

        def is_ours(entry: Entry) -> bool:
            if (entry.who, entry.action) != (by.who, action):
                return False
            before = self.trail.read(entry.number - 1) if entry.number > 1 else None
            try:
                # The whole of it: whoever runs this answers with a signature for all that the entry says.
                return made_of(before, entry.at, entry.writer) == entry
            except StepError:  # what is decided on now was not to be done then: the entry is about another version
                return False

        while True:
            last = settle() if settle else self.settled(watched, is_ours)
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            entry = None if is_done() else made_of(last, at, uuid.uuid4().hex)
            if entry is None:
                if last is None:
                    raise BadConfigError(f"model {self.registry.name!r} has no versions in any stage, and no aliases")
                return last
            # Where another process was first, its entry is looked at, and everything is decided anew.
            if self.trail.append(entry):
                logger.info(
                    "%s version %s: %s -> %s (%s)", entry.model, entry.version, entry.from_stage, entry.to_stage, by.why
                )
                return self._apply(entry, watched, is_ours)

    def _wait_until_signed(self, entry: Entry, is_ours: Callable[[Entry], bool]) -> None:
        """
        Wait until a trusted key has signed an entry, or the one before it where it is ours: what an earlier try has
        written is signed once this one ends.

        :raises UnsignedEntryError: if nobody has within :data:`SIGNING_SECONDS`
        :raises AuditError: if a signature does not hold
        """
        deadline = time.monotonic() + SIGNING_SECONDS
        while self.trusted:
            try:
                return self.trail.check_signed(entry, self.trusted)
            except AuditError as error:
                if is_ours(entry):
                    if entry.number == 1:
                        return
                    entry = self.trail.read(entry.number - 1)
                    continue
                if not isinstance(error, UnsignedEntryError) or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _apply(
        self, entry: Entry, aliases: Collection[str] = ALL, is_ours: Callable[[Entry], bool] = lambda _: False
    ) -> Entry:
        """Set aliases and tags as an entry says, or as a newer one that is signed does by now."""
        first = entry.number
        while True:
            found, wanted = self.registry.aliases(), entry.stages.aliases
            for alias in aliases:
                if self.trail.has(entry.number + 1):
                    break
                if alias not in wanted and alias in found:
                    self.registry.delete_alias(alias)
                elif alias in wanted and found.get(alias) != wanted[alias] and not self._set(alias, wanted[alias]):
                    raise BadConfigError(
                        f"version {wanted[alias]} of {entry.model}, which entry {entry.number} of the audit trail "
                        f"({entry.action}, {entry.at[:16]}) put into production, is no longer in MLflow. Record the "
                        f"aliases as they are: mlops models adopt {entry.model} --why ..."
                    )
            for version, stage in self._changed(first, entry).items():
                self.registry.set_tag(version, STAGE_TAG, stage)
            self.trail.mark_applied(entry)
            newest = self.trail.last()
            assert newest is not None, "an entry never disappears"
            if newest.number == entry.number:
                return newest
            # Another process went on meanwhile: what was just set may be older than what it has set.
            self._wait_until_signed(newest, is_ours)
            entry, aliases = newest, ALL

    def _set(self, alias: str, version: str) -> bool:
        """Set an alias; False if the champion is gone. Another version that was deleted needs no alias."""
        return self.registry.set_alias(alias, version) or alias != CHAMPION

    def _changed(self, first: int, entry: Entry) -> dict[str, str]:
        """
        Return the stages after an entry, of the versions that it or an earlier one moved, from entry ``first`` on.
        """
        before = self.trail.read(first - 1).stages if first > 1 else Stages()
        after = [*(self.trail.read(number).stages for number in range(first, entry.number)), entry.stages]
        versions = {entry.version, *before.live, *(version for stages in after for version in stages.live)}
        return {
            version: entry.stages.stage_of(version)
            for version in sorted(versions, key=int)
            if version == entry.version or any(stages.stage_of(version) != before.stage_of(version) for stages in after)
        }

    def _moved(self, found: Mapping[str, str], entry: Entry | None) -> str:
        wanted = entry.stages.aliases if entry else {}
        name = self.registry.name
        different = [
            f"{alias!r} is {named(found.get(alias))}, and should be {named(wanted.get(alias))}"
            for alias in ALIASES.values()
            if found.get(alias) != wanted.get(alias)
        ]
        log = (
            f"entry {entry.number} of its audit trail ({entry.action}, {entry.at[:16]})" if entry else "no entry at all"
        )
        return (
            f"the aliases of {name} were moved by other means: {'; '.join(different)} after {log}. Put them back, or "
            f"record them as they are: mlops models adopt {name} --why ..."
        )


def ours(aliases: Mapping[str, str]) -> dict[str, str]:
    return {alias: aliases[alias] for alias in ALL if alias in aliases}


def named(version: str | None) -> str:
    return "not set" if version is None else f"version {version}"
