"""The stages of a model's versions, and the moves between them. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any, Self

from mlops.contract.stages import ALIASES, ARCHIVED, CANARY, MOST_FORMER, PRODUCTION, STAGING
from mlops.contract.step import BadConfigError, BadDataError, StepError


class ChampionChangedError(BadDataError):
    """The report judges against a model that is no longer in production."""


class TakenBackError(BadDataError):
    """The version was archived by somebody's decision: only a person puts it into production after all."""


class CanaryBusyError(StepError):
    """Another version is the canary just now."""


class CanaryMissingError(BadConfigError):
    """The pipeline asks for a canary, and the version is none."""


class CanaryNotOverError(StepError):
    """The version has not been the canary for as long as the pipeline asks for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """A version that is not archived."""

    stage: str
    since: str
    """Time at which the version came into the stage, ISO 8601, UTC."""
    report: str | None = None
    """Key of the gate's report in the store."""
    approver: str | None = None
    decisions: tuple[str, ...] = ()
    """Keys of the signed records of the people who approved it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stages:
    """All versions of one model that are not archived."""

    live: Mapping[str, Live] = field(default_factory=dict)
    former: tuple[str, ...] = ()
    """Versions that were in production before the present one, the latest last: rollbacks go to them."""

    def stage_of(self, version: str) -> str:
        return self.live[version].stage if version in self.live else ARCHIVED

    def newest_in(self, stage: str) -> str | None:
        """Return the newest version in a stage; canary and production have at most one."""
        return max((version for version, live in self.live.items() if live.stage == stage), key=int, default=None)

    @property
    def champion(self) -> str | None:
        return self.newest_in(PRODUCTION)

    @property
    def aliases(self) -> dict[str, str]:
        """Aliases that the registry must have, with their versions."""
        found = {alias: self.newest_in(stage) for stage, alias in ALIASES.items()}
        return {alias: version for alias, version in found.items() if version is not None}

    def without(self, *versions: str | None) -> Stages:
        return replace(self, live={version: live for version, live in self.live.items() if version not in versions})

    def with_(self, version: str, live: Live) -> Stages:
        return replace(self, live={**self.live, version: live})

    def to_wire(self) -> dict[str, Any]:
        return {"live": {version: asdict(live) for version, live in self.live.items()}, "former": list(self.former)}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        live = {
            version: Live(**{**values, "decisions": tuple(values.get("decisions", ()))})
            for version, values in wire["live"].items()
        }
        return cls(live=live, former=tuple(wire["former"]))


def staged(stages: Stages, version: str, *, at: str, report: str | None) -> Stages:
    """Add a new version in staging beside others: each may win, the first that does archives the rest."""
    return stages.with_(version, Live(stage=STAGING, since=at, report=report))


def approved(stages: Stages, version: str, *, approver: str, decisions: tuple[str, ...] = ()) -> Stages:
    return stages.with_(version, replace(stages.live[version], approver=approver, decisions=decisions))


def canaried(stages: Stages, version: str, *, at: str) -> Stages:
    """
    Make a version the canary.

    :raises CanaryBusyError: if another one is being watched
    """
    if (other := stages.newest_in(CANARY)) is not None:
        raise CanaryBusyError(
            f"version {other} is the canary since {stages.live[other].since}, there is one at a time: wait, or take it "
            f"back with `mlops models archive NAME {other} --why ...`"
        )
    return stages.with_(version, replace(stages.live[version], stage=CANARY, since=at))


def check_canary(model: str, version: str, live: Live, *, minutes: float, at: str) -> None:
    """
    Check that a version has been the canary for so long.

    :param at: time of the check, ISO 8601, UTC
    :raises CanaryMissingError: if it is in another stage
    :raises CanaryNotOverError: if it has not been the canary for so many minutes
    """
    if live.stage != CANARY:
        raise CanaryMissingError(
            f"version {version} of {model} is in {live.stage}, and its pipeline promotes only what was its canary for "
            f"{minutes:g} minutes: clear the task that makes it the canary, and wire promote to its output"
        )
    been = (datetime.fromisoformat(at) - datetime.fromisoformat(live.since)).total_seconds() / 60
    if been < minutes:
        raise CanaryNotOverError(
            f"version {version} of {model} is the canary since {live.since}, for {max(been, 0):.1f} of {minutes:g} "
            "minutes: wait until the task that watches it has judged it"
        )


def promoted(stages: Stages, version: str, *, at: str, report: str | None = None) -> Stages:
    """
    Put the version into production, and nothing else live: what is in staging was judged against the former champion,
    or not chosen.

    :param report: key of the report of a version that was archived
    """
    known = stages.live.get(version, Live(stage=STAGING, since=at, report=report))
    return Stages(
        live={version: replace(known, stage=PRODUCTION, since=at)}, former=_and(stages.former, stages.champion)
    )


def archived(stages: Stages, version: str) -> Stages:
    """
    Archive a version.

    :raises BadConfigError: if it is in production
    """
    if stages.stage_of(version) == PRODUCTION:
        raise BadConfigError(
            f"version {version} is in production: put the former champion in its place with `mlops models rollback`, "
            "or none with `mlops models retire`"
        )
    return stages.without(version)


def retired(stages: Stages) -> Stages:
    """Take the champion out of production and put none in its place: the next candidate is judged as the first."""
    return stages.without(stages.champion)


def former_champion(stages: Stages, known: Collection[str]) -> str:
    """
    Return the version that a rollback leads to.

    :param known: versions that the registry has
    :raises BadConfigError: if there is none
    """
    if not stages.former:
        first = "none is in production" if stages.champion is None else f"version {stages.champion} is the first"
        raise BadConfigError(
            f"there is no former champion to go back to: {first}; name another with "
            "`mlops models promote NAME VERSION --why ...`"
        )
    left = [version for version in stages.former if version in known]
    if not left:
        raise BadConfigError(
            f"the former champions are no longer in the registry: version {', '.join(stages.former)}; it has "
            f"{', '.join(known)}. Name one with `mlops models promote NAME VERSION --why ...`"
        )
    return left[-1]


def rolled_back(stages: Stages, version: str, *, at: str, report: str | None) -> Stages:
    """Put a former champion into production again, in place of the present one and of those that came between."""
    after = stages.without(stages.champion).with_(version, Live(stage=PRODUCTION, since=at, report=report))
    place = max(place for place, former in enumerate(stages.former) if former == version)
    return replace(after, former=stages.former[:place])


def adopted(stages: Stages, found: Mapping[str, str], *, known: Collection[str], at: str) -> Stages:
    """
    Return the stages that the registry's aliases name, whoever moved them; versions that wait in staging stay there.

    :param found: versions by alias
    :param known: versions that the registry has, of those that were in a stage
    """
    named = {
        version: replace(stages.live.get(version, Live(stage=stage, since=at)), stage=stage)
        for stage, alias in reversed(list(ALIASES.items()))
        if (version := found.get(alias)) is not None
    }
    newest, was_newest = found.get(ALIASES[STAGING]), stages.newest_in(STAGING)
    # An alias goes with the version that it names when that is deleted: nobody took the others out of staging.
    below = int(newest) if newest else int(was_newest) if was_newest and was_newest not in known else 0
    waiting = {
        version: live
        for version, live in stages.live.items()
        if live.stage == STAGING and version in known and version not in named and int(version) < below
    }
    after = Stages(live=named | waiting)
    former = stages.former if after.champion == stages.champion else _and(stages.former, stages.champion)
    return replace(after, former=tuple(each for each in former if each in known and each != after.champion))


def _and(former: tuple[str, ...], champion: str | None) -> tuple[str, ...]:
    return former if champion is None else (*former, champion)[-MOST_FORMER:]
