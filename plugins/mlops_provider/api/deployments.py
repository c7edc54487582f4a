"""What the teams' deployments have, for requests that are about pipelines of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from mlops_provider.connections import login_of
from mlops_provider.deployment import Deployment, tenant_of_name
from mlops_provider.logins import Login

T = TypeVar("T")


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


async def of_name(name: str, take: Callable[[Deployment], T]) -> T:
    """As :func:`by_team`, of one pipeline or model."""
    (found,) = (await by_team([name], take)).values()
    return found
