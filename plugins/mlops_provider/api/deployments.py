"""What the teams' deployments have, for requests that are about pipelines of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from mlops.contract.refs import Artifact
from mlops.contract.section import SpecError
from mlops_provider.api.problems import Problem, Unread, outage
from mlops_provider.committed import read_artifact
from mlops_provider.connections import login_of
from mlops_provider.deployment import Deployment, tenant_of_name
from mlops_provider.exceptions import StepFailedError
from mlops_provider.gathering import gather
from mlops_provider.logins import Login
from mlops_provider.mlflow_rest import MlflowError

T = TypeVar("T")
FoundT = TypeVar("FoundT")


class Mlflow(NamedTuple):
    """A deployment's MLflow, and who asks it."""

    uri: str
    login: Login | None

    @classmethod
    def of_steps(cls, deployment: Deployment) -> Mlflow:
        return cls(deployment.tracking_uri, login_of("steps", deployment))

    @classmethod
    def of_reader(cls, deployment: Deployment) -> Mlflow:
        return cls(deployment.tracking_uri, login_of("reader", deployment))


async def of_name(name: str, take: Callable[[Deployment], T]) -> T:
    """
    Take something of the deployment that a pipeline or a model belongs to.

    :param take: in a thread, for it may read Airflow's connections
    """
    return await asyncio.to_thread(lambda: take(Deployment.load(tenant_of_name(name))))


async def stored(store: ObjectStore, artifact: Artifact) -> bytes:
    """
    Read what a step has written.

    :raises Problem: where it is gone, or is not what was written
    """
    data = await read_artifact(store, artifact)
    if data is None:
        raise Problem(500, f"{artifact.key} is damaged or gone: mlops store verify says what it affects")
    return data


async def found_by_team(
    names: Iterable[str],
    take: Callable[[Deployment], T],
    read: Callable[[str | None, T], Awaitable[Iterable[FoundT]]],
) -> tuple[list[FoundT], list[str]]:
    """
    Read what the teams of pipelines or models have, for the parameters see :func:`read_by_team`.

    :param names: of the pipelines or models
    :return: what was found, and a sentence for each team whose MLflow or store cannot be read
    :raises MlflowError: where none answers, of one of them
    :raises BaseError: likewise, of a store
    :raises StepFailedError: likewise, of a connection that Airflow does not have
    :raises SpecError: likewise, of a mistake in the settings of a team
    """
    teams = {tenant_of_name(name) for name in names}
    found, errors = await read_by_team(teams, take, read)
    if errors and len(errors) == len(teams):
        raise next(iter(errors.values()))
    return found, sorted(f"team {team}: {outage(e)}" if team else outage(e) for team, e in errors.items())


async def read_by_team(
    teams: Iterable[str | None],
    take: Callable[[Deployment], T],
    read: Callable[[str | None, T], Awaitable[Iterable[FoundT]]],
) -> tuple[list[FoundT], Mapping[str | None, Unread]]:
    """
    Read the MLflow or the store of each team, all at once: where one does not answer, those of the others are read.

    :param teams: None is the deployment's own
    :param take: of a team's deployment, what is read; in a thread, for it may read Airflow's connections
    :param read: called with a team, and with what was taken
    :return: what was found, and by team why that cannot be read
    """
    errors: dict[str | None, Unread] = {}

    async def one(team: str | None) -> Iterable[FoundT]:
        try:
            return await read(team, await asyncio.to_thread(lambda: take(Deployment.load(team))))
        except (MlflowError, BaseError, StepFailedError, SpecError) as error:
            errors[team] = error
            return ()

    return [each for of_team in await gather(one, teams) for each in of_team], errors
