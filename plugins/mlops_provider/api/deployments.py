"""What the teams' deployments have, for requests that are about pipelines of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from obstore.exceptions import BaseError

from mlops_provider.api.problems import outage
from mlops_provider.connections import login_of
from mlops_provider.deployment import Deployment, tenant_of_name
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


async def by_team(names: Iterable[str], take: Callable[[Deployment], T]) -> dict[str | None, T]:
    """
    Take something of the deployments that pipelines or models belong to.

    :param names: of pipelines or models
    :param take: in a thread, for it may read Airflow's connections
    :return: by team; None: the deployment's own
    """
    return await asyncio.to_thread(
        lambda: {team: take(Deployment.load(team)) for team in {tenant_of_name(name) for name in names}}
    )


async def found_by_team(
    taken: Mapping[str | None, T], read: Callable[[str | None, T], Awaitable[Iterable[FoundT]]]
) -> tuple[list[FoundT], list[str]]:
    """
    Read the MLflow or the store of each team, all at once: where one does not answer, those of the others are read.

    :param taken: as :func:`by_team` returns it
    :param read: called with a team, and with what was taken of its deployment
    :return: what was found, and a sentence for each that did not answer
    :raises MlflowError: where none answers, of one of them
    :raises BaseError: likewise, of a store
    """
    errors: dict[str | None, MlflowError | BaseError] = {}

    async def one(team: str | None) -> Iterable[FoundT]:
        try:
            return await read(team, taken[team])
        except (MlflowError, BaseError) as error:
            errors[team] = error
            return ()

    found = [each for of_team in await gather(one, taken) for each in of_team]
    if errors and len(errors) == len(taken):
        raise next(iter(errors.values()))
    return found, sorted(f"team {team}: {outage(e)}" if team else outage(e) for team, e in errors.items())


async def of_name(name: str, take: Callable[[Deployment], T]) -> T:
    """As :func:`by_team`, of one pipeline or model."""
    (found,) = (await by_team([name], take)).values()
    return found
