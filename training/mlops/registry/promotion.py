"""The actions on the versions of a model, and the conditions under which they are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlops.contract.stage_moves import (
    ChampionChangedError,
    Stages,
    TakenBackError,
    adopted,
    approved,
    archived,
    canaried,
    check_canary,
    former_champion,
    promoted,
    retired,
    rolled_back,
    staged,
)
from mlops.contract.stages import ARCHIVED, CANARY, CHAMPION, PRODUCTION, STAGE_TAG
from mlops.contract.step import BadConfigError
from mlops.registry.audit import AuditTrail, Entry
from mlops.registry.consent import Consent
from mlops.registry.transitions import Author, Transitions, named, ours
from mlops.registry.versions import report_of
from mlops.store import Store
from mlops.tracking.model_registry import ModelRegistry


@dataclass(frozen=True, slots=True)
class Promotion:
    """Actions on one registered model. Each call returns the newest entry of its audit trail when it is done."""

    transitions: Transitions

    @classmethod
    def of(cls, registry: ModelRegistry, store: Store, trusted: Sequence[str] = ()) -> Promotion:
        """
        Make the actions for a registered model.

        :param trusted: public keys, see :class:`Transitions`
        """
        return cls(Transitions(registry=registry, trail=AuditTrail(store, registry.name), trusted=trusted))

    @property
    def registry(self) -> ModelRegistry:
        return self.transitions.registry

    @property
    def trail(self) -> AuditTrail:
        return self.transitions.trail

    def stage(self, version: str, by: Author, *, report: str | None) -> Entry:
        """Put a new version into staging, once: if it has been in a stage before, nothing happens."""

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            return None if version in stages.live else (version, staged(stages, version, at=at, report=report))

        def is_done() -> bool:
            return STAGE_TAG in self.registry.tags_of(version)

        return self.transitions.move("register", by, decide, is_done=is_done)

    def approve(self, version: str, by: Author, *, approver: str, decisions: Sequence[str] = ()) -> Entry:
        """
        Record who approved a version that is in staging.

        :param decisions: keys of the signed records
        """

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            self._check_live(stages, version)
            known = stages.live[version]
            if known.stage == PRODUCTION or (known.approver, known.decisions) == (approver, tuple(decisions)):
                return None
            return version, approved(stages, version, approver=approver, decisions=tuple(decisions))

        return self.transitions.move("approve", by, decide)

    def canary(self, version: str, by: Author) -> Entry:
        """Give a version the alias ``canary``."""

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            self._check_live(stages, version)
            if stages.stage_of(version) in (PRODUCTION, CANARY):
                return None
            return version, canaried(stages, version, at=at)

        return self.transitions.move("canary", by, decide)

    def promote(
        self,
        version: str,
        by: Author,
        *,
        judged_against: str | None,
        consent: Consent | None = None,
        canary_minutes: float | None = None,
    ) -> Entry:
        """
        Put a version into production, if that is still as it was when the version was judged.

        :param judged_against: the champion of its evaluation; None where there was none
        :param consent: the approvals that it needs; None: no approval
        :param canary_minutes: how long it must have been the canary; None: it need not have been
        :raises ChampionChangedError: where another model has been put into production since
        :raises TakenBackError: where somebody archived it
        :raises CanaryMissingError: where it is not the canary
        :raises CanaryNotOverError: where it has not been that for long enough
        """

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            if stages.champion == version:
                return None
            self._check_contest(stages, version, judged_against)
            self._check_live(stages, version)
            if consent is not None:
                consent.check(stages.live[version])
            if canary_minutes is not None:
                check_canary(self.registry.name, version, stages.live[version], minutes=canary_minutes, at=at)
            return version, promoted(stages, version, at=at)

        return self.transitions.move("promote", by, decide)

    def promote_anyhow(self, version: str, by: Author) -> Entry:
        """Put a version into production by a person's own decision: from whatever stage, against whatever champion."""

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            self._check_registered(version)
            if stages.champion == version:
                return None
            return version, promoted(stages, version, at=at, report=self._report_of(version))

        return self.transitions.move("promote", by, decide)

    def archive(self, version: str, by: Author) -> Entry:
        """Archive a version that is in staging or canary."""

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            if version not in stages.live:
                self._check_registered(version)
            return (version, archived(stages, version)) if version in stages.live else None

        return self.transitions.move("archive", by, decide)

    def retire(self, by: Author) -> Entry:
        """Take the champion out of production, and put none in its place."""

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            return None if stages.champion is None else (stages.champion, retired(stages))

        return self.transitions.move("retire", by, decide)

    def end_canary(self, version: str, by: Author) -> Entry:
        """Archive a version if it is the canary; in another stage it is left there."""

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            return (version, archived(stages, version)) if stages.stage_of(version) == CANARY else None

        return self.transitions.move("archive", by, decide)

    def roll_back(self, by: Author, *, taken_back: str | None = None) -> Entry:
        """
        Put the former champion into production again and archive the present one; if former ones were deleted, the one
        before them. Reads the database of MLflow and the audit trail only, no artifact, and looks at no alias but the
        champion's.

        :param taken_back: the champion to take back; nothing happens if it is not in production any more
        """

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            if taken_back is not None and stages.champion != taken_back:
                return None
            version = former_champion(stages, [str(found.version) for found in self.registry.versions()])
            return version, rolled_back(stages, version, at=at, report=self._report_of(version))

        return self.transitions.move("rollback", by, decide, watched=(CHAMPION,))

    def adopt(self, by: Author) -> Entry:
        """
        Record the aliases as they are in the registry, whoever moved them there, and archive the versions that they
        contradict.
        """

        def decide(stages: Stages, at: str) -> tuple[str, Stages] | None:
            found, trusted = ours(self.registry.aliases()), self.transitions.trusted
            applied = self.trail.last_applied(trusted)
            before = applied.stages if applied else Stages()
            # A version of the same number may be another one, where the whole model was deleted and made anew.
            known = [str(version.version) for version in self.registry.versions() if STAGE_TAG in version.tags]
            after = adopted(before, found, known=known, at=at)
            version = after.champion or before.champion or max({**before.live, **after.live}, key=int, default=None)
            # An entry that nobody has signed says more than which aliases there are.
            is_recorded = found == stages.aliases and (not trusted or applied == self.trail.last())
            return None if version is None or is_recorded else (version, after)

        return self.transitions.move("adopt", by, decide, settle=self.trail.last)

    def _check_contest(self, stages: Stages, version: str, judged_against: str | None) -> None:
        if stages.champion != judged_against:
            raise ChampionChangedError(
                f"the champion changed since the evaluation: of {self.registry.name} it was {named(judged_against)} "
                f"and is {named(stages.champion)} now. Version {version} stays registered, and out of production. To "
                "have this night judged against the new champion, trigger it with another setting (a seed, say)"
            )

    def _check_live(self, stages: Stages, version: str) -> None:
        if version in stages.live:
            self._check_registered(version)
            return
        name, removal = self.registry.name, self.trail.removal_of(version)
        if removal is None:
            raise BadConfigError(f"version {version} of {name} has never been in staging: register puts it there")
        raise TakenBackError(
            f"version {version} of {name} was {ARCHIVED} by entry {removal.number} ({removal.action}, "
            f"{removal.at[:16]}, {removal.who}): {removal.why}. To put it into production after all: "
            f"mlops models promote {name} {version} --why ..."
        )

    def _check_registered(self, version: str) -> None:
        if not self.registry.has(version):
            known = [str(found.version) for found in self.registry.versions()]
            raise BadConfigError(
                f"model {self.registry.name!r} has no version {version}; it has {', '.join(known) or 'none'}"
            )

    def _report_of(self, version: str) -> str | None:
        """Return the key of the gate's report; None if the version was not registered by a pipeline."""
        try:
            report = report_of(self.registry, version)
        except BadConfigError:
            return None
        return report.artifacts["report"].key if "report" in report.artifacts else None
