"""Airflow's own REST API, asked within the API server in the name of whoever asks us: it decides what they may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import httpx
from fastapi import Depends, Request

from mlops_provider.api.problems import Problem
from mlops_provider.local.client import PAGE, run_place

_WHO: Final = ("authorization", "cookie")
"""Headers by which a person says who they are."""


class Airflow:
    """
    :param client: that reaches the app of the API server
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def request(self, method: str, path: str, **kwargs: Any) -> Any:
        """
        :param path: below ``/api/v2``
        :raises Problem: with Airflow's own words and status
        """
        response = await self._client.request(method, f"/api/v2{path}", **kwargs)
        if response.is_error:
            raise Problem.of_airflow(response.status_code, _said(response))
        return response.json() if response.content else None

    async def found(self, path: str, *, hides: bool = False, **kwargs: Any) -> Any:
        """
        :param hides: whether what the asker may not read is told as if it were not there
        :return: None where there is no such thing
        """
        try:
            return await self.request("GET", path, **kwargs)
        except Problem as error:
            if error.status != httpx.codes.NOT_FOUND and not (hides and error.status == httpx.codes.FORBIDDEN):
                raise
            return None

    async def every(self, path: str, kind: str, **params: Any) -> list[dict[str, Any]]:
        """
        Return all items of a collection that Airflow gives by pages.

        :param kind: name of the list in an answer
        """
        found: list[dict[str, Any]] = []
        while True:
            page = await self.request("GET", path, params={**params, "limit": PAGE, "offset": len(found)})
            found += page[kind]
            if not page[kind] or len(found) >= page["total_entries"]:
                return found


def _said(response: httpx.Response) -> str:
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return response.text[:500] or response.reason_phrase
    if isinstance(detail, list):
        return "\n".join(f"{'.'.join(map(str, each.get('loc', [])))}: {each.get('msg', each)}" for each in detail)
    return str(detail.get("reason") or detail) if isinstance(detail, dict) else str(detail)


@asynccontextmanager
async def as_asker(request: Request) -> AsyncIterator[Airflow]:
    """Ask in the name of who has sent a request, also after it was answered."""
    from airflow.api_fastapi.main import app  # the server's own, which has been made by now

    headers = {name: value for name in _WHO if (value := request.headers.get(name)) is not None}
    # Below the address of this app lies Airflow's.
    base = httpx.URL(str(request.base_url)).copy_with(path="/")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=headers) as client:
        yield Airflow(client)


async def _airflow(request: Request) -> AsyncIterator[Airflow]:
    async with as_asker(request) as airflow:
        yield airflow


AirflowDep = Annotated[Airflow, Depends(_airflow)]


async def readable_dags(airflow: Airflow) -> set[str]:
    """The ids of the DAGs that the asker may read."""
    return {dag["dag_id"] for dag in await airflow.every("/dags", "dags", order_by="dag_id")}


async def xcom(run: Mapping[str, Any], task: str, key: str, airflow: Airflow, map_index: int = -1) -> Any:
    """Return what a task has said under a key; None where it has not, or where the asker may not read it."""
    place = f"{run_place(run['dag_id'], run['dag_run_id'])}/taskInstances/{task}/xcomEntries/{key}"
    try:
        found = await airflow.found(place, params={"deserialize": "true", "map_index": map_index})
    except Problem as error:
        if error.status != 403:
            raise
        return None
    return None if found is None else found["value"]
