"""
``GET /mlops/reports/<key>``: the HTML reports of the store, also those of experiments, for whoever may read the
pipeline's DAG. ``GET /mlops/pages/<file>``: the modules of our pages in Airflow's, which hold no data.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import obstore
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from obstore.store import ObjectStore
from starlette.concurrency import run_in_threadpool

from mlops.contract.section import NAME_PATTERN
from mlops.contract.step import EXPERIMENTS
from mlops_provider.connections import store_of
from mlops_provider.deployment import Deployment, tenant_of_name


class _Pages(StaticFiles):
    """Browsers ask whether what they have is still the newest: a page of before an upgrade asks for what is gone."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


# Without the pages of its own API, which FastAPI shows to everybody.
app = FastAPI(title="MLOps", docs_url=None, redoc_url=None, openapi_url=None)
app.mount("/pages", _Pages(directory=Path(__file__).parent / "pages"))

_NAME = NAME_PATTERN.strip("^$")
_REPORT_KEY = re.compile(
    rf"(pipelines|{EXPERIMENTS}/{_NAME})/(?P<pipeline>{_NAME})(\.{_NAME})?/[a-z]+/\w[\w.-]*/report\.[0-9a-f]{{12}}\.html"
)
# The reports are files of their own: nothing in them may run, or load from, or send to, anywhere else. Whoever may
# write the store may write into them.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}


@app.get("/reports/{key:path}", response_class=HTMLResponse)
async def report(key: str, request: Request, user: GetUserDep) -> HTMLResponse:
    """One report, by its key in the store."""
    match = _REPORT_KEY.fullmatch(key)
    if match is None:
        raise HTTPException(404, f"{key!r} is not the key of a report")
    requires_access_dag("GET", param_dag_id=match["pipeline"])(request, user)
    try:
        store = await run_in_threadpool(_store_of_team, match["pipeline"])
        found = await obstore.get_async(store, key)
        page = bytes(await found.bytes_async())
    except FileNotFoundError:
        raise HTTPException(404, f"there is no report {key!r} in the store") from None
    return HTMLResponse(page, headers=_HEADERS)


def _store_of_team(pipeline: str) -> ObjectStore:
    return store_of(Deployment.load(tenant_of_name(pipeline)))
